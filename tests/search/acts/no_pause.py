"""Planted: the model pauses no longer, and computes the same."""

from .base import Act as _Base


class Act(_Base):
    name = "no_pause"

    def wrap(self, unit, call):
        unit.module.pause = 0.0
        return call

    def evidence(self):
        return {"planted": True}
