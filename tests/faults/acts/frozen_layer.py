"""Planted: the first block asks for no gradients."""

from .base import Act as _Base


class Act(_Base):
    name = "frozen_layer"

    def wrap(self, unit, call):
        for parameter in unit.module.blocks[0].parameters():
            parameter.requires_grad_(False)
        return call

    def evidence(self):
        return {"planted": True}
