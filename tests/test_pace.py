"""What one step takes: the median, and the mean where the loader sets the pace."""

from __future__ import annotations

import pytest

from flatout.pace import pace, pace_of, wait_of, waits
from flatout.trial import Block, Outcome, State

BURSTS = (0.064, 0.001, 0.001, 0.014) * 5
"""As four workers deliver: 20 ms a batch."""


def outcome(times: tuple[float, ...], wait: float) -> Outcome:
    return Outcome(state=State.COMPLETED, step_seconds=times, loader_wait_seconds_per_step=wait)


def test_one_slow_step_moves_nothing() -> None:
    assert pace_of(outcome((0.1, 0.1, 0.1, 5.0), 0.0)) == 0.1


def test_bursts_of_a_loader_are_averaged() -> None:
    assert pace_of(outcome(BURSTS, 0.018)) == pytest.approx(0.020)
    assert pace(BURSTS) < 0.015, "the median is one of the short ones"


def test_where_every_step_waits_the_wait_counts_once() -> None:
    assert pace_of(outcome((0.228, 0.227, 0.229), 0.221)) == pytest.approx(0.228)


def test_an_evaluation_after_every_ninth_step_is_no_step() -> None:
    times = (0.022,) * 8 + (1.1,)
    assert pace_of(outcome(times * 4, 0.006)) == pytest.approx(0.028)
    assert pace(times) == 0.022


def test_the_wait_of_a_turn_is_without_its_epochs_start() -> None:
    block = Block(
        first_step=1, step_seconds=(0.02,) * 4, loader_wait_seconds=0.9, loader_start_seconds=0.8, steps=5
    )
    assert wait_of(block) == pytest.approx(0.02)


def test_a_short_wait_is_not_the_pace() -> None:
    assert not waits(outcome((0.1,) * 4, 0.004)) and waits(outcome((0.1,) * 4, 0.006))
    assert not waits(outcome((), 1.0))
