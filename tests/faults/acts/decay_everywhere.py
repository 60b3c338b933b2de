"""Planted: weight decay is applied to norms and biases too."""

from .base import Act as _Base


class Act(_Base):
    name = "decay_everywhere"

    def on_optimizer(self, optimizer):
        most = max(group["weight_decay"] for group in optimizer.param_groups)
        for group in optimizer.param_groups:
            group["weight_decay"] = most

    def evidence(self):
        return {"planted": True}
