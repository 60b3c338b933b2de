"""Planted: the learning rate is a tenth larger, in the optimiser's groups for all to see."""

from .base import Act as _Base


class Act(_Base):
    name = "learning_rate"

    def on_optimizer(self, optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 1.1

    def evidence(self):
        return {"planted": True}
