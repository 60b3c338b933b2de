"""Judgement by losses: the same steps of the plan and of the untouched program, same seed and data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from flatout.guard import Judgement
from flatout.stats import MAD_TO_SIGMA, mad, median

MOST_STEPS = 100
LEAST_STEPS = 8
SIGMAS = 4.0
MATTERS = 0.02
"""Relative: a smoothed loss nearer than this is never called diverging."""

Losses = Sequence[tuple[int, float]]


def per_step(losses: Losses) -> dict[int, float]:
    """Step -> mean of its losses (one per backward)."""
    sums: dict[int, list[float]] = {}
    for step, loss in losses:
        sums.setdefault(step, []).append(loss)
    return {step: math.fsum(found) / len(found) for step, found in sums.items()}


def judge_losses(plan: Losses, baseline: Losses, again: Losses = ()) -> Judgement:
    """``again``: the losses of a second unchanged run, whose distance from the first is the program's own
    noise; where it is nil, the step-to-step spread of the baseline stands in (the plan's rounding errors
    grow, while its batches stay the same)."""
    theirs, ours, second = per_step(baseline), per_step(plan), per_step(again)
    common = sorted(theirs.keys() & ours.keys())[:MOST_STEPS]
    if not common:
        return Judgement(passed=None, note="no loss of the same steps to compare")
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
    return _by_numbers(finite, ours, theirs, second)


def _of_constant(steps: list[int], ours: dict[int, float], theirs: float) -> Judgement:
    """A loss that never changes shows a fault where the plan's is another one, and else nothing."""
    apart = max((ours[step] for step in steps), key=lambda loss: abs(loss - theirs))
    if apart > theirs and apart - theirs > MATTERS * abs(theirs):
        return Judgement(
            passed=False,
            note=f"the loss is {apart:.4g}, the untouched program's {theirs:.4g} at every step",
        )
    return Judgement(
        passed=None,
        note=f"losses cannot be judged: the untouched program's is {theirs:.4g} at every step",
    )


def _by_numbers(
    steps: list[int], ours: dict[int, float], theirs: dict[int, float], second: dict[int, float]
) -> Judgement:
    scale, named = _noise(steps, theirs, second)
    late = steps[-max(LEAST_STEPS // 2, len(steps) // 3) :]
    apart = math.fsum(ours[step] - theirs[step] for step in late) / len(late)
    level = median([abs(theirs[step]) for step in late])
    allowed = max(SIGMAS * scale / math.sqrt(len(late)), MATTERS * level)
    if apart > allowed:
        return Judgement(
            passed=False,
            note=f"the loss is {apart:.3g} above the untouched program's over steps {late[0]} to "
            f"{late[-1]} (allowed {allowed:.2g}, from {named})",
        )
    return Judgement(
        passed=True,
        note=f"loss curves together over {len(steps)} steps ({apart:+.2g} at {level:.3g})",
    )


def _noise(steps: list[int], theirs: dict[int, float], second: dict[int, float]) -> tuple[float, str]:
    """One step's standard deviation, and what it was taken from."""
    both = [step for step in steps if step in second and math.isfinite(second[step])]
    apart = [second[step] - theirs[step] for step in both]
    if any(apart):
        return MAD_TO_SIGMA * median([abs(value) for value in apart]), "two unchanged runs"
    changes = [theirs[b] - theirs[a] for a, b in itertools.pairwise(steps)]
    # neighbours differ by the square root of two of one value's spread
    return MAD_TO_SIGMA * mad(changes) / math.sqrt(2.0), "its step-to-step spread"
