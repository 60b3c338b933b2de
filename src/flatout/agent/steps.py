"""When does a step of the program end? Pure bookkeeping: nothing here knows of torch.

A step ends with the outermost ``step`` of one optimiser, the *anchor*: of several, the one that steps
least often in the first cycles (ties: the last by order of first step). Two other kinds of program step
by their backward calls: those with no optimiser object, and those whose optimisers run inside the
backward, one a parameter.

Until that is understood the counter is *discovering*: it only takes notes, and ``settle`` turns the
notes into steps when enough was seen.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

BACKWARDS_WITHOUT_OPTIMIZER = 6
"""After so many, in a program that has made no optimiser object, a step is a backward call."""
BACKWARDS_BEFORE_FIRST_STEP = 512
"""After so many the optimiser objects are taken for unused (or the accumulation for endless)."""
CYCLES = 2
MOST_STEPS_WATCHED = 24
LOST_AFTER = 16
"""Steps of other optimisers since the anchor's last, beyond its usual pause, before another is chosen."""

BACKWARD = -1
"""Stands for 'the backward call' where an optimiser's index could stand."""


class Steps:
    """Counts the program's steps from backward calls and outermost optimiser steps."""

    def __init__(self, unit: str | None = None, anchor: int | None = None) -> None:
        self.unit = unit
        self.anchor = BACKWARD if unit == "backward" else anchor
        self.taken = 0
        self.moved_anchor = False
        """The anchor that this counter was given or had chosen stopped stepping, and another took over."""
        self.marks: list[int] = []
        """While discovering: what ended, in order: ``BACKWARD`` or an optimiser's index."""
        self._optimizers: list[Any] = []
        self._since_anchor = 0
        self._longest_pause = 0
        self._inside_backward = False

    @property
    def discovering(self) -> bool:
        return self.unit is None or self.anchor is None

    def index(self, optimizer: Any) -> int:
        """Its place by order of first step. One made anew takes the place of one that is gone."""
        gone = None
        for place, reference in enumerate(self._optimizers):
            known = reference()
            if known is optimizer:
                return place
            if known is None and gone is None:
                gone = place
        if gone is not None:
            self._optimizers[gone] = weakref.ref(optimizer)
            return gone
        self._optimizers.append(weakref.ref(optimizer))
        return len(self._optimizers) - 1

    def stepped(self) -> list[Any]:
        """The optimisers seen to step and still alive, by index."""
        return [known for known in (reference() for reference in self._optimizers) if known is not None]

    def optimizer_ended(self, optimizer: Any, *, inside_backward: bool) -> bool:
        """Note an outermost optimiser step. True when it ends a step of the program."""
        index = self.index(optimizer)
        if self.discovering:
            if inside_backward:
                self._inside_backward = True
            else:
                self.marks.append(index)
            return False
        if inside_backward or self.anchor == BACKWARD:
            return False
        if index == self.anchor:
            self._longest_pause = max(self._longest_pause, self._since_anchor)
            self._since_anchor = 0
            self.taken += 1
            return True
        self._since_anchor += 1
        if self._since_anchor > LOST_AFTER + 3 * self._longest_pause:
            self.anchor = index
            self.moved_anchor = True
            self._since_anchor = self._longest_pause = 0
            self.taken += 1
            return True
        return False

    def backward_ended(self) -> bool:
        """Note an outermost backward call. True when it ends a step of the program."""
        if self.discovering:
            self.marks.append(BACKWARD)
            return False
        if self.anchor != BACKWARD:
            return False
        self.taken += 1
        return True

    def understood(self, alive: Iterable[Any]) -> bool:
        """While discovering: has enough been seen? ``alive``: all optimisers that the program made."""
        if not self.marks:
            return False
        last = self.marks[-1]
        if self._inside_backward:
            return last == BACKWARD
        steps = [mark for mark in self.marks if mark != BACKWARD]
        if not steps:
            waiting = any(True for _ in alive)
            needed = BACKWARDS_BEFORE_FIRST_STEP if waiting else BACKWARDS_WITHOUT_OPTIMIZER
            return len(self.marks) >= needed
        if last != self._rarest(steps):
            return False
        if len(steps) >= MOST_STEPS_WATCHED:
            return True
        counts = {index: steps.count(index) for index in set(steps)}
        idle = [one for one in alive if not any(one is known for known in self.stepped())]
        return not idle and min(counts.values()) >= CYCLES

    def settle(self) -> list[int]:
        """Choose unit and anchor from the notes. Returns, for each note, the step in which it fell.

        Steps count from 1; a note after the last step's end has ``taken + 1``.
        """
        steps = [mark for mark in self.marks if mark != BACKWARD]
        if self._inside_backward or not steps:
            self.unit, self.anchor = "backward", BACKWARD
        else:
            self.unit, self.anchor = "optimizer", self._rarest(steps)
        numbers = []
        for mark in self.marks:
            numbers.append(self.taken + 1)
            if mark == self.anchor:
                self.taken += 1
        return numbers

    def backwards_per_step(self) -> float:
        """From the notes, over whole steps, the first left out where there are more."""
        if self.anchor == BACKWARD:
            return 1.0
        counts, current = [], 0
        for mark in self.marks:
            if mark == BACKWARD:
                current += 1
            elif mark == self.anchor:
                counts.append(current)
                current = 0
        counts = counts[1:] or counts
        return sum(counts) / len(counts) if counts else 0.0

    @staticmethod
    def _rarest(steps: list[int]) -> int:
        return max(set(steps), key=lambda index: (-steps.count(index), index))


class Nesting:
    """Which ``optimizer.step`` is the outermost, also when an inner one ends by an exception.

    A subclass that calls ``super().step()`` fires torch's hooks twice, a wrapper around another
    optimiser too; and a post hook never fires when ``step`` raises. So the outermost call is known by
    its frame: when that is no longer on the stack, the call is over, whatever the hooks said.
    """

    def __init__(self) -> None:
        self._frame: Any = None
        self.depth = 0

    def enter(self, frame: Any) -> bool:
        """``frame`` is the hooked ``step``'s own. True when this is an outermost call."""
        if self.depth and not _on_stack(self._frame, frame.f_back):
            self.depth = 0
        self.depth += 1
        if self.depth > 1:
            return False
        self._frame = frame
        return True

    def leave(self) -> bool:
        """True when the outermost call ends."""
        if self.depth == 0:
            return False
        self.depth -= 1
        if self.depth:
            return False
        self._frame = None
        return True


def _on_stack(wanted: Any, frame: Any) -> bool:
    while frame is not None:
        if frame is wanted:
            return True
        frame = frame.f_back
    return False
