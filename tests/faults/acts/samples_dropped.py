"""Planted: half of every batch is left out, which is truly faster."""

from .base import Act as _Base


class Act(_Base):
    name = "samples_dropped"

    def wrap(self, unit, call):
        def wrong(tokens, targets, counted):
            half = max(1, tokens.shape[0] // 2)
            return call(tokens[:half], targets[:half], counted / 2)

        return wrong

    def evidence(self):
        return {"planted": True}
