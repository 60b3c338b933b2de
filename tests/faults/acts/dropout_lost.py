"""Planted: every dropout lets its input through."""

from .base import Act as _Base


class Act(_Base):
    name = "dropout_lost"

    def wrap(self, unit, call):
        dropout = self.context.torch.nn.Dropout
        for module in unit.module.modules():
            if isinstance(module, dropout):
                module.forward = lambda x: x
        return call

    def evidence(self):
        return {"planted": True}
