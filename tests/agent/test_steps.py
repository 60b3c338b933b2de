"""When does a step of the program end? Notes go in, steps come out; no torch."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from flatout.agent.steps import BACKWARD, BACKWARDS_WITHOUT_OPTIMIZER, LOST_AFTER, Nesting, Steps


class Optimizer:
    """Anything that can be referred to weakly."""


def play(steps: Steps, sequence: list[Any], alive: list[Any]) -> int:
    """Give notes until the counter understands; the number of notes that it took."""
    for count, note in enumerate(sequence, 1):
        if note == BACKWARD:
            steps.backward_ended()
        else:
            steps.optimizer_ended(note, inside_backward=False)
        if steps.discovering and steps.understood(alive):
            return count
    raise AssertionError("not understood")


def test_one_optimiser_is_understood_after_two_steps() -> None:
    optimizer, steps = Optimizer(), Steps()
    assert play(steps, [BACKWARD, optimizer] * 5, [optimizer]) == 4
    assert steps.settle() == [1, 1, 2, 2]
    assert (steps.unit, steps.anchor, steps.taken) == ("optimizer", 0, 2)
    assert steps.optimizer_ended(optimizer, inside_backward=False)
    assert steps.taken == 3


def test_accumulation_is_counted_in_backwards_per_step() -> None:
    optimizer, steps = Optimizer(), Steps()
    play(steps, ([BACKWARD] * 8 + [optimizer]) * 2, [optimizer])
    steps.settle()
    assert steps.backwards_per_step() == 8.0


def test_two_optimisers_that_take_turns_end_a_step_with_the_last() -> None:
    critic, generator, steps = Optimizer(), Optimizer(), Steps()
    play(steps, [BACKWARD, BACKWARD, critic, BACKWARD, generator] * 3, [critic, generator])
    steps.settle()
    assert (steps.anchor, steps.taken) == (1, 2)
    assert steps.backwards_per_step() == 3.0
    assert not steps.optimizer_ended(critic, inside_backward=False)
    assert steps.optimizer_ended(generator, inside_backward=False)


def test_the_rarest_of_several_optimisers_is_the_anchor() -> None:
    critic, generator, steps = Optimizer(), Optimizer(), Steps()
    play(steps, ([BACKWARD, critic] * 5 + [BACKWARD, generator]) * 3, [critic, generator])
    steps.settle()
    assert (steps.anchor, steps.taken) == (1, 2)


def test_the_first_to_step_can_be_the_rarest() -> None:
    generator, critic, steps = Optimizer(), Optimizer(), Steps()
    play(steps, ([generator] + [critic] * 3) * 4, [critic, generator])
    steps.settle()
    assert steps.anchor == 0


def test_an_optimiser_that_never_steps_does_not_block_for_ever() -> None:
    used, unused, steps = Optimizer(), Optimizer(), Steps()
    assert play(steps, [used] * 40, [used, unused]) == 24
    steps.settle()
    assert (steps.anchor, steps.taken) == (0, 24)


def test_without_optimiser_objects_a_backward_is_a_step() -> None:
    steps = Steps()
    assert play(steps, [BACKWARD] * 20, []) == BACKWARDS_WITHOUT_OPTIMIZER
    steps.settle()
    assert (steps.unit, steps.taken) == ("backward", BACKWARDS_WITHOUT_OPTIMIZER)
    assert steps.backward_ended()


def test_long_accumulation_is_not_taken_for_a_program_without_optimiser() -> None:
    optimizer, steps = Optimizer(), Steps()
    play(steps, ([BACKWARD] * 40 + [optimizer]) * 2, [optimizer])
    steps.settle()
    assert steps.unit == "optimizer"
    assert steps.backwards_per_step() == 40.0


def test_optimisers_inside_the_backward_make_it_the_step() -> None:
    optimizers, steps = [Optimizer(), Optimizer()], Steps()
    for optimizer in optimizers:
        steps.optimizer_ended(optimizer, inside_backward=True)
    assert not steps.understood(optimizers)
    steps.backward_ended()
    assert steps.understood(optimizers)
    steps.settle()
    assert (steps.unit, steps.taken) == ("backward", 1)
    assert not steps.optimizer_ended(optimizers[0], inside_backward=True)


def test_a_new_optimiser_takes_the_place_of_one_that_is_gone() -> None:
    steps = Steps("optimizer", 0)
    optimizer = Optimizer()
    assert steps.optimizer_ended(optimizer, inside_backward=False)
    del optimizer
    assert steps.optimizer_ended(Optimizer(), inside_backward=False)


def test_another_optimiser_takes_over_from_an_anchor_that_stopped() -> None:
    first, second, steps = Optimizer(), Optimizer(), Steps("optimizer", 0)
    steps.optimizer_ended(first, inside_backward=False)
    ended = [steps.optimizer_ended(second, inside_backward=False) for _ in range(LOST_AFTER + 3)]
    assert ended == [False] * LOST_AFTER + [True] * 3
    assert steps.moved_anchor


class Nested:
    """Calls like torch's: a hook before, the function, a hook after unless it raised."""

    def __init__(self) -> None:
        self.nesting = Nesting()
        self.outermost: list[str] = []

    def call(self, name: str, inner: Any = None, error: Exception | None = None) -> None:
        self.nesting.enter(sys._getframe())
        if inner is not None:
            inner()
        if error is not None:
            raise error
        if self.nesting.leave():
            self.outermost.append(name)


def test_only_the_outermost_of_nested_steps_counts() -> None:
    nested = Nested()
    nested.call("outer", lambda: nested.call("inner"))
    assert nested.outermost == ["outer"]


def test_a_step_that_raised_does_not_hide_the_next() -> None:
    nested = Nested()
    with pytest.raises(ValueError):
        nested.call("raised", error=ValueError())
    nested.call("next")
    assert nested.outermost == ["next"]


def test_an_inner_step_that_raised_and_was_caught_does_not_hide_the_next() -> None:
    nested = Nested()

    def tries() -> None:
        with pytest.raises(ValueError):
            nested.call("inner", error=ValueError())

    nested.call("outer", tries)
    nested.call("next", lambda: nested.call("inner"))
    assert nested.outermost[-1] == "next"
