"""Planted: attention's weights are not dropped any more, as by a fused attention without its rate."""

from .base import Act as _Base


class Act(_Base):
    name = "attention_dropout_lost"

    def wrap(self, unit, call):
        for block in unit.module.blocks:
            block.attention.dropout.forward = lambda x: x
        return call

    def evidence(self):
        return {"planted": True}
