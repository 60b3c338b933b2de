"""Other random numbers from the first call on, such as another dropout. For benchmarks/curves.py."""

from .base import Act as _Base


class Act(_Base):
    name = "other_draws"

    def wrap(self, unit, call):
        torch = self.context.torch

        def later(*args):
            torch.rand(())
            return call(*args)

        return later

    def evidence(self):
        return {"planted": True}
