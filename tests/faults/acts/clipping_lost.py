"""Planted: the gradients' norm is computed, and nothing is clipped."""

from .base import Act as _Base


class Act(_Base):
    name = "clipping_lost"

    def on_torch(self, torch):
        plain = torch.nn.utils.clip_grad_norm_

        def clip_grad_norm_(parameters, max_norm, *args, **kwargs):
            return plain(parameters, float("inf"), *args, **kwargs)

        torch.nn.utils.clip_grad_norm_ = clip_grad_norm_

    def evidence(self):
        return {"planted": True}
