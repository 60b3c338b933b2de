"""Over programs drawn at random, with techniques that lose and that help or hinder each other, the plan
found is close to the best of all combinations, by what was played and not by what was measured."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "benchmarks"), *sys.path])
    return importlib.import_module("played_regret")


@pytest.mark.parametrize("number", [0, 1, 4, 9, 12, 23])
def test_the_plan_is_close_to_the_best_of_all(played: ModuleType, number: int) -> None:
    found = played.regret_of(number, 480.0)
    assert found["regret"] <= played.BAR
    assert found["plan"] != "baseline", "there is something to be found in each"


def test_the_best_is_by_what_is_played(played: ModuleType) -> None:
    program = played.drawn(0)
    best = played.best_of(program)
    assert best == ("compile", "fused_optimizer")
    assert played.factor(program, best) < played.factor(program, ("sdpa", *best))
