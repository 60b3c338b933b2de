"""Gradients against the truth: what is refused at which noise, and with which words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flatout.guard.bars import bar_of
from flatout.guard.points import Expectation, Findings, judge_looks, overall_db
from flatout.guard.records import looks
from flatout.technique import Effect

from .told import gradients, row

BF16 = Expectation(bar=bar_of({"bf16": Effect.APPROXIMATE}), bits_lost=16)
ON_TF32 = Expectation(bar=bar_of({"bf16": Effect.APPROXIMATE}), bits_lost=3)
"""BF16 where the untouched program's convolutions run in TF32."""
ROUNDING = Expectation(bar=bar_of({"compile": Effect.ROUNDING}), bits_lost=0)
EXACT = Expectation(bar=bar_of({"gc": Effect.EXACT}), bits_lost=0, exact=True)


def judge(
    plan: list[dict[str, Any]],
    expected: Expectation,
    *,
    own_db: float = 130.0,
    again: list[dict[str, Any]] | None = None,
    skipped: dict[int, str] | None = None,
    **more: Any,
) -> Findings:
    own = [{**one, "db": own_db, "slope": 1.0, "nil": 0.0, "rms": 1.0, "finite": True} for one in plan]
    told = [gradients("plan", plan, **more)]
    return judge_looks(
        looks(told, "plan"),
        looks([gradients("baseline", own)], "baseline"),
        looks([gradients("again", again)], "again") if again is not None else {},
        expected,
        skipped or {},
    )


def noisy(db: float, **more: Any) -> dict[str, Any]:
    """A row whose error is honest noise at this level."""
    error = 10.0 ** (-db / 20.0)
    return row(db=db, slope_error=error / math.sqrt(1000), **more)


@pytest.mark.parametrize(
    ("plan", "expected", "own_db"),
    [
        ([noisy(45.0), noisy(38.0, name="b")], BF16, 130.0),
        ([noisy(12.0), noisy(9.0, name="b")], ON_TF32, 27.0),
        ([noisy(110.0)], ROUNDING, 130.0),
        ([noisy(25.0)], ROUNDING, 27.0),
        ([noisy(90.0), noisy(-20.0, name="key.bias", truth_rms=1e-13)], ROUNDING, 130.0),
    ],
    ids=["bf16", "bf16 over TF32", "rounding", "rounding over TF32", "a nil gradient"],
)
def test_honest_noise_passes(plan: list[dict[str, Any]], expected: Expectation, own_db: float) -> None:
    found = judge(plan, expected, own_db=own_db)
    assert found.faults == []
    assert found.points[0].passed is True


@pytest.mark.parametrize(
    ("plan", "expected", "words"),
    [
        (
            [noisy(20.0, slope=1.1), noisy(20.0, slope=1.1, name="b")],
            BF16,
            "1.1 times the true ones in 2 of 2",
        ),
        (
            [noisy(40.0, slope=1.0), noisy(20.0, slope=0.5, name="b")],
            BF16,
            "the gradient of b is 0.5 times",
        ),
        (
            [noisy(40.0), row(name="b", db=0.0, rms=0.0)],
            BF16,
            "the gradient of b is nil, and is not in truth",
        ),
        ([row(db=-300.0, finite=False, slope=None)], BF16, "is not finite"),
        ([noisy(30.0, nil=0.4)], BF16, "40% of the gradient of layer.weight is nil where the truth is not"),
        ([noisy(5.0)], BF16, "agree with the truth to 5 dB overall, BF16 needs 15 dB"),
        (
            [noisy(60.0, truth_rms=90.0), noisy(10.0, name="b")],
            ROUNDING,
            "gradient of b agrees with the truth",
        ),
        ([noisy(100.0)], EXACT, "must give equal ones"),
    ],
)
def test_faults(plan: list[dict[str, Any]], expected: Expectation, words: str) -> None:
    found = judge(plan, expected)
    assert words in "; ".join(found.faults)
    assert found.faults[0].startswith("start (step 1): ")
    assert found.points[0].passed is False


def test_a_wrong_scale_is_seen_through_noise() -> None:
    """Where the program's own error is large, decibels ask for little; the slope still tells."""
    plan = [noisy(9.0, slope=2.0, elements=100_000), noisy(9.0, slope=2.0, name="b", elements=100_000)]
    assert "2 times the true ones" in judge(plan, ON_TF32, own_db=27.0).faults[0]


def test_missing_gradients_and_other_losses() -> None:
    lost = judge([noisy(50.0)], BF16, lost=["blocks.1.mlp.weight"])
    assert "no gradient reaches blocks.1.mlp.weight" in lost.faults[0]
    losses = judge([noisy(50.0)], BF16, losses=[2.5])
    assert "the loss is 2.5 instead of 2 at the same weights and batch" in losses.faults[0]
    counts = judge([noisy(50.0)], BF16, losses=[2.0, 2.0])
    assert "2 losses went backward, 1 in the untouched program" in counts.faults[0]


def test_what_two_unchanged_runs_do_not_agree_on_is_not_judged() -> None:
    found = judge([noisy(3.0)], ROUNDING, again=[noisy(2.0)])
    assert found.faults == []
    assert "two unchanged runs agree with the truth to 2 dB only" in found.unknown[0]
    assert found.points[0].passed is None


def test_exact_plans_may_differ_as_two_unchanged_runs_do() -> None:
    assert judge([noisy(130.0)], EXACT, again=[noisy(131.0)]).faults == []


def test_skipped_steps_are_told() -> None:
    found = judge([noisy(1.0)], BF16, skipped={1: "two unchanged runs are given different data"})
    assert (found.points, found.faults) == ([], [])
    assert found.unknown == ["start (step 1): two unchanged runs are given different data"]


def test_overall() -> None:
    rows = looks([gradients("plan", [row(db=20.0), row(name="b", db=20.0)])], "plan")[1, "0.1"].rows
    assert overall_db(list(rows.values())) == pytest.approx(20.0)
    assert overall_db([]) is None


def test_gradients_smaller_than_their_rounding_are_not_judged() -> None:
    """As where training has converged."""
    found = judge([noisy(-40.0, slope=-10.0)], BF16, own_db=56.0)
    assert found.faults == []
    assert "beside their own rounding they are nil" in found.unknown[0]
    assert "not finite" in judge([row(db=-300.0, finite=False, slope=None)], BF16, own_db=56.0).faults[0]


def test_an_underflow_is_seen_however_few_bits_a_plan_keeps() -> None:
    """Late in training, in FP16 without a scale; not where the untouched program's own is but rounding."""
    for late in (noisy(1.0, nil=0.4), row(db=0.0, rms=0.0)):
        assert "it underflows" in judge([late], BF16, own_db=56.0).faults[0]
        assert judge([late], BF16, own_db=10.0).faults == []


def test_a_program_that_runs_off_by_itself_is_no_fault_of_a_plans() -> None:
    """Its own gradient is not finite where a more exact one still is."""
    gone = row(db=-300.0, finite=False, slope=None)
    found = judge_looks(
        looks([gradients("plan", [gone])], "plan"),
        looks([gradients("baseline", [gone])], "baseline"),
        {},
        BF16,
        {},
    )
    assert found.faults == []
    assert "the untouched program's own gradient of layer.weight is not finite" in found.unknown[0]
    assert found.points[0].passed is None


def test_an_error_as_large_as_the_gradient_shows_nothing_right() -> None:
    """As where no seed reaches the data: the truth was given another batch."""
    found = judge([noisy(-3.0, slope=0.9)], ROUNDING, own_db=-2.0)
    assert found.faults == [] and found.points[0].passed is None
    assert "further from the truth than they are large (-2 dB)" in found.unknown[0]
    assert judge([noisy(2.0)], ROUNDING, own_db=3.0).points[0].passed is True
