"""Planted: the model is put into evaluation mode and never back."""

from .base import Act as _Base


class Act(_Base):
    name = "left_in_eval"

    def wrap(self, unit, call):
        unit.module.eval()
        return call

    def evidence(self):
        return {"planted": True}
