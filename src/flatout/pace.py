"""What one step takes, from many.

The median, which no single slow step moves; but where a program waits for its data, the wait counts in
full: batches of several workers come in bursts, a long step and then as many short ones as there are
workers. The median is then one of the short ones, and only with the mean wait added says how many steps an
hour holds.

The mean alone would not do: it also counts what programs do between some steps, such as an evaluation after
every ninth, and two turns then differ by whether one fell into them.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.stats import median
from flatout.trial import Block, Outcome

WAITING_SHARE = 0.05
"""Of a step: a program that waits longer for its loader is paced by it."""


def waits(outcome: Outcome) -> bool:
    """The program waits for its data in so large a part of its steps that they set its pace."""
    times, wait = outcome.step_seconds, outcome.loader_wait_seconds_per_step
    return bool(times) and wait > WAITING_SHARE * pace(times, wait_seconds=wait)


def pace(times: Sequence[float], *, wait_seconds: float | None = None) -> float:
    """Seconds of one step. ``wait_seconds``: mean wait for the loader, where that sets the pace."""
    middle = median(times)
    if wait_seconds is None:
        return middle
    # where every step waits alike, the median has the wait in it already, and the mean is right
    return min(sum(times) / len(times), middle + wait_seconds)


def pace_of(outcome: Outcome) -> float:
    """Of a process's counted steps."""
    wait = outcome.loader_wait_seconds_per_step if waits(outcome) else None
    return pace(outcome.step_seconds, wait_seconds=wait)


def wait_of(block: Block) -> float:
    """Mean seconds of a step's wait for the loader. An epoch's first batch is left out: that its workers
    start says nothing of the turn that it falls into."""
    return max(0.0, block.loader_wait_seconds - block.loader_start_seconds) / max(1, block.steps)
