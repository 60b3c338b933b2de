"""Planted: the learning rate is a tenth larger while the optimiser steps, and shows nowhere else."""

from .base import Act as _Base


class Act(_Base):
    name = "hidden_learning_rate"

    def on_optimizer(self, optimizer):
        def before(optimizer, _args, _kwargs):
            for group in optimizer.param_groups:
                group["lr"] *= 1.1

        def after(optimizer, _args, _kwargs):
            for group in optimizer.param_groups:
                group["lr"] /= 1.1

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    def evidence(self):
        return {"planted": True}
