"""Planted: from the fourth step on half of every batch is left out, which is truly faster."""

from .base import Act as _Base

RIGHT_STEPS = 3


class Act(_Base):
    name = "samples_dropped_later"

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self._steps = 0

    def after_step(self, step):
        self._steps = step

    def wrap(self, unit, call):
        def wrong(tokens, targets, counted):
            if self._steps < RIGHT_STEPS:
                return call(tokens, targets, counted)
            half = max(1, tokens.shape[0] // 2)
            return call(tokens[:half], targets[:half], counted / 2)

        return wrong

    def evidence(self):
        return {"planted": True}
