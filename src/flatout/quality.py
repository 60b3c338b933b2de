"""Equal loss: whether the plan trains as well as the untouched program, over several seeds.

For each seed both are trained for the same number of steps. The level is the smoothed loss that the
untouched program ends with; the question is how far the plan's is above it after as many steps (not
worse, at a margin of what seeds alone do to the untouched program), and after how many steps and how
much time the plan gets there. A one-sided test of non-inferiority, paired by seed, since equal seeds mostly
mean equal weights and batches. Of few seeds the interval is wide, and the verdict often "cannot tell".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flatout.stats import MAD_TO_SIGMA, mad, t_quantile

CONFIDENCE = 0.95
"""One-sided for the difference of losses, two-sided for the ratios of steps and time."""
MARGIN_SPREADS = 1.0
"""Standard deviations over seeds of the untouched program's level by which the plan may be worse."""
LEAST_SMOOTHED, MOST_SMOOTHED = 5, 100

Curve = Mapping[int, float]
"""Step -> mean of its losses."""


class Equal(StrEnum):
    """How it ended."""

    YES = "equal quality"
    WORSE = "worse"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One seed. Losses are smoothed; steps are counted from the first."""

    seed: int
    level: float
    """What the untouched program ends with."""
    plan_level: float
    """What the plan has after as many steps."""
    baseline_steps: int | None
    """After which the untouched program first is at its level."""
    plan_steps: int | None
    """After which the plan is; None: not within the steps that it was given."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean over seeds with its bounds; None where one seed shows no spread."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Quality:
    """See the module. Ratios above 1: the plan needs less."""

    plan: str
    call: Equal
    reason: str
    steps: int
    """That the untouched program was given in each seed."""
    smoothed: int
    """Steps that one smoothed loss is the mean of."""
    seeds: tuple[SeedResult, ...]
    difference: Interval | None
    """Plan's level minus the untouched program's; its bounds are one-sided."""
    margin: float | None
    spread: float | None
    """Standard deviation over seeds of the untouched program's level."""
    steps_ratio: Interval | None
    """Its steps to the level over the plan's."""
    time_ratio: Interval | None
    """The same in time, by the ratio of step times that was proved, whose bounds widen these; starts and
    compiling left out."""
    confidence: float = CONFIDENCE


def smoothed_over(steps: int) -> int:
    """Steps that one smoothed loss is the mean of."""
    return max(1, min(MOST_SMOOTHED, max(LEAST_SMOOTHED, steps // 10), steps))


def judge_quality(
    baseline: Mapping[int, Curve],
    plan: Mapping[int, Curve],
    *,
    key: str,
    steps: int,
    step_ratio: Interval,
) -> Quality:
    """``baseline`` and ``plan``: seed -> curve. Seeds that only one of them has are left out.
    ``step_ratio``: the untouched program's step time over the plan's, as proved."""
    window = smoothed_over(steps)
    seeds = sorted(baseline.keys() & plan.keys())
    results = tuple(_seed_result(seed, baseline[seed], plan[seed], steps, window) for seed in seeds)
    difference = margin = spread = steps_ratio = time_ratio = None
    call, reason = Equal.UNKNOWN, "no seed was trained to its end"
    if results:
        same = len(seeds) > 1 and all(
            list(baseline[seed].values()) == list(baseline[seeds[0]].values()) for seed in seeds
        )
        count = 1 if same else len(results)
        levels = [result.level for result in results]
        spread = _deviation(levels) if count > 1 else None
        noise = max((_own_noise(baseline[seed], steps, window) for seed in seeds), default=0.0)
        margin = MARGIN_SPREADS * max(spread or 0.0, noise)
        call, reason, difference = _difference(results, margin, alone=count == 1)
        if same:
            reason = f"the program sets its own seeds, all runs are one; {reason}"
        elif not _falls(results, baseline, window):
            reason += "; its loss does not fall within these steps, so equal loss says little"
        steps_ratio = _steps_ratio(results, alone=count == 1)
        time_ratio = _product(steps_ratio, step_ratio) if steps_ratio is not None else None
    return Quality(
        plan=key,
        call=call,
        reason=reason,
        steps=steps,
        smoothed=window,
        seeds=results,
        difference=difference,
        margin=margin,
        spread=spread,
        steps_ratio=steps_ratio,
        time_ratio=time_ratio,
    )


def _seed_result(seed: int, theirs: Curve, ours: Curve, steps: int, window: int) -> SeedResult:
    base, plan = _smooth(theirs, window), _smooth(ours, window)
    at_end = min(steps, len(theirs), len(ours))
    level = base[at_end - window] if at_end >= window else math.nan
    return SeedResult(
        seed=seed,
        level=level,
        plan_level=plan[at_end - window] if at_end >= window else math.nan,
        baseline_steps=_first_at(base, level, window),
        plan_steps=_first_at(plan, level, window),
    )


def _smooth(curve: Curve, window: int) -> list[float]:
    """Trailing means; the first is that of the first ``window`` steps."""
    losses = [curve[step] for step in sorted(curve)]
    return [math.fsum(losses[i : i + window]) / window for i in range(len(losses) - window + 1)]


def _first_at(smooth: Sequence[float], level: float, window: int) -> int | None:
    return next((place + window for place, loss in enumerate(smooth) if loss <= level), None)


def _own_noise(curve: Curve, steps: int, window: int) -> float:
    """Standard error of the level from the step-to-step noise of one run."""
    losses = [curve[step] for step in sorted(curve)][:steps]
    if len(losses) < 3 or not all(map(math.isfinite, losses)):
        return 0.0
    changes = [b - a for a, b in itertools.pairwise(losses)]
    return MAD_TO_SIGMA * mad(changes) / math.sqrt(2.0 * window)


def _falls(results: Sequence[SeedResult], baseline: Mapping[int, Curve], window: int) -> bool:
    """The untouched program's loss ends below where it began by more than its noise."""
    falls = [_smooth(baseline[result.seed], window)[0] - result.level for result in results]
    noise = max(_own_noise(baseline[result.seed], len(baseline[result.seed]), window) for result in results)
    return math.fsum(falls) / len(falls) > 2.0 * noise


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _difference(
    results: Sequence[SeedResult], margin: float, *, alone: bool
) -> tuple[Equal, str, Interval | None]:
    bad = [result for result in results if not math.isfinite(result.level)]
    if bad:
        return (
            Equal.UNKNOWN,
            f"the untouched program's own loss is not a number with seed {bad[0].seed}",
            None,
        )
    lost = [result for result in results if not math.isfinite(result.plan_level)]
    if lost:
        return Equal.WORSE, f"the plan's loss is not a number with seed {lost[0].seed}", None
    apart = [result.plan_level - result.level for result in results]
    mean = math.fsum(apart) / len(apart)
    if not any(apart):
        return Equal.YES, "the losses are equal to the bit", Interval(value=0.0, low=0.0, high=0.0)
    if alone:
        return (
            Equal.UNKNOWN,
            f"one seed shows no spread: the loss is {mean:+.3g} apart",
            Interval(value=mean, low=None, high=None),
        )
    half = t_quantile(2.0 * (1.0 - CONFIDENCE), len(apart) - 1) * _deviation(apart) / math.sqrt(len(apart))
    interval = Interval(value=mean, low=mean - half, high=mean + half)
    numbers = f"its loss is {mean:+.3g} [{mean - half:+.3g}, {mean + half:+.3g}] apart after as many steps"
    if mean + half <= margin:
        return Equal.YES, f"{numbers}; up to {margin:.3g} is what seeds alone do", interval
    if mean - half > 0.0:
        return Equal.WORSE, f"{numbers}; more than the {margin:.3g} that seeds alone do", interval
    return Equal.UNKNOWN, f"{numbers}; {margin:.3g} is what seeds alone do: more seeds or steps", interval


def _product(a: Interval, b: Interval) -> Interval:
    """Of two ratios; the bounds are multiplied too, which is the widest that they can be together."""
    return Interval(
        value=a.value * b.value,
        low=a.low * b.low if a.low is not None and b.low is not None else None,
        high=a.high * b.high if a.high is not None and b.high is not None else None,
    )


def _steps_ratio(results: Sequence[SeedResult], *, alone: bool) -> Interval | None:
    """Geometric mean over seeds of the untouched program's steps over the plan's; None where a seed never
    got there."""
    logs = []
    for result in results:
        if not result.plan_steps or not result.baseline_steps:
            return None
        logs.append(math.log(result.baseline_steps / result.plan_steps))
    mean = math.fsum(logs) / len(logs)
    if alone:
        return Interval(value=math.exp(mean), low=None, high=None)
    half = t_quantile(1.0 - CONFIDENCE, len(logs) - 1) * _deviation(logs) / math.sqrt(len(logs))
    return Interval(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
