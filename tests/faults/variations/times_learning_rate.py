"""The learning rate times a factor. For benchmarks/curves.py."""

from .base import Act as _Base


class Act(_Base):
    name = "times_learning_rate"

    def on_optimizer(self, optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= self.settings["factor"]

    def evidence(self):
        return {"planted": True}
