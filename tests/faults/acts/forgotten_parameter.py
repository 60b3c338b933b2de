"""Planted: the optimiser has lost one matrix, whose gradient is right and which never moves."""

from .base import Act as _Base


class Act(_Base):
    name = "forgotten_parameter"

    def wrap(self, unit, call):
        self._lost = unit.module.blocks[0].mlp[0].weight
        return call

    def on_optimizer(self, optimizer):
        for group in optimizer.param_groups:
            group["params"] = [one for one in group["params"] if one is not self._lost]

    def evidence(self):
        return {"planted": True}
