"""Planted: every gradient is a tenth too large."""

from .base import Act as _Base


class Act(_Base):
    name = "gradient_scaled"

    def before_backward(self, loss):
        loss.register_hook(lambda gradient: gradient * 1.1)

    def evidence(self):
        return {"planted": True}
