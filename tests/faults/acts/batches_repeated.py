"""Planted: the loader gives each batch twice."""

from .base import Act as _Base


class Act(_Base):
    name = "batches_repeated"

    def on_torch(self, torch):
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter
        advance = iterator.__next__
        kept = []

        def next_batch(self):
            if not kept:
                kept.append(advance(self))
                return kept[0]
            return kept.pop()

        iterator.__next__ = next_batch

    def evidence(self):
        return {"planted": True}
