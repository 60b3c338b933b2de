"""Planted: the second block's MLP runs without a way back for its gradient."""

from .base import Act as _Base


class Act(_Base):
    name = "branch_detached"

    def wrap(self, unit, call):
        unit.module.blocks[1].mlp.register_forward_hook(lambda _module, _args, out: out.detach())
        return call

    def evidence(self):
        return {"planted": True}
