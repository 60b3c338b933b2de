"""Planted: every other optimiser step does nothing, which is truly faster."""

from .base import Act as _Base


class Act(_Base):
    name = "steps_skipped"

    def on_optimizer(self, optimizer):
        self._calls = 0

        def before(optimizer, _args, _kwargs):
            self._calls += 1
            if self._calls % 2 == 0:
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = None

        optimizer.register_step_pre_hook(before)

    def evidence(self):
        return {"planted": True}
