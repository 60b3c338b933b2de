"""Which steps of a block count: not those whose batches were prepared while the program held."""

from __future__ import annotations

import pytest

from flatout.agent.record import Block, Clock


def block(steps: list[float], waits: list[float], *, held: float, still: bool = False) -> Block:
    """``steps``: seconds from one step's end to the next; the first step ends at moment 0."""
    made = Block(Clock(None), 1)
    made.after_hold, made.held_seconds, made.held_still = True, held, still
    now = 0.0
    made.ends = [now := now + seconds for seconds in [0.0, *steps]]
    made.waits = [0.0, *waits]
    made.batches = len(made.ends)
    return made


STARVED = [0.01] * 6 + [0.1] * 10
WAITS = [0.0] * 6 + [0.09] * 10


@pytest.mark.parametrize(
    ("held", "prefetched", "still", "left_out"),
    [
        (10.0, 6, False, 7),  # all that fits into the queue
        (0.35, 6, False, 5),  # a batch every 0.1 s
        (0.002, 6, False, 2),  # a hold of a moment
        (10.0, 6, True, 1),  # nothing was prepared by what stood still
        (10.0, 0, False, 1),  # no workers
    ],
)
def test_what_a_starving_loader_prepared_is_left_out(
    held: float, prefetched: int, still: bool, left_out: int
) -> None:
    seconds = block(STARVED, WAITS, held=held, still=still).step_seconds(prefetched)
    assert seconds[:left_out] == [None] * left_out
    assert None not in seconds[left_out:]


def test_a_loader_that_keeps_up_spoils_nothing() -> None:
    seconds = block([0.1] * 10, [0.0001] * 10, held=10.0).step_seconds(4)
    assert seconds[0] is None and None not in seconds[1:]


def test_a_block_shorter_than_what_was_prepared_is_left_out_as_far_as_the_hold_allows() -> None:
    short = block([0.01, 0.01, 0.1, 0.1], [0.0, 0.0, 0.09, 0.09], held=0.15)
    assert short.step_seconds(16)[:3] == [None] * 3
    assert None not in short.step_seconds(16)[3:]


def test_the_first_block_begins_with_the_program() -> None:
    first = block(STARVED, WAITS, held=0.0)
    first.after_hold = False
    assert None not in first.step_seconds(6)[1:]
