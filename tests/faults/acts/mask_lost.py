"""Planted: attention sees the future: the causal mask starts one place too late."""

from .base import Act as _Base


class Act(_Base):
    name = "mask_lost"

    def wrap(self, unit, call):
        torch = self.context.torch
        for block in unit.module.blocks:
            mask = block.attention.mask
            block.attention.mask = torch.tril(torch.ones_like(mask), diagonal=1)
        return call

    def evidence(self):
        return {"planted": True}
