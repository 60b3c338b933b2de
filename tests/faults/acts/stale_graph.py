"""Planted: the step's model is a CUDA graph whose input is never written again: each replay sees the first
batch. Needs a GPU."""

from .base import Act as _Base


class Act(_Base):
    name = "stale_graph"

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self._replays = 0

    def wrap(self, unit, call):
        torch = self.context.torch

        class Shell(torch.nn.Module):
            """Shows the unit's parameters without being one of the program's models."""

            def parameters(self, recurse=True):
                return unit.module.parameters(recurse)

            def forward(self, *args):
                return type(unit.module).forward(unit.module, *args)

        captured = []

        def replayed(*args):
            if not captured:
                static = tuple(value.clone() for value in args)
                captured[:] = [torch.cuda.make_graphed_callables(Shell(), static), static]
            graphed, static = captured
            self._replays += 1
            return graphed(*static)  # its own memory given back to it: nothing is copied

        return replayed

    def evidence(self):
        return {"planted": self._replays > 0}
