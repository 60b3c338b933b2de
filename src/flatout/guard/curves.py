"""Judgement by losses: the same steps of the plan and of the untouched program, same seed and data.

Both see the same batches, so what is judged is the difference of the two losses at the same step: in it the
batches' own difference, by far most of a curve's spread, is gone. A fault makes one side learn faster or
slower from the first steps on, so the difference drifts; rounding scatters it. Its scale is its own scatter
from step to step, and what the program has learnt by then; two unchanged runs' difference where there is
one. docs/decisions/0012 says why another seed is no scale for it, and what this cannot see.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pvariance

from flatout.guard import Judgement
from flatout.stats import MAD_TO_SIGMA, mad, median

MOST_STEPS = 100
START_STEPS = 3
"""Whose mean is where a curve starts: one batch may be an easy one."""
LEAST_STEPS = 8
WINDOWS = 4
"""The steps are smoothed to so many means. The first shows the least and is left out."""
PARTS = (1, 2, 4)
"""The whole, its first half and its first quarter are each looked at in such windows."""
LEAST_STEPS_OF_PART = 16
SIGMAS, SPREADS = 10.0, 4.0
"""Of a window's mean, from its scatter from step to step; and of how far the differences wander in it. Of
the honest plans that were measured none exceeded both in two windows together."""
LEARNT = 0.04
"""Of what the program has learnt by then, that a drift in two windows together must exceed."""
SMALL = 0.005
"""Relative to the loss: a drift below it is never called one."""
LEARNT_ALONE, SMALL_ALONE = 0.25, 0.05
"""The same of the last window alone: the plan diverges at the end."""
LEARNT_REDRAWN, SMALL_REDRAWN = 0.5, 0.02
"""The same where the plan draws other random numbers, and so trains on another path."""
AGAIN = 3.0
"""Times the largest window of two unchanged runs' difference."""
CLIMB, CLIMB_SIGMAS = 0.2, 6.0
"""Of its first loss, and of its batches' spread: a program whose loss climbs by more is unstable itself."""
OUTLIER_SIGMAS, OUTLIER_SHARE = 10.0, 0.05
OUTLIERS_ALLOWED = 1
COUNTED_STEPS = 10

Losses = Sequence[tuple[int, float]]


def per_step(losses: Losses) -> dict[int, float]:
    """Step -> mean of its losses (one per backward)."""
    sums: dict[int, list[float]] = {}
    for step, loss in losses:
        sums.setdefault(step, []).append(loss)
    return {step: math.fsum(found) / len(found) for step, found in sums.items()}


def judge_losses(plan: Losses, baseline: Losses, again: Losses = (), *, redrawn: bool = False) -> Judgement:
    """``again``: the losses of a second unchanged run. ``redrawn``: the plan may draw other random numbers
    than the untouched program, such as another dropout."""
    theirs, ours, second = per_step(baseline), per_step(plan), per_step(again)
    everything = sorted(theirs.keys() & ours.keys())
    if not everything:
        return Judgement(passed=None, note="no loss of the same steps to compare")
    counts = _other_counts(everything, plan, baseline)
    if counts:
        return Judgement(passed=False, note=counts)
    common = everything[:MOST_STEPS]
    bad = next(
        (step for step in common if math.isfinite(theirs[step]) and not math.isfinite(ours[step])), None
    )
    if bad is not None:
        return Judgement(passed=False, note=f"the loss becomes {ours[bad]} at step {bad}")
    finite = [step for step in common if math.isfinite(theirs[step]) and math.isfinite(ours[step])]
    if not finite:
        return Judgement(
            passed=None,
            note=f"losses cannot be judged: the untouched program's are {theirs[common[0]]} from the start",
        )
    if len(finite) < LEAST_STEPS:
        return Judgement(
            passed=None, note=f"only {len(finite)} common steps: too few to compare loss curves"
        )
    if len({theirs[step] for step in finite}) == 1:
        return _of_constant(finite, ours, theirs[finite[0]])
    if all(ours[step] == theirs[step] for step in finite):
        return Judgement(passed=True, note=f"losses equal to the bit over {len(finite)} steps")
    unchanged = {step: second[step] for step in finite if math.isfinite(second.get(step, math.nan))}
    return _by_numbers(finite, ours, theirs, unchanged, redrawn=redrawn)


def _other_counts(steps: list[int], plan: Losses, baseline: Losses) -> str:
    """A fault where the last steps that both have taken, however late, have another number of losses each:
    the guard's own trials end after a few. The very last may be unfinished."""
    late = steps[-COUNTED_STEPS - 1 : -1]
    if len(late) < COUNTED_STEPS:
        return ""
    ours, theirs = Counter(step for step, _ in plan), Counter(step for step, _ in baseline)
    usual = {theirs[step] for step in late}
    mine = {ours[step] for step in late}
    if len(usual) > 1 or usual & mine:
        return ""  # as many as its data or its numbers ask for, or none missing in some step
    many = " to ".join(str(count) for count in sorted({min(mine), max(mine)}))
    which = f"in each step from {late[0]} to {late[-1]}"
    return f"{many} backward calls {which}, untouched {usual.pop()}: other samples"


def _of_constant(steps: list[int], ours: dict[int, float], theirs: float) -> Judgement:
    """A loss that never changes shows a fault where the plan's is another one, and else nothing."""
    apart = max((ours[step] for step in steps), key=lambda loss: abs(loss - theirs))
    if abs(apart - theirs) > SMALL_REDRAWN * abs(theirs):
        return Judgement(
            passed=False,
            note=f"the loss is {apart:.4g}, the untouched program's {theirs:.4g} at every step",
        )
    return Judgement(
        passed=None,
        note=f"losses cannot be judged: the untouched program's is {theirs:.4g} at every step",
    )


@dataclass(frozen=True, kw_only=True)
class Window:
    """Some steps, smoothed."""

    first: int
    last: int
    apart: float
    """Mean of plan minus untouched."""
    error: float
    """Of that mean, were the steps independent."""
    wander: float
    """Standard deviation of the differences in it, without that scatter."""
    level: float
    mean: float
    """Of the untouched program's loss."""
    learnt: float
    """By how much the untouched program's loss has changed from its first steps, the most so far."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far apart a window may be."""

    learnt: float
    small: float
    floor: float
    spreads: float = SPREADS
    of_level: bool = True
    """A loss that has shrunk by orders of magnitude: another order is not the same."""

    def allowed(self, window: Window) -> float:
        matters = max(self.learnt * window.learnt, self.small * window.level)
        if self.of_level:
            matters = min(matters, window.level)
        return max(SIGMAS * window.error, self.spreads * window.wander, matters, self.floor)

    def exceeded(self, window: Window) -> bool:
        return abs(window.apart) > self.allowed(window)


def _by_numbers(
    steps: list[int],
    ours: dict[int, float],
    theirs: dict[int, float],
    unchanged: dict[int, float],
    *,
    redrawn: bool,
) -> Judgement:
    apart = [ours[step] - theirs[step] for step in steps]
    untouched = [theirs[step] for step in steps]
    windows = _windows(steps, apart, untouched)
    climb = _climb(untouched, windows)
    floor = max(climb, AGAIN * _most_apart_unchanged(windows, theirs, unchanged))
    pair = Tolerance(learnt=LEARNT, small=SMALL, floor=floor)
    alone = Tolerance(learnt=LEARNT_ALONE, small=SMALL_ALONE, floor=floor, spreads=0.0)
    if redrawn:
        pair = alone = Tolerance(learnt=LEARNT_REDRAWN, small=SMALL_REDRAWN, floor=floor, of_level=False)
    for part in PARTS:
        count = len(steps) // part
        if part > 1 and count < LEAST_STEPS_OF_PART:
            continue
        # what learns fast has learnt all, the one way or the other, before the last windows
        of_part = windows if part == 1 else _windows(steps[:count], apart[:count], untouched[:count])
        for before, window in itertools.pairwise(of_part[1:]):
            if before.apart * window.apart > 0 and pair.exceeded(before) and pair.exceeded(window):
                return _drift(window, pair, first=before.first)
    late = windows[-1]
    if alone.exceeded(late):
        return _drift(late, alone, first=late.first)
    outliers = _outliers(steps, apart, theirs, unchanged, climb)
    if len(outliers) > OUTLIERS_ALLOWED:
        step = outliers[0]
        return Judgement(
            passed=False,
            note=f"the loss leaps in {len(outliers)} of {len(steps)} steps, first in step {step}: "
            f"{ours[step]:.4g}, untouched {theirs[step]:.4g}",
        )
    note = f"loss curves together over {len(steps)} steps ({late.apart:+.2g} at {late.level:.3g})"
    if outliers:
        step = outliers[0]
        note += f", but for step {step}: {ours[step]:.4g}, untouched {theirs[step]:.4g}"
    if climb:
        note += f"; the untouched program's own climbs by {climb:.2g}, nothing smaller would be seen"
    return Judgement(passed=True, note=note)


def _start_of(untouched: list[float]) -> float:
    return math.fsum(untouched[:START_STEPS]) / START_STEPS


def _windows(steps: list[int], apart: list[float], untouched: list[float]) -> list[Window]:
    count = min(WINDOWS, len(steps) // (LEAST_STEPS // 2))
    size = len(steps) // count
    start = _start_of(untouched)
    learnt, found = 0.0, []
    for place in range(len(steps) - count * size, len(steps), size):
        part = apart[place : place + size]
        changes = [b - a for a, b in itertools.pairwise(part)]
        middle = math.fsum(changes) / len(changes)
        # neighbours differ by the square root of two of one value's spread
        scatter = math.sqrt(math.fsum((one - middle) ** 2 for one in changes) / (len(changes) - 1) / 2.0)
        mean = math.fsum(untouched[place : place + size]) / size
        learnt = max(learnt, abs(mean - start))
        found.append(
            Window(
                first=steps[place],
                last=steps[place + size - 1],
                apart=math.fsum(part) / size,
                wander=math.sqrt(max(0.0, pvariance(part) - scatter**2)),
                error=scatter / math.sqrt(size),
                level=median([abs(loss) for loss in untouched[place : place + size]]),
                mean=mean,
                learnt=learnt,
            )
        )
    return found


def _drift(window: Window, tolerance: Tolerance, *, first: int) -> Judgement:
    where = "above" if window.apart > 0 else "below"
    text = (
        f"the loss is {abs(window.apart):.3g} {where} the untouched program's {window.mean:.3g} over steps "
    )
    text += f"{first} to {window.last} (allowed {tolerance.allowed(window):.2g})"
    if window.apart < 0:
        text += ": on the same batches, what is learnt so much faster is another task"
    return Judgement(passed=False, note=text)


def _climb(untouched: list[float], windows: list[Window]) -> float:
    """How far an unstable program's loss climbs above its start; nil for others. What throws itself back
    like that is thrown elsewhere by any rounding."""
    start = _start_of(untouched)
    changes = [b - a for a, b in itertools.pairwise(untouched)]
    spread = MAD_TO_SIGMA * mad(changes) / math.sqrt(2.0)
    climb = max(window.mean for window in windows) - start
    size = len(untouched) // len(windows)
    if climb <= CLIMB_SIGMAS * spread * math.sqrt(1.0 / size + 1.0 / START_STEPS):
        climb = 0.0
    peak = max(untouched) - max(untouched[:START_STEPS])
    if peak > CLIMB_SIGMAS * spread:
        climb = max(climb, peak)
    return climb if climb > CLIMB * abs(start) else 0.0


def _most_apart_unchanged(
    windows: list[Window], theirs: dict[int, float], unchanged: dict[int, float]
) -> float:
    """The largest window of two unchanged runs: how far a program that is not the same twice leads itself
    away."""
    most = 0.0
    for window in windows:
        both = [unchanged[step] - theirs[step] for step in unchanged if window.first <= step <= window.last]
        if len(both) >= LEAST_STEPS // 2:
            most = max(most, abs(math.fsum(both) / len(both)))
    return most


def _outliers(
    steps: list[int],
    apart: list[float],
    theirs: dict[int, float],
    unchanged: dict[int, float],
    climb: float,
) -> list[int]:
    """Steps whose difference stands far out of those around it, and farther than the untouched program's
    loss ever leaps, or two unchanged runs differ."""
    reach = LEAST_STEPS // 2
    around = [median(apart[max(0, place - reach) : place + reach + 1]) for place in range(len(steps))]
    left = [value - usual for value, usual in zip(apart, around, strict=True)]
    leaps = [abs(theirs[b] - theirs[a]) for a, b in itertools.pairwise(steps)]
    own = max([climb, *leaps, *(abs(unchanged[step] - theirs[step]) for step in unchanged)])
    scatter = MAD_TO_SIGMA * mad(left)
    return [
        step
        for step, value in zip(steps, left, strict=True)
        if abs(value) > max(OUTLIER_SIGMAS * scatter, OUTLIER_SHARE * abs(theirs[step]), own)
    ]
