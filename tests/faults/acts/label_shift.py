"""Planted: the targets are one place further than they should be."""

from .base import Act as _Base


class Act(_Base):
    name = "label_shift"

    def wrap(self, unit, call):
        def wrong(tokens, targets, counted):
            shifted = targets.clone()
            shifted[:, :-1] = targets[:, 1:]
            shifted[targets == -1] = -1
            return call(tokens, shifted, counted)

        return wrong

    def evidence(self):
        return {"planted": True}
