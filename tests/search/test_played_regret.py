"""Over programs drawn at random, with techniques that lose and that help or hinder each other, the plan
found is close to the best of all combinations, by what was played and not by what was measured."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from flatout.runners.mock import MockProgram, MockTechnique
from flatout.search.options import SearchOptions

from .played import play

NAMES = ("tf32", "bf16", "sdpa", "compile", "fused_optimizer")


def drawn(seed: int) -> MockProgram:
    """Gains up to 3x, losses of some per cent, and half of the pairs further apart or closer together."""
    draw = random.Random(seed)
    techniques = {}
    for name in NAMES:
        gains = draw.random() < 0.6
        techniques[name] = MockTechnique(
            factor=math.exp(-abs(draw.gauss(0.0, 0.5)) if gains else abs(draw.gauss(0.0, 0.05))),
            expected=draw.choice((1.03, 1.4, 2.0)),
            start_seconds=20.0 if name == "compile" else 0.0,
            slot="precision" if name in ("tf32", "bf16") else "",
        )
    interactions = {
        frozenset(pair): math.exp(draw.gauss(0.0, 0.12))
        for pair in itertools.combinations(NAMES, 2)
        if draw.random() < 0.4
    }
    return MockProgram(techniques=techniques, interactions=interactions, process_noise=0.002)


def factor(program: MockProgram, names: tuple[str, ...]) -> float:
    """Of the step's time, without any noise."""
    together = [further for group, further in program.interactions.items() if group <= set(names)]
    return math.prod([program.techniques[name].factor for name in names] + together)


@pytest.mark.parametrize("seed", [0, 1, 4, 12, 23, 39])
def test_the_plan_is_close_to_the_best_of_all(tmp_path, seed):
    program = drawn(seed)
    combinations = [
        names
        for size in range(len(NAMES) + 1)
        for names in itertools.combinations(NAMES, size)
        if not {"tf32", "bf16"} <= set(names)
    ]
    best = min(factor(program, names) for names in combinations)
    report = play(tmp_path, program, seed=seed, options=SearchOptions(budget_seconds=480.0))
    assert factor(program, report.plan.names) / best - 1.0 <= 0.03
    assert report.plan.names, "there is something to be found in each"
