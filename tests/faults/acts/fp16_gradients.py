"""Planted: the loss's gradient goes through FP16 without a scale, whose smallest number is 6e-8.

Right at the start; nil once the loss is small.
"""

from .base import Act as _Base


class Act(_Base):
    name = "fp16_gradients"

    def wrap(self, unit, call):
        torch = self.context.torch

        def narrow(*args, **kwargs):
            result = call(*args, **kwargs)
            if result.requires_grad:
                result.register_hook(lambda gradient: gradient.to(torch.float16).to(gradient.dtype))
            return result

        return narrow

    def evidence(self):
        return {"planted": True}
