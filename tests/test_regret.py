"""What benchmarks/regret.py makes of a grid and a search."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flatout.techniques import TECHNIQUES, technique_named


@pytest.fixture
def regret(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[1] / "benchmarks"), *sys.path])
    return importlib.import_module("regret")


GRID: dict[str, Any] = {
    "plans": {
        "baseline": {"names": [], "ratio": 1.0, "start_seconds": 10.0},
        "bf16": {"names": ["bf16"], "ratio": 2.0, "alone_seconds": 30.0},
        "compile": {"names": ["compile"], "failed": "no compiler", "alone_seconds": 5.0},
        "bf16+sdpa": {"names": ["bf16", "sdpa"], "ratio": 2.05, "alone_seconds": 55.0},
    },
    "waves": [{"seconds": 12.0, "plans": []}, {"seconds": 40.0, "plans": ["bf16"]}],
}


def report(*names: str, seconds: float = 20.0) -> dict[str, Any]:
    return {"plan": {"choices": [{"name": name} for name in names]}, "elapsed_seconds": seconds}


def test_a_plan_is_compared_with_the_best_and_its_time_with_the_grids(regret: ModuleType) -> None:
    found = regret.compare(GRID, report("bf16"))
    assert (found["best"], found["regret"]) == ("bf16+sdpa", pytest.approx(0.025))
    assert found["of_grid"] == pytest.approx(0.2)
    assert (found["grid_seconds"], found["grid_seconds_as_run"]) == (100.0, 52.0)
    assert found["ok"]


@pytest.mark.parametrize(
    "told", [report("bf16", seconds=26.0), report(), report("compile"), report("tf32"), {"plan": {}}]
)
def test_too_slow_a_plan_or_search_misses_the_bar(regret: ModuleType, told: dict[str, Any]) -> None:
    assert not regret.compare(GRID, told)["ok"]


def test_every_combination_once_and_none_that_collide(regret: ModuleType) -> None:
    plans = regret.factorial(TECHNIQUES)
    assert len(plans) == len({tuple(plan) for plan in plans}) == 2 ** len(TECHNIQUES) - 1

    class Rival(type(technique_named("compile"))):  # type: ignore[misc]
        name = "rival"

    assert len(regret.factorial([*TECHNIQUES, Rival()])) == 2**6 - 1 - 2**4
