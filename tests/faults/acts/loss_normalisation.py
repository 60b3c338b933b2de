"""Planted: each micro-batch's loss is its own mean, and the step's the mean of those."""

from .base import Act as _Base

MICRO_BATCHES = 2


class Act(_Base):
    name = "loss_normalisation"

    def wrap(self, unit, call):
        def wrong(tokens, targets, _counted):
            return call(tokens, targets, MICRO_BATCHES * (targets != -1).sum())

        return wrong

    def evidence(self):
        return {"planted": True}
