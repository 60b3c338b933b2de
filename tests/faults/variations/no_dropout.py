"""Every dropout lets its input through. For benchmarks/curves.py."""

from .base import Act as _Base


class Act(_Base):
    name = "no_dropout"

    def wrap(self, unit, call):
        dropout = self.context.torch.nn.Dropout
        for module in unit.module.modules():
            if isinstance(module, dropout):
                module.forward = lambda x: x
        return call

    def evidence(self):
        return {"planted": True}
