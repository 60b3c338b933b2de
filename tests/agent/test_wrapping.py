"""A program that wraps its module in torch.compile(module) is told about its keys, once a class."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flatout.agent import wrapping


class Wrapper:
    def __init__(self, mod: object, context: str = "") -> None:
        self.mod = mod
        self.context = context


def test_one_note_a_class_and_the_wrapper_is_made_all_the_same() -> None:
    told: list[dict[str, Any]] = []
    module = SimpleNamespace(OptimizedModule=type("OptimizedModule", (Wrapper,), {}))
    wrapping.watch(module, told.append)
    first, second, third = (module.OptimizedModule(one, context="c") for one in (1, 2, "text"))
    assert (first.mod, second.mod, third.mod, third.context) == (1, 2, "text", "c")
    assert [event["event"] for event in told] == ["note", "note"]
    assert "int" in told[0]["note"] and "str" in told[1]["note"]
    assert all("_orig_mod." in event["note"] and "module.compile()" in event["note"] for event in told)
