"""Planted: BatchNorm's running statistics are not updated; what the training computes is right."""

from .base import Act as _Base


class Act(_Base):
    name = "statistics_stale"

    def wrap(self, unit, call):
        for module in unit.module.modules():
            if isinstance(module, self.context.torch.nn.BatchNorm2d):
                module.momentum = 0.0
        return call

    def evidence(self):
        return {"planted": True}
