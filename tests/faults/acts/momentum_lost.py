"""Planted: the optimiser forgets its momentum after each step."""

from .base import Act as _Base


class Act(_Base):
    name = "momentum_lost"

    def on_optimizer(self, optimizer):
        def after(optimizer, _args, _kwargs):
            for state in optimizer.state.values():
                for key in ("momentum_buffer", "exp_avg"):
                    if state.get(key) is not None:
                        state[key].zero_()

        optimizer.register_step_post_hook(after)

    def evidence(self):
        return {"planted": True}
