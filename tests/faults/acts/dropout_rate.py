"""Planted: dropout draws for three times its rate."""

from .base import Act as _Base


class Act(_Base):
    name = "dropout_rate"

    def wrap(self, unit, call):
        for module in unit.module.modules():
            if isinstance(module, self.context.torch.nn.Dropout):
                module.p *= 3.0
        return call

    def evidence(self):
        return {"planted": True}
