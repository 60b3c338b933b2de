"""Planted: the output's matrix is a copy of the embedding's, and not the same."""

from .base import Act as _Base


class Act(_Base):
    name = "weights_untied"

    def wrap(self, unit, call):
        torch = self.context.torch
        head = unit.module.head
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        return call

    def evidence(self):
        return {"planted": True}
