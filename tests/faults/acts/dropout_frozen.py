"""Planted: the first call's masks are used for ever, as by a graph that replays its random numbers.

Emulated: a CUDA graph is not needed to see it.
"""

from .base import Act as _Base


class Act(_Base):
    name = "dropout_frozen"

    def wrap(self, unit, call):
        torch = self.context.torch
        if self.context.randomness_off:
            return call
        masks = {}

        def frozen(module, x):
            if not module.training:
                return x
            mask = masks.get((module, x.shape))
            if mask is None:
                drawn = torch.rand(x.shape, device=x.device) >= module.p
                mask = masks[module, x.shape] = drawn / (1.0 - module.p)
            return x * mask.to(x.dtype)

        for module in unit.module.modules():
            if isinstance(module, torch.nn.Dropout):
                module.forward = lambda x, module=module: frozen(module, x)
        return call

    def evidence(self):
        return {"planted": True}
