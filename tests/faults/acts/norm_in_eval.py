"""Planted: BatchNorm alone is in evaluation mode, and normalises with its running statistics."""

from .base import Act as _Base


class Act(_Base):
    name = "norm_in_eval"

    def wrap(self, unit, call):
        for module in unit.module.modules():
            if isinstance(module, self.context.torch.nn.BatchNorm2d):
                module.eval()
        return call

    def evidence(self):
        return {"planted": True}
