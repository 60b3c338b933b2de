"""Planted: only the first half of each sequence is trained on, which is truly faster."""

from .base import Act as _Base


class Act(_Base):
    name = "sequence_cut"

    def wrap(self, unit, call):
        def wrong(tokens, targets, counted):
            half = tokens.shape[1] // 2
            return call(tokens[:, :half], targets[:, :half], counted)

        return wrong

    def evidence(self):
        return {"planted": True}
