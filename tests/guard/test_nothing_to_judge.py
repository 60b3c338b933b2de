"""Gradients that are nil or not finite in truth too prove nothing: neither right nor wrong."""

from __future__ import annotations

import math

import pytest

from flatout.guard.bars import ROUNDING
from flatout.guard.points import Expectation, judge_looks
from flatout.guard.records import Look, Row
from flatout.guard.updates import judge_updates

EXPECTED = Expectation(bar=ROUNDING, bits_lost=0)


def look(truth: float, mine: float) -> Look:
    row = Row(
        name="weight", elements=64, truth_rms=truth, rms=mine, db=300.0 if truth == mine else -300.0,
        finite=math.isfinite(mine), slope=None, slope_error=0.0, nil=0.0, equal=truth == mine,
    )  # fmt: skip
    return Look(
        step=1, point="start", take="0", against="truth", rows={"weight": row}, equal=truth == mine,
        lost=(), gained=(), shapes=(), losses=(2.5,), wanted_losses=(2.5,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("truth", "mine", "passed", "says"),
    [
        (0.0, 0.0, None, "every gradient is nil, in truth too"),
        (math.nan, math.nan, None, "no gradient is finite, in truth neither"),
        (math.inf, math.inf, None, "no gradient is finite, in truth neither"),
        (math.nan, 1.0, None, "no gradient is finite, in truth neither"),
        (1.0, math.nan, False, "is not finite"),
        (1.0, 1.0, True, ""),
    ],
)
def test_nothing_to_judge(truth: float, mine: float, passed: bool | None, says: str) -> None:
    seen = look(truth, mine)
    found = judge_looks({seen.key: seen}, {}, {}, EXPECTED, {})
    assert found.points[0].passed is passed
    assert says in " ".join([*found.unknown, *found.faults])
    assert bool(found.unknown) is (passed is None)


def update(size: float, apart: float) -> dict[str, object]:
    return {
        "name": "weight", "size": size, "own_size": size, "apart": apart, "rounding": 0.0,
        "start_apart": 0.0, "moved": True, "wanted_moved": True,
    }  # fmt: skip


def test_updates_of_a_program_that_has_none_prove_nothing() -> None:
    def told(row: dict[str, object]) -> list[dict[str, object]]:
        return [{"what": "updates", "step": 1, "rows": [row]}]

    assert judge_updates(told(update(math.nan, math.nan))) == ([], "")
    (fault,), _seen = judge_updates(told(update(1.0, math.nan)))
    assert "update of step 1" in fault
    assert judge_updates(told(update(1.0, 0.0)))[1].startswith("updates from the same gradients agree")
