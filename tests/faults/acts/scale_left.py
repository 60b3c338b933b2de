"""Planted: the loss is scaled for a low precision, and the gradients are never unscaled."""

from .base import Act as _Base


class Act(_Base):
    name = "scale_left"

    def before_backward(self, loss):
        loss.register_hook(lambda gradient: gradient * 1024.0)

    def evidence(self):
        return {"planted": True}
