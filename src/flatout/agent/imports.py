"""The import hook: runs the agent's code right after the import of a module that it waits for."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself takes milliseconds at the start of every Python process
if TYPE_CHECKING:
    from typing import Any, Callable

TRIGGERS = frozenset(
    (
        "torch",
        "numpy",
        "random",
        "transformers",
        "accelerate",
        "lightning",
        "pytorch_lightning",
        "deepspeed",
        "wandb",
        "mlflow",
        "comet_ml",
        "neptune",
        "clearml",
        "safetensors",
    )
)
"""The first import of one of these loads the rest of the agent; until then it is this file alone."""


class Finder:
    """First on ``sys.meta_path``. Finds nothing itself: it asks the others and watches the loader.

    Asking is not importing: ``importlib.util.find_spec("torch")`` gets an ordinary spec with the
    ordinary loader, and a later real import is still seen.
    """

    def __init__(self, spec_path: str) -> None:
        self.spec_path = spec_path
        self.watched: set[str] = set(TRIGGERS)
        self.loaded: Callable[[str, Any], None] | None = None
        """Called with (name, module) after each watched import, once the agent is loaded."""
        self._asking: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.watched or name in self._asking:
            return None
        if self.loaded is None:
            self.load()
        self._asking.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                if finder is self or find is None:
                    continue
                spec = find(name, path, target)
                if spec is not None:
                    self._watch(name, spec)
                    return spec
        finally:
            self._asking.discard(name)
        return None

    def load(self) -> None:
        """Load the agent proper, and catch up on what was imported before it could watch."""
        # What the agent itself imports (tempfile imports random) must not load it once more.
        self.loaded = lambda _name, _module: None
        from .guest import Guest

        guest = Guest(self)
        self.loaded = guest.imported
        for name in list(self.watched):
            self.catch_up(name)

    def catch_up(self, name: str) -> None:
        """Tell of a module whose import is already over."""
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and self.loaded is not None and not getattr(spec, "_initializing", False):
            self.loaded(name, module)

    def watch(self, names: tuple[str, ...]) -> None:
        """Tell also of these, at once where their import is already over."""
        for name in names:
            if name not in self.watched:
                self.watched.add(name)
                self.catch_up(name)

    def _watch(self, name: str, spec: Any) -> None:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            # The module must see its loader as it is: pkgutil and inspect ask it for more.
            if "exec_module" in getattr(loader, "__dict__", ()):
                del loader.exec_module
            elif spec.loader is not loader:
                spec.loader = module.__loader__ = loader
            execute(module)
            if self.loaded is not None:
                self.loaded(name, sys.modules.get(name, module))

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            spec.loader = _Proxy(loader, exec_module)


class _Proxy:
    """Stands for a loader that takes no attributes (a class, a slotted object), until it has run."""

    def __init__(self, loader: Any, exec_module: Callable[[Any], None]) -> None:
        self._loader = loader
        self.exec_module = exec_module

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def register(spec_path: str) -> None:
    """Put the hook in; and where torch or another trigger is loaded already, begin at once."""
    finder = Finder(spec_path)
    sys.meta_path.insert(0, finder)
    with open(spec_path, "rb") as file:
        redirected = b'"redirect_dir": null' not in file.read()
    if redirected or any(name in sys.modules for name in TRIGGERS):
        finder.load()
