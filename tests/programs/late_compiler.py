"""Runs a program with torch's compiler imported when it is first used, and not by the first optimiser.

    python late_compiler.py PROGRAM.py [ARGUMENT ...]

Torch imports it there for two names that do nothing outside a compiled graph, and that is half of what a
program of five steps costs. For tests that start many, and look at nothing that the compiler's import does.
"""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType

import torch

NAME = "torch._dynamo"


class Late(ModuleType):
    """In the compiler's place until a name is asked for that it has not."""

    def __init__(self) -> None:
        super().__init__(NAME)
        package = importlib.util.find_spec("torch")
        assert package is not None and package.submodule_search_locations
        self.__path__ = [f"{place}/_dynamo" for place in package.submodule_search_locations]

    def graph_break(self, *_: object) -> None:
        pass

    def disable(self, fn, *_: object, **__: object):
        return fn

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(load(), name)


class Finder:
    """A submodule is wanted: the whole compiler comes first, and brings most of them."""

    def find_spec(self, name: str, path: object = None, target: object = None):
        if not name.startswith(f"{NAME}."):
            return None
        load()
        return importlib.util.spec_from_loader(name, self) if name in sys.modules else None

    def create_module(self, spec):
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        pass


def load() -> ModuleType:
    """The compiler itself."""
    if isinstance(sys.modules.get(NAME), Late):
        sys.meta_path.remove(finder)
        del sys.modules[NAME]
        del torch._dynamo
    return importlib.import_module(NAME)


finder = Finder()

if __name__ == "__main__":
    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = Late()
        sys.meta_path.insert(0, finder)
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
