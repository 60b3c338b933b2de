"""The proof: two plans measured in turns, and what may be said about the ratio of their steps.

Two warmed processes take turns at step boundaries (A B, B A, A B, ...), so that clocks, heat and
neighbours fall on both alike; each pair of turns gives one log ratio, and pairs that depend on their
neighbours are merged before they count. What more turns cannot show, how far two processes of one plan
differ anyway, only another pair of fresh processes shows; one is started when that, and not the turns'
noise, is what keeps the comparison open. Where two do not fit into memory, fresh processes alternate and
each pair of processes gives one log ratio.

The interval (sequential.py) holds at every look, so it is looked at after each pair of turns from the
least number on, and the comparison ends as soon as it is decided: better, worse, or no difference that
matters. A pair of turns that something else on the machine disturbed is kept, left out of the interval and
repeated; it is chosen by what surrounded it, never by its times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from flatout.codec import to_plain
from flatout.ratios import bounded
from flatout.search.bench import Bench
from flatout.search.measure import (
    SHORT_TURN_SECONDS,
    TURN_SECONDS,
    Beaten,
    Seat,
    align,
    settle_steps,
    steps_of_block,
    wanders,
)
from flatout.search.shifts import evidence_so_far
from flatout.sequential import (
    MOST_PROCESS_PAIRS,
    NEAR_PAIRS,
    QUIET_SPREAD,
    Evidence,
    Interval,
    interval_of,
)
from flatout.stats import median
from flatout.surroundings import Span, disturbed, in_words, usual_of
from flatout.trial import Call, Verdict

LEAST_TURNS = 6
"""Pairs of turns before the first look."""
LEAST_TURNS_AGAIN = 4
"""Of every further pair of processes."""
MOST_TURNS = 36
"""Of one pair of processes, at the usual pace of a search."""
NARROW_TURNS = 24
SHORT_TURNS = TURN_SECONDS / SHORT_TURN_SECONDS
SHORT_PAIR_SECONDS = TURN_SECONDS
"""Of two turns: where they are short since the speed wanders."""
SLOW_PAIR_SECONDS = 5.0
SLOW_LEAST_TURNS = 4
SLOW_LEAST_TURNS_AGAIN = 3
SLOW_MOST_TURNS = 13
SLOW_NEAR = 5
APART_LEAST = 3
"""Pairs of fresh processes that take turns as wholes."""
APART_BLOCKS = 4
TURNS_NARROW = 0.5
"""While the turns' part of the interval is larger than this share of the processes', more turns help."""
MOST_DISTURBED = 8
"""Pairs of turns in a row: the pair of processes is then taken as disturbed and started once more."""
POWER_Z = 0.8416
"""Standard normal quantile of 80 %: the power that a smallest effect is told for."""
MOST_LOG = 50.0
"""A ratio beyond e to this is infinite for us, and stays a number for JSON."""
RESIDENT = "resident pair"
APART = "alternating fresh processes"
NOISY = 0.10
"""Where less than such an effect could not have been seen, nothing is said."""


@dataclass
class Samples:
    """Block medians of the two sides, in seconds of a step, in the order measured, by pair of processes."""

    a: list[list[float]] = field(default_factory=list)
    b: list[list[float]] = field(default_factory=list)
    left_out: list[tuple[float, float, str]] = field(default_factory=list)

    def open(self) -> None:
        """A fresh pair of processes: what comes next is theirs."""
        if not self.a or self.a[-1]:
            self.a.append([])
            self.b.append([])

    def add(self, a: float, b: float) -> None:
        self.a[-1].append(a)
        self.b[-1].append(b)

    @property
    def pairs(self) -> int:
        return sum(len(values) for values in self.a)

    @property
    def latest(self) -> int:
        """Pairs of turns of the latest pair of processes."""
        return len(self.a[-1]) if self.a else 0

    @property
    def processes(self) -> int:
        """Pairs of processes."""
        return len(self.a)

    def logs(self) -> list[list[float]]:
        return [
            [math.log(x / y) for x, y in zip(a, b, strict=True)]
            for a, b in zip(self.a, self.b, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Aim:
    """What a comparison is to decide."""

    alpha: float
    """Chance of a false claim that it may take, over all its looks."""
    matters: float
    """Gain from which b is worth having, as ratio - 1."""
    turns: int | None = None
    """Pairs of turns of one pair of processes at most; None: by how long a pair takes. Fresh processes that
    take turns as wholes have numbers of their own."""
    first_look: int | None = None
    """Pairs of turns before the first look; None: by how long a pair takes."""
    processes: int = MOST_PROCESS_PAIRS
    """Pairs of processes at most."""
    to_the_end: bool = False
    """Measure all turns (for an estimate) instead of stopping when decided, or as many as say something."""
    quiet_turns: int | None = None
    """With ``to_the_end``: so many pairs of turns will do where none of them is further than
    ``QUIET_SPREAD`` from 1; None: all of them are taken."""
    narrow: bool = False
    """Once decided, go on while the turns' part of the interval is the larger, up to ``NARROW_TURNS``."""
    both_ways: bool = False
    """A loss is to be proved as much as a gain is."""
    processes_differ: bool = True
    """The plans are compared; False: these very processes, how far they differ."""
    reserve_seconds: float = 0.0
    """Of the budget, not to be touched."""
    limit_seconds: float = math.inf
    """What measuring may take once both sides are warm. The pairs before the first look are taken in any
    case, as long as the budget itself lasts."""
    fresh_limit_seconds: float | None = None
    """What it may take with further pairs of processes, where these are what it needs; None: no more."""
    least: int | None = None
    """Pairs that are taken whatever ``limit_seconds``; None: those before the first look."""


class Next(Enum):
    """What a comparison that is still open does next."""

    TURNS = "more turns"
    PROCESSES = "a fresh pair of processes"
    END = "nothing"


def prove(bench: Bench, key: str, a: Seat, b: Seat, aim: Aim) -> Verdict:
    """Compare two plans. Not yet in the ledger: the guard has its say first.

    Beaten when one of the two fails on its own. When both live and one runs out of memory that has enough
    alone, they are compared again by alternating fresh processes, and so are all later pairs.
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
            if beaten.seat.plan:
                # Beaten once more where it does not fit alone either: then the others stay side by side
                bench.clear()
                beaten.seat.warm()
            bench.alternate(
                "two processes do not fit into memory side by side"
                if memory
                else f"two of its processes do not run side by side: {beaten.outcome.reason}"
            )
    return comparison.apart()


def decide(
    interval: Interval | None, matters: float, *, last: bool, both_ways: bool = False
) -> Call | None:
    """What an interval says, or None while more could still tell.

    ``both_ways``: what may be a loss that matters is not the same either.
    """
    if interval is not None:
        gain = math.log1p(matters)
        if interval.low > 0.0 and (interval.centre >= gain or last):
            return Call.BETTER
        if interval.high < 0.0:
            return Call.WORSE
        if interval.high < gain and (interval.low > -gain or not both_ways):
            return Call.SAME
    if not last:
        return None
    if interval is None or smallest_effect(interval) > NOISY:
        return Call.UNKNOWN
    # what looks like a gain and is not proved is no sameness either
    return Call.UNKNOWN if matters and interval.centre >= math.log1p(matters) else Call.SAME


def open_still(interval: Interval, matters: float, *, both_ways: bool) -> bool:
    """Whether more may tell something worth its time: a gain that matters (or a loss) is within one
    standard error of what was seen, or so little would have been seen that nothing could be said. Giving up
    costs no error."""
    centre = abs(interval.centre) if both_ways else interval.centre
    return centre + interval.error > math.log1p(matters) or smallest_effect(interval) > NOISY


def smallest_effect(interval: Interval) -> float:
    """The ratio minus 1 that such an interval would have told from none in four cases of five."""
    return math.expm1(min(MOST_LOG, interval.radius + POWER_Z * interval.error))


def effect_text(effect: float) -> str:
    """``0.4%``, ``35%``, and from a doubling on ``2.5x``."""
    if effect >= 1.0:
        return f"{1.0 + min(effect, 99.0):.1f}x"
    return f"{effect:.0%}" if effect >= 0.1 else f"{effect:.1%}"


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """How a comparison goes, fixed before its first pair."""

    method: str
    least: int
    least_again: int
    most: int
    in_all: int
    """Pairs of turns over all pairs of processes, at most."""
    near: int
    most_processes: int
    fresh_seconds: float
    """To start both sides once more."""


def numbers(verdict: Verdict) -> str:
    """The ratio with its interval, or why there is none."""
    if verdict.ratio is None or verdict.low is None or verdict.high is None:
        return verdict.reason or "too few turns to tell"
    return bounded(verdict.ratio, verdict.low, verdict.high)


@dataclass(kw_only=True)
class _Comparison:
    bench: Bench
    key: str
    a: Seat
    b: Seat
    aim: Aim
    samples: Samples = field(default_factory=Samples)
    spans: list[Span] = field(default_factory=list)
    """Readings around each turn that counts."""
    evidence: list[Evidence] | None = None
    """What the search knew of the processes' spread before; None: not asked yet."""
    in_a_row: int = 0
    """Disturbed pairs of turns without one that is not between them."""
    repeated: bool = False
    """The pair of processes was started once more since it was disturbed all along."""

    def resident(self) -> Verdict:
        bench, aim = self.bench, self.aim
        steps, settle = self._warm_both()
        step = self.a.step_seconds() + self.b.step_seconds()
        pair_seconds = (steps + settle) * step
        slow = pair_seconds > SLOW_PAIR_SECONDS
        # of short turns more are taken: it is time that counts
        more = SHORT_TURNS if wanders(bench) and pair_seconds < SHORT_PAIR_SECONDS else 1.0
        in_all = bench.options.figures.most_pairs
        most = aim.turns or min(in_all, SLOW_MOST_TURNS if slow else max(MOST_TURNS, in_all // 4))
        in_all, most = int(more * in_all), int(more * most)
        least, again = LEAST_TURNS, LEAST_TURNS_AGAIN
        if slow:
            least, again = SLOW_LEAST_TURNS, SLOW_LEAST_TURNS_AGAIN
        pace = _Pace(
            method=RESIDENT,
            least=min(most, int(more * (aim.first_look or least))),
            least_again=min(most, int(more * again)),
            most=most,
            in_all=in_all,
            near=SLOW_NEAR if slow or most < NEAR_PAIRS or aim.quiet_turns else NEAR_PAIRS,
            most_processes=aim.processes,
            fresh_seconds=bench.start_seconds(self.a.plan) + bench.start_seconds(self.b.plan),
        )

        def measure(seat: Seat) -> float:
            return bench.pace_of(seat.block(steps, self.key, settle))

        def fresh() -> None:
            nonlocal steps, settle
            self.a.close()
            self.b.close()
            steps, settle = self._warm_both()

        return self._until_decided(measure, fresh, pace, pair_seconds)

    def _warm_both(self) -> tuple[int, int]:
        """Both sides warm, at the same place where that matters; (steps, steps thrown away) of a turn."""
        bench = self.bench
        self.a.warm()
        self.b.warm()
        if bench.aligned:
            align(self.a, self.b)
        step_a, step_b = self.a.step_seconds(), self.b.step_seconds()
        return steps_of_block(bench, max(step_a, step_b), min(step_a, step_b)), settle_steps(bench)

    def apart(self) -> Verdict:
        bench = self.bench
        bench.clear()
        self.a.close()
        self.b.close()
        pair_seconds = bench.start_seconds(self.a.plan) + bench.start_seconds(self.b.plan)
        pace = _Pace(
            method=APART,
            least=1,
            least_again=1,
            most=1,
            in_all=MOST_PROCESS_PAIRS,
            near=SLOW_NEAR,
            most_processes=min(self.aim.turns or MOST_PROCESS_PAIRS, MOST_PROCESS_PAIRS),
            fresh_seconds=0.0,
        )

        def measure(seat: Seat) -> float:
            seat.warm()
            step = seat.step_seconds()
            steps = steps_of_block(bench, step, step)
            medians = [bench.pace_of(seat.block(steps, self.key)) for _ in range(APART_BLOCKS)]
            seat.close()
            return median(medians)

        return self._until_decided(measure, lambda: None, pace, pair_seconds)

    def _until_decided(
        self, measure: Callable[[Seat], float], fresh: Callable[[], None], pace: _Pace, pair_seconds: float
    ) -> Verdict:
        bench, aim = self.bench, self.aim
        self.samples = samples = Samples()
        self.evidence = None
        samples.open()
        began = bench.clock()
        interval: Interval | None = None
        call: Call | None = None
        reason = ""
        while True:
            if samples.pairs + len(samples.left_out) and self._out_of_time(pace, pair_seconds, began):
                reason = "the budget ended this comparison early"
                interval = self._interval(pace) or interval
                break
            pair_seconds = max(pair_seconds, self._take_pair(measure))
            self._tell(pace)
            if self.in_a_row >= MOST_DISTURBED:
                reason = self._disturbed_all_along()
                if reason:
                    break
                fresh()
                continue
            enough = pace.least if samples.processes == 1 else pace.least_again
            if samples.latest < enough:
                continue
            interval = self._interval(pace)
            call = None if aim.to_the_end else self._decide(interval, last=False)
            if call is not None:
                if self._may_narrow(interval, pace):
                    continue
                break
            following = self._next(interval, pace)
            if following is Next.END:
                break
            if following is Next.PROCESSES:
                if pace.fresh_seconds and not self._affords(pace, pair_seconds, began):
                    reason = "the budget does not allow for another pair of processes"
                    break
                if pace.method == RESIDENT:
                    bench.say(f"{self.b.plan.key}: once more, with two fresh processes")
                fresh()
                samples.open()
        self._note_surroundings()
        return self._verdict(pace, interval, call or self._decide(interval, last=True), reason)

    def _next(self, interval: Interval | None, pace: _Pace) -> Next:
        samples, aim = self.samples, self.aim
        full = samples.latest >= pace.most
        if aim.to_the_end and samples.processes >= pace.most_processes:
            return Next.END if full or self._says_all(interval) else Next.TURNS
        if pace.method == APART:
            more = (
                interval is None
                or aim.to_the_end
                or samples.processes < APART_LEAST
                or open_still(interval, aim.matters, both_ways=aim.both_ways)
            )
            return Next.PROCESSES if more and samples.processes < pace.most_processes else Next.END
        if interval is None or aim.to_the_end:
            return Next.END if full else Next.TURNS
        if samples.pairs >= pace.in_all:
            return Next.END
        worthwhile = open_still(interval, aim.matters, both_ways=aim.both_ways)
        if not worthwhile and 2 * samples.latest >= pace.most:
            return Next.END
        if interval.turns > TURNS_NARROW * interval.processes and not full:
            return Next.TURNS
        return Next.PROCESSES if worthwhile and samples.processes < pace.most_processes else Next.END

    def _says_all(self, interval: Interval | None) -> bool:
        """Of an estimate: more turns would not change it."""
        if self.aim.processes_differ:
            return interval is not None and interval.turns <= TURNS_NARROW * interval.processes
        quiet, logs = self.aim.quiet_turns, self.samples.logs()[-1]
        return quiet is not None and len(logs) >= quiet and all(abs(one) <= QUIET_SPREAD for one in logs)

    def _decide(self, interval: Interval | None, *, last: bool) -> Call | None:
        return decide(interval, self.aim.matters, last=last, both_ways=self.aim.both_ways)

    def _may_narrow(self, interval: Interval | None, pace: _Pace) -> bool:
        if not self.aim.narrow or interval is None or interval.turns <= interval.processes:
            return False
        return self.samples.latest < min(pace.most, NARROW_TURNS)

    # time

    def _out_of_time(self, pace: _Pace, pair_seconds: float, began: float) -> bool:
        aim, samples, bench = self.aim, self.samples, self.bench
        if bench.left() - aim.reserve_seconds < pair_seconds:
            return True
        least = aim.least or (APART_LEAST if pace.method == APART else pace.least)
        limit = aim.limit_seconds
        if samples.processes > 1:
            # a pair of processes that was started is used for what it was started for
            limit = max(limit, aim.fresh_limit_seconds or 0.0)
        return samples.pairs >= least and limit - (bench.clock() - began) < pair_seconds

    def _affords(self, pace: _Pace, pair_seconds: float, began: float) -> bool:
        """Time for another pair of processes and what it takes to count."""
        needed = pace.fresh_seconds + pace.least_again * pair_seconds
        left = self.bench.left() - self.aim.reserve_seconds
        limit = max(self.aim.limit_seconds, self.aim.fresh_limit_seconds or 0.0)
        return needed <= min(left, limit - (self.bench.clock() - began))

    # one pair of turns

    def _take_pair(self, measure: Callable[[Seat], float]) -> float:
        """Both sides' turns; the seconds that they took."""
        bench, samples = self.bench, self.samples
        began = bench.clock()
        taken: dict[bool, float] = {}
        spans: list[Span] = []
        why = ""
        # A B, B A, A B ...: a steady drift cancels
        turn = samples.pairs + len(samples.left_out)
        for is_a in (True, False) if turn % 2 == 0 else (False, True):
            before = bench.reading()
            taken[is_a] = measure(self.a if is_a else self.b)
            after = bench.reading()
            if before is not None and after is not None:
                spans.append((before, after))
                why = why or disturbed(before, after, bench.usual)
        if why:
            samples.left_out.append((taken[True], taken[False], why))
            self.in_a_row += 1
        else:
            samples.add(taken[True], taken[False])
            self.spans += spans
            self.in_a_row = 0
        return bench.clock() - began

    def _disturbed_all_along(self) -> str:
        """Written down; the reason to end, where it was so the second time too."""
        bench, samples = self.bench, self.samples
        why = samples.left_out[-1][2]
        bench.note("disturbed", {"comparison": self.key, "reason": why, "pairs": len(samples.left_out)})
        self.in_a_row = 0
        if self.repeated:
            return f"disturbed all along: {why}"
        self.repeated = True
        bench.say(f"{self.b.plan.key}: disturbed all along ({why}); once more")
        samples.open()
        return ""

    def _note_surroundings(self) -> None:
        """What the turns were surrounded by; what is usual there, from the untouched program's own."""
        bench = self.bench
        if not self.spans:
            return
        if bench.usual is None and not self.a.plan and not self.b.plan:
            bench.usual = usual_of(self.spans)
            bench.note("usual", to_plain(bench.usual))
        bench.note(
            "surroundings",
            {
                "comparison": self.key,
                "words": in_words(self.spans),
                "turns": len(self.spans),
                "left_out": len(self.samples.left_out),
                "latest": to_plain(self.spans[-1][1]),
            },
        )

    # the answer

    def _interval(self, pace: _Pace) -> Interval | None:
        bench = self.bench
        if self.evidence is None:
            verdicts = bench.verdicts.values() if self.aim.processes_differ else ()
            self.evidence = evidence_so_far(verdicts, method=pace.method)
        return interval_of(
            self.samples.logs(),
            alpha=self.aim.alpha,
            evidence=self.evidence,
            processes_differ=self.aim.processes_differ or pace.method == APART,
            near=pace.near,
        )

    def _verdict(self, pace: _Pace, interval: Interval | None, call: Call | None, reason: str) -> Verdict:
        samples = self.samples
        if interval is not None and interval.radius >= MOST_LOG:
            interval = None
            reason = (
                f"{reason}; too few turns for an interval" if reason else "too few turns for an interval"
            )
        smallest = smallest_effect(interval) if interval is not None else None
        if call is Call.UNKNOWN and smallest is not None:
            noise = f"noise hides gains under about {effect_text(smallest)}"
            if interval is not None and interval.processes > interval.turns and pace.method == RESIDENT:
                noise += (
                    f" after {samples.processes} pairs of processes"
                    if samples.processes > 1
                    else " in a single pair of processes"
                )
            reason = f"{reason}; {noise}" if reason else noise
        return Verdict(
            key=self.key,
            plan_a=self.a.plan,
            plan_b=self.b.plan,
            call=call or Call.UNKNOWN,
            ratio=math.exp(interval.centre) if interval else None,
            low=math.exp(max(-MOST_LOG, interval.low)) if interval else None,
            high=math.exp(min(MOST_LOG, interval.high)) if interval else None,
            confidence=self.bench.options.confidence,
            pairs=samples.pairs,
            smallest_effect=smallest,
            method=pace.method,
            samples_a=tuple(value for values in samples.a for value in values),
            samples_b=tuple(value for values in samples.b for value in values),
            process_pairs=tuple(len(values) for values in samples.a if values),
            turns_radius=interval.turns if interval else None,
            processes_radius=interval.processes if interval else None,
            process_spread=interval.tau if interval and self.aim.processes_differ else None,
            merged=interval.merged if interval else 1,
            left_out=tuple(samples.left_out),
            reason=reason,
        )

    def _tell(self, pace: _Pace) -> None:
        samples = self.samples
        logs = [value for values in samples.logs() for value in values]
        if not logs:
            return
        pair = f", {samples.processes}. pair of processes" if samples.processes > 1 else ""
        self.bench.say(
            f"{self.b.plan.key} against {self.a.plan.key}: {math.exp(median(logs)):.3f}x, "
            f"pair {samples.latest} of at most {pace.most}{pair}"
        )
