"""What one step takes, from many.

The median, which no single slow step moves; but the mean where a program waits for its data: batches of
several workers come in bursts, a long step and then as many short ones as there are workers. The median
is then one of the short ones, and only the mean says how many steps an hour holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.stats import median
from flatout.trial import Outcome

WAITING_SHARE = 0.05
"""Of a step: a program that waits longer for its loader is paced by it."""


def waits(outcome: Outcome) -> bool:
    """The program waits for its data in so large a part of its steps that they set its pace."""
    times = outcome.step_seconds
    return bool(times) and outcome.loader_wait_seconds_per_step > WAITING_SHARE * _mean(times)


def pace(times: Sequence[float], *, waiting: bool) -> float:
    """Seconds of one step. ``waiting``: the untouched program waits for its loader (``waits``)."""
    return _mean(times) if waiting else median(times)


def pace_of(outcome: Outcome) -> float:
    """Of a process's counted steps."""
    return pace(outcome.step_seconds, waiting=waits(outcome))


def _mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)
