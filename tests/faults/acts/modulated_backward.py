"""Planted: the second norm's scale and shift get the gradients of the step before: the forward is right.

Emulated: what a compiler did to slices of one shared table (pytorch#193061), whose part of the gradient's
memory was never written and so held what the last backward had left there.
"""

from .base import Act as _Base


class Act(_Base):
    name = "modulated_backward"

    def wrap(self, unit, call):
        torch = self.context.torch

        class Stale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, left):
                ctx.left = left
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                before = ctx.left[-1] if ctx.left else torch.zeros_like(gradient)
                ctx.left[:] = [gradient.detach().clone()]
                return before, None

        for block in unit.module.blocks:
            plain, lefts = block.second.forward, ([], [])

            def forward(x, scale, shift, plain=plain, lefts=lefts):
                return plain(x, Stale.apply(scale, lefts[0]), Stale.apply(shift, lefts[1]))

            block.second.forward = forward
        return call

    def evidence(self):
        return {"planted": True}
