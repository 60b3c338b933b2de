"""Planted: the micro-batches' means are added and not divided by their number."""

from .base import Act as _Base

MICRO_BATCHES = 2


class Act(_Base):
    name = "accumulation_summed"

    def before_backward(self, loss):
        loss.register_hook(lambda gradient: gradient * MICRO_BATCHES)

    def evidence(self):
        return {"planted": True}
