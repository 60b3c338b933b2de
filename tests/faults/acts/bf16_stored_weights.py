"""Planted: the weights are of FP32 in name, and rounded to BF16 after each update."""

from .base import Act as _Base


class Act(_Base):
    name = "bf16_stored_weights"

    def on_optimizer(self, optimizer):
        torch = self.context.torch

        def after(optimizer, _args, _kwargs):
            with torch.no_grad():
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.copy_(parameter.bfloat16())

        optimizer.register_step_post_hook(after)

    def evidence(self):
        return {"planted": True}
