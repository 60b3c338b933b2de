"""The proof: two plans measured in turns, and what may be said about the ratio of their steps.

Two warmed processes take turns at step boundaries (A B, B A, A B, ...), so that clocks, heat and
neighbours fall on both alike; each turn is a block longer than the steps' autocorrelation, and each
pair of blocks gives one log ratio. Where two do not fit into memory, fresh processes alternate and each
pair of processes gives one.

Looked at a few times only, at numbers of pairs fixed beforehand; the error allowed is split over the
looks (Bonferroni), so that stopping early does not inflate false gains; the caller splits the search's
over its comparisons. The interval is therefore wider than a single look's and holds at the stopping time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from flatout.search.bench import Bench
from flatout.search.measure import Beaten, Seat, align, settle_steps, steps_of_block
from flatout.stats import RatioInterval, median, paired_ratio
from flatout.trial import Call, Verdict

LOOKS = (6, 10, 16, 24, 36)
SLOW_LOOKS = (3, 4, 6, 9, 13)
"""Where a pair takes long."""
SLOW_PAIR_SECONDS = 5.0
APART_LOOKS = (3, 4, 6)
"""Pairs of fresh processes."""
APART_BLOCKS = 4
RESIDENT = "resident pair"
NOISY = 0.10
"""Where less than such an effect could not have been seen, nothing is said."""


@dataclass
class Samples:
    """Block medians of the two sides, in seconds of a step, in the order measured."""

    a: list[float] = field(default_factory=list)
    b: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.a.clear()
        self.b.clear()

    @property
    def pairs(self) -> int:
        return min(len(self.a), len(self.b))

    def interval(self, alpha: float) -> RatioInterval | None:
        n = self.pairs
        return paired_ratio(self.a[:n], self.b[:n], alpha=alpha) if n >= 2 else None


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What a comparison is to decide."""

    alpha: float
    """Chance of a false claim that it may take, over all its looks."""
    matters: float
    """Gain from which b is worth having, as ratio - 1."""
    looks: tuple[int, ...] | None = None
    """Numbers of pairs of blocks to look at; None: by how long a pair takes. Fresh processes that take
    turns have looks of their own."""
    to_the_end: bool = False
    """Measure all pairs (for an estimate) instead of stopping when decided."""
    reserve_seconds: float = 0.0
    """Of the budget, not to be touched."""
    limit_seconds: float = math.inf
    """What measuring may take once both sides are warm. The first look's pairs are taken in any case, as
    long as the budget itself lasts."""
    least: int | None = None
    """Pairs that are taken whatever ``limit_seconds``; None: those of the first look."""


def prove(bench: Bench, key: str, a: Seat, b: Seat, aim: Aim) -> Verdict:
    """Compare two plans. Not yet in the ledger: the guard has its say first.

    Beaten when one of the two fails on its own. When both live and one runs out of memory, they are
    compared again by alternating fresh processes, and so are all later pairs of this search.
    """
    a.restarts = b.restarts = 0
    comparison = _Comparison(bench=bench, key=key, a=a, b=b, aim=aim)
    if bench.resident:
        try:
            return comparison.resident()
        except Beaten as beaten:
            other = a if beaten.seat is b else b
            # what works alone and not beside its like: a port, a lock file, or no memory for both
            memory = beaten.outcome.error == "OutOfMemory"
            if other.process is None or not (memory or not beaten.seat.plan):
                raise
            bench.resident = False
            bench.resident_note = (
                "two processes do not fit into memory side by side"
                if memory
                else f"two of its processes do not run side by side: {beaten.outcome.reason}"
            )
            bench.note("apart", {"reason": bench.resident_note})
            bench.say(bench.resident_note + ": starting them in turns instead", milestone=True)
    return comparison.apart()


def decide(interval: RatioInterval | None, matters: float, *, last: bool) -> Call | None:
    """What an interval says, or None while more pairs could still tell."""
    if interval is not None:
        if interval.low > 1.0 and (interval.ratio >= 1.0 + matters or last):
            return Call.BETTER
        if interval.high < 1.0:
            return Call.WORSE
        if interval.high < 1.0 + matters:
            return Call.SAME
    if not last:
        return None
    return Call.UNKNOWN if interval is None or interval.smallest_effect > NOISY else Call.SAME


def effect_text(effect: float) -> str:
    """``0.4%``, ``35%``, and from a doubling on ``2.5x``."""
    if effect >= 1.0:
        return f"{1.0 + min(effect, 99.0):.1f}x"
    return f"{effect:.0%}" if effect >= 0.1 else f"{effect:.1%}"


@dataclass(kw_only=True)
class _Comparison:
    bench: Bench
    key: str
    a: Seat
    b: Seat
    aim: Aim
    samples: Samples = field(default_factory=Samples)

    def resident(self) -> Verdict:
        bench = self.bench
        self.a.warm()
        self.b.warm()
        if bench.aligned:
            align(self.a, self.b)
        step_a, step_b = self.a.step_seconds(), self.b.step_seconds()
        steps = steps_of_block(bench, max(step_a, step_b), min(step_a, step_b))
        settle = settle_steps(bench)
        pair_seconds = (steps + settle) * (step_a + step_b)
        looks = self.aim.looks or (SLOW_LOOKS if pair_seconds > SLOW_PAIR_SECONDS else LOOKS)

        def measure(seat: Seat) -> float:
            return median(seat.block(steps, self.key, settle).step_seconds)

        return self._until_decided(measure, looks, pair_seconds, RESIDENT)

    def apart(self) -> Verdict:
        bench = self.bench
        self.a.close()
        self.b.close()
        pair_seconds = bench.start_seconds(self.a.plan) + bench.start_seconds(self.b.plan)

        def measure(seat: Seat) -> float:
            seat.warm()
            step = seat.step_seconds()
            steps = steps_of_block(bench, step, step)
            medians = [median(seat.block(steps, self.key).step_seconds) for _ in range(APART_BLOCKS)]
            seat.close()
            return median(medians)

        return self._until_decided(measure, APART_LOOKS, pair_seconds, "alternating fresh processes")

    def _until_decided(
        self, measure: Callable[[Seat], float], looks: tuple[int, ...], pair_seconds: float, method: str
    ) -> Verdict:
        bench, aim, samples = self.bench, self.aim, self.samples
        samples.clear()
        # one more share than looks: for the look that the budget forces
        alpha = aim.alpha / (len(looks) + 1)
        call: Call | None = None
        reason = ""
        started = bench.clock()
        while call is None:
            spent = bench.clock() - started
            out_of_budget = bench.left() - aim.reserve_seconds < pair_seconds
            share_used = (
                samples.pairs >= (aim.least or looks[0]) and aim.limit_seconds - spent < pair_seconds
            )
            if samples.pairs and (out_of_budget or share_used):
                reason = "the budget ended this comparison early"
                call = decide(samples.interval(alpha), aim.matters, last=True)
                break
            began = bench.clock()
            # A B, B A, A B ...: a steady drift cancels
            for seat in (self.a, self.b) if samples.pairs % 2 == 0 else (self.b, self.a):
                (samples.a if seat is self.a else samples.b).append(measure(seat))
            pair_seconds = max(pair_seconds, bench.clock() - began)
            self._tell(looks[-1])
            if samples.pairs in looks:
                last = samples.pairs == looks[-1]
                found = decide(samples.interval(alpha), aim.matters, last=last)
                call = found if last or not aim.to_the_end else None
        interval = samples.interval(alpha)
        if call is Call.UNKNOWN and interval is not None:
            noise = f"noise hides gains under about {effect_text(interval.smallest_effect)}"
            reason = f"{reason}; {noise}" if reason else noise
        return Verdict(
            key=self.key,
            plan_a=self.a.plan,
            plan_b=self.b.plan,
            call=call or Call.UNKNOWN,
            ratio=interval.ratio if interval else None,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            confidence=bench.options.confidence,
            pairs=samples.pairs,
            smallest_effect=interval.smallest_effect if interval else None,
            method=method,
            samples_a=tuple(samples.a),
            samples_b=tuple(samples.b),
            reason=reason,
        )

    def _tell(self, most: int) -> None:
        samples = self.samples
        ratio = median(samples.a) / median(samples.b)
        self.bench.say(
            f"{self.b.plan.key} against {self.a.plan.key}: {ratio:.3f}x, "
            f"pair {samples.pairs} of at most {most}"
        )
