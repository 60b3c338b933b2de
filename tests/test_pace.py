"""What one step takes: the median, and the mean where the loader sets the pace."""

from __future__ import annotations

import pytest

from flatout.pace import pace, pace_of, waits
from flatout.trial import Outcome, State

BURSTS = (0.064, 0.001, 0.001, 0.014) * 5
"""As four workers deliver: 20 ms a batch."""


def outcome(times: tuple[float, ...], wait: float) -> Outcome:
    return Outcome(state=State.COMPLETED, step_seconds=times, loader_wait_seconds_per_step=wait)


def test_one_slow_step_moves_nothing() -> None:
    assert pace_of(outcome((0.1, 0.1, 0.1, 5.0), 0.0)) == 0.1


def test_bursts_of_a_loader_are_averaged() -> None:
    assert pace_of(outcome(BURSTS, 0.018)) == pytest.approx(0.020)
    assert pace(BURSTS, waiting=False) < 0.015, "the median is one of the short ones"


def test_a_short_wait_is_not_the_pace() -> None:
    assert not waits(outcome((0.1,) * 4, 0.004)) and waits(outcome((0.1,) * 4, 0.006))
    assert not waits(outcome((), 1.0))
