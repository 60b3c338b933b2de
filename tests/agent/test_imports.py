"""The import hook: sees the import, never the question whether a module is there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.agent.imports import Finder


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """A hook on modules that live in a folder of the test's own."""
    (tmp_path / "watched_one.py").write_text("loader = __loader__\nvalue = 3\n")
    (tmp_path / "watched_broken.py").write_text("raise ImportError('half a module')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[tuple[str, Any]] = []
    finder = Finder("nowhere")
    finder.loaded = lambda name, module: found.append((name, module))
    finder.watched = {"watched_one", "watched_broken", "watched_odd"}
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    yield found
    for name in ("watched_one", "watched_broken", "watched_odd"):
        sys.modules.pop(name, None)


def test_an_import_is_told_once(seen: list[tuple[str, Any]]) -> None:
    module = importlib.import_module("watched_one")
    importlib.import_module("watched_one")
    assert seen == [("watched_one", module)]


def test_asking_for_a_spec_is_no_import_and_the_import_after_it_is_seen(
    seen: list[tuple[str, Any]],
) -> None:
    assert importlib.util.find_spec("watched_one") is not None
    assert importlib.util.find_spec("watched_one") is not None
    assert seen == []
    importlib.import_module("watched_one")
    assert [name for name, _ in seen] == ["watched_one"]


def test_the_module_sees_its_ordinary_loader(seen: list[tuple[str, Any]]) -> None:
    module = importlib.import_module("watched_one")
    assert type(module.loader) is importlib.machinery.SourceFileLoader
    assert "exec_module" not in vars(module.loader)
    assert module.__spec__.loader is module.loader


def test_an_import_that_fails_is_not_told(seen: list[tuple[str, Any]]) -> None:
    with pytest.raises(ImportError, match="half a module"):
        importlib.import_module("watched_broken")
    assert seen == []


def test_a_loader_that_takes_no_attributes_is_watched_too(
    seen: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slotted:
        __slots__ = ()

        def create_module(self, spec: Any) -> None:
            return None

        def exec_module(self, module: types.ModuleType) -> None:
            module.value = 4  # type: ignore[attr-defined]

    class Odd:
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if name == "watched_odd":
                return importlib.machinery.ModuleSpec(name, Slotted())  # type: ignore[arg-type]
            return None

    sys.meta_path.append(Odd())  # type: ignore[arg-type]
    module = importlib.import_module("watched_odd")
    assert seen == [("watched_odd", module)]
    assert type(module.__loader__) is Slotted


def test_what_is_imported_already_is_told_when_it_is_watched(seen: list[tuple[str, Any]]) -> None:
    finder: Any = sys.meta_path[0]
    finder.watch(("json",))
    assert [name for name, _ in seen] == ["json"]
