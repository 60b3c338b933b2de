"""Planted: from the second batch on the loader leaves out every other one."""

from .base import Act as _Base


class Act(_Base):
    name = "batches_skipped"

    def on_torch(self, torch):
        iterator = torch.utils.data.dataloader._BaseDataLoaderIter
        advance = iterator.__next__
        given = []

        def next_batch(self):
            if given:
                advance(self)
            given.append(True)
            return advance(self)

        iterator.__next__ = next_batch

    def evidence(self):
        return {"planted": True}
