"""Planted: every optimiser step is taken twice with the same gradients."""

from .base import Act as _Base


class Act(_Base):
    name = "double_step"

    def on_optimizer(self, optimizer):
        plain = type(optimizer).step.__wrapped__  # past the hooks: one step, as far as anyone can see

        def again(optimizer, _args, _kwargs):
            plain(optimizer)

        optimizer.register_step_post_hook(again)

    def evidence(self):
        return {"planted": True}
