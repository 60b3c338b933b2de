"""Planted: gradients are set to nil before each micro-batch, so that the last one alone counts."""

from .base import Act as _Base


class Act(_Base):
    name = "accumulation_lost"

    def wrap(self, unit, call):
        def wrong(*args):
            for parameter in unit.module.parameters():
                parameter.grad = None
            return call(*args)

        return wrong

    def evidence(self):
        return {"planted": True}
