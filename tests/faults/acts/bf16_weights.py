"""Planted: the weights themselves are BF16, so that small updates are lost."""

from .base import Act as _Base


class Act(_Base):
    name = "bf16_weights"

    def wrap(self, unit, call):
        unit.module.to(self.context.torch.bfloat16)
        return call

    def evidence(self):
        return {"planted": True}
