"""Planted: from the second step on the model sees the first step's tokens, with the targets of now.

Emulated: what a CUDA graph does whose static input is not written before each replay.
"""

from .base import Act as _Base

MICRO_BATCHES = 2


class Act(_Base):
    name = "stale_input"

    def wrap(self, unit, call):
        kept = []

        def wrong(tokens, targets, counted):
            if len(kept) < MICRO_BATCHES:
                kept.append(tokens.clone())
                return call(tokens, targets, counted)
            kept.append(kept.pop(0))
            return call(kept[-1], targets, counted)

        return wrong

    def evidence(self):
        return {"planted": True}
