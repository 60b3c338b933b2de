"""Intervals for a ratio that may be looked at after every pair of blocks, and that know of processes.

Two things hide a ratio of step times. Inside one pair of processes each pair of turns differs from the
next; more turns help. And two processes of the very same plan differ for as long as they live (where
their memory lies, which cores they got, how the clocks stood at their start): by 0.1 to 2 % as a rule,
by 40 % once on a program bound by launches. No number of turns shows that, only fresh processes do. So
the log ratio of turn t in pair of processes k is taken as

    x[k, t] = effect + shift[k] + noise[k, t]

and an interval has a part for each.

**Turns.** :func:`reach` is the confidence sequence of the t statistic with a normal prior on the effect
in units of the noise and the right Haar prior on the scale (Lai, Annals of Statistics 4, 1976, with a flat
prior; Wang and Ramdas, Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
variance, arXiv 2310.03722, 2023, with the normal one). With n values, S and V the sum and the sum of
squares of x - effect, the ratio of the two marginal likelihoods is

    E = sqrt(c / (n + c)) * ((n + c) V / ((n + c) V - S^2)) ^ (n / 2)

which is a martingale under the truth: by Ville's inequality it ever exceeds 1 / alpha with a chance of at
most alpha, so the effects with E < 1 / alpha are an interval that holds at every look at once. Divided by
(n - 1) s^2 it is, with T^2 = n (mean - effect)^2 / s^2 and g = c / (n + c),

    E = sqrt(g) * ((1 + T^2 / (n - 1)) / (1 + g T^2 / (n - 1))) ^ (n / 2)

and E = 1 / alpha is solved for T in closed form. Turns that depend on their neighbours are first merged
into longer ones (:func:`merge_size`), and far ones moved back (:func:`tame`). Both are chosen by the turns
themselves, and each pair of processes has a level of its own: with these the guarantee is approximate.

**Processes.** The shifts' standard deviation tau is not known. Every pair of unchanged processes and
every fresh pair of a comparison says something about it (:class:`Evidence`); before any of them, tau is
taken to be half-t (Gelman, Bayesian Analysis 1, 2006), with a tail heavy enough for the rare program whose
processes differ by tens of per cent. Its scale is the spread of a pair of turns, from ``QUIET_SHIFT`` to
``TYPICAL_SHIFT``: programs that keep a GPU busy were quiet in both (turns 0.1 %, processes 0.1 % on an
H200), those bound by launches or on shared cores in neither (turns 5 to 20 %, processes 1 to 40 %).
What the mean of K fresh shifts may be is then read from the mixture over tau (:func:`shift_bound`): far out
as long as few processes were seen, close to the normal law once there were many. A ten-fold gain needs one
pair of processes, two per cent several.

As long as a single difference of unchanged processes is known, which may be small by luck, one pair proves
nothing under :func:`lone_gain`. Quiet turns do not mean one kind of process: a library that chose other
kernels at its start is 5 to 20 % slower, silently, and a single difference misses that half of the time.
Of 4,000 simulated quiet programs with one difference, a tenth of them with two such modes, intervals of
one pair missed 2.0, 0.9, 0.4 and 0 % with 1.05, 1.1, 1.15 and 1.2x.

The two parts are independent and are added as squares, which is exact for normal parts and keeps the level
for tails as heavy as Student's with two degrees; tests and benchmarks/coverage.py hold it to its word.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from flatout.stats import MAD_TO_SIGMA, autocorrelation_time, mad, median

TYPICAL_SHIFT = 0.01
"""Scale of the prior on tau, as a log ratio, where the turns' own spread is not known or large."""
QUIET_SHIFT = 0.007
"""The same where turns hardly differ. Simulated with quiet turns, one to three differences known, processes
that differ by 1 %: intervals hold at their level; with 0.005 they missed 1.6 times as often as allowed."""
SHIFT_PER_SPREAD = 1.0
"""Between the two it is as large as the spread of a pair of turns."""
PRIOR_FREEDOM = 1.5
"""Its degrees of freedom: smaller is heavier in the tail. At 0.5 a program whose turns hide how far its
processes differ could not show a doubling; at 3, intervals missed too often where tau is 5 %."""
LONE_FREEDOM = 3.0
"""While less than ``LONE_EVIDENCE`` is known: the prior's tail would hide three-fold gains, and
``LONE_GAIN`` stands in for it."""
PROCESS_SHARES = (0.415, 0.2, 0.14, 0.1, 0.08, 0.065)
"""How the error allowed is spent over looks with one, two ... pairs of processes; their sum is 1."""
MOST_PROCESS_PAIRS = len(PROCESS_SHARES)
LEAST_MERGED = 8
"""Values of one pair of processes: fewer say nothing about their autocorrelation."""
CLIPPED = 5.0
"""Robust standard deviations from the median beyond which a pair of turns is moved back to there."""
LEAST_CLIPPED = 10
"""Values: a median absolute deviation of fewer is too rough to clip by."""
NEAR_PAIRS = 8
"""Pairs of turns after which most comparisons are decided."""
LONE_EVIDENCE = 2
"""Differences between unchanged processes below which what they say about tau may be mere luck."""
LONE_GAIN = math.log(1.8)
"""With so little evidence, one pair of processes proves nothing smaller than this,"""
QUIET_LONE_GAIN = math.log(1.2)
"""or, where turns spread by no more than ``QUIET_SPREAD``, than this."""
QUIET_SPREAD = 0.003
NOISY_SPREAD = 0.03
"""Standard deviation of a pair of turns' log ratio from which on ``LONE_GAIN`` holds in full."""
_NO_WEIGHT = 1e-12
_TAUS = tuple(10 ** (-4.5 + 0.11 * index) for index in range(46))
"""The values of tau that the mixture is taken over: 0.003 % to a factor of 16."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What some processes that ran the same plans say about tau."""

    square: float
    """Mean square of the differences between pairs of processes, as log ratios."""
    freedom: int
    """How many independent differences that is the mean of."""
    within: float
    """The part of ``square`` that the turns' own noise is expected to bring."""
    spread: float | None = None
    """Standard deviation of the log ratio of one pair of unchanged processes' turns; None: not told."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An interval for a log ratio."""

    centre: float
    radius: float
    turns: float
    """Part of the radius that is the turns' noise; more turns narrow it."""
    processes: float
    """Part of the radius that is the processes' shifts; only fresh processes narrow it."""
    error: float
    """Standard error of the centre, both parts."""
    tau: float
    """Median of what the processes' shifts may have for a standard deviation."""
    merged: int
    """Turns merged into one before they counted."""

    @property
    def low(self) -> float:
        return self.centre - self.radius

    @property
    def high(self) -> float:
        return self.centre + self.radius


def reach(values: int, freedom: int, alpha: float, *, near: int = NEAR_PAIRS) -> float:
    """How many standard errors the interval extends to either side; infinite while there are too few.

    ``values`` independent ones with ``freedom`` degrees left for their variance (one less, or one less for
    each pair of processes). ``near``: the number of values at which it is to be narrowest, chosen before
    any is seen; it holds at any number.
    """
    if freedom < 1 or values < 2:
        return math.inf
    c = _weight(alpha, near)
    g = c / (values + c)
    q = math.exp(2.0 / (freedom + 1.0) * (math.log(1.0 / alpha) - 0.5 * math.log(g)))
    if q * g >= 1.0:
        return math.inf
    return math.sqrt(freedom * (q - 1.0) / (1.0 - q * g))


@lru_cache(maxsize=64)
def _weight(alpha: float, near: int) -> float:
    """The c of the module's formula that makes the interval narrowest at ``near`` values."""

    def squared(c: float) -> float:
        g = c / (near + c)
        q = math.exp(2.0 / near * (math.log(1.0 / alpha) - 0.5 * math.log(g)))
        return (q - 1.0) / (1.0 - q * g) if q * g < 1.0 else math.inf

    return min((0.01 * 1.25**step for step in range(30)), key=squared)


def merge_size(clusters: Sequence[Sequence[float]]) -> int:
    """How many consecutive turns make one that is taken for independent of the next: the longest
    autocorrelation time of any pair of processes with enough turns to tell, rounded, and no more than a
    third of the most turns of any."""
    times = [autocorrelation_time(values) for values in clusters if len(values) >= LEAST_MERGED]
    return max((max(1, min(round(t), len(max(clusters, key=len)) // 3)) for t in times), default=1)


def merge(values: Sequence[float], size: int) -> list[float]:
    """Means of ``size`` consecutive values; what is left over at the end joins the last."""
    count = max(1, len(values) // size)
    edges = [index * size for index in range(count)] + [len(values)]
    return [math.fsum(values[start:end]) / (end - start) for start, end in itertools.pairwise(edges)]


def tame(values: Sequence[float]) -> list[float]:
    """Winsorised: values with the far ones moved back to ``CLIPPED`` robust deviations from the median."""
    if len(values) < LEAST_CLIPPED:
        return list(values)
    centre = median(values)
    far = CLIPPED * MAD_TO_SIGMA * mad(values)
    return [min(max(value, centre - far), centre + far) for value in values] if far else list(values)


def variance_within(clusters: Sequence[Sequence[float]]) -> tuple[float, int, list[list[float]]]:
    """(variance of one merged turn inside its pair of processes, pooled over these; its degrees of freedom;
    the merged turns of each pair of processes)."""
    size = merge_size(clusters)
    merged = [merge(tame(values), size) for values in clusters if values]
    freedom = sum(len(values) - 1 for values in merged)
    squares = math.fsum(
        (value - math.fsum(values) / len(values)) ** 2 for values in merged for value in values
    )
    return (squares / freedom if freedom else 0.0), freedom, merged


def turn_spread(clusters: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation of the log ratio of one pair of turns, within its pair of processes."""
    tamed = [tame(values) for values in clusters if len(values) > 1]
    freedom = sum(len(values) - 1 for values in tamed)
    if not freedom:
        return None
    means = [math.fsum(values) / len(values) for values in tamed]
    squares = math.fsum((v - mean) ** 2 for values, mean in zip(tamed, means, strict=True) for v in values)
    return math.sqrt(squares / freedom)


def spread_known(evidence: Sequence[Evidence], clusters: Sequence[Sequence[float]] = ()) -> float | None:
    """Of a pair of turns: the larger of what unchanged processes showed and these do."""
    told = [one.spread for one in evidence if one.spread is not None]
    own = turn_spread(clusters)
    return max([*told, *([] if own is None else [own])], default=None)


def prior_scale(spread: float | None) -> float:
    """Of tau, before any processes were compared."""
    if spread is None:
        return TYPICAL_SHIFT
    return min(max(SHIFT_PER_SPREAD * spread, QUIET_SHIFT), TYPICAL_SHIFT)


def lone_gain(spread: float | None) -> float:
    """Log ratio under which one pair of processes proves nothing, less than ``LONE_EVIDENCE`` known."""
    if spread is None:
        return LONE_GAIN
    place = math.log(max(spread, QUIET_SPREAD) / QUIET_SPREAD) / math.log(NOISY_SPREAD / QUIET_SPREAD)
    return QUIET_LONE_GAIN + min(place, 1.0) * (LONE_GAIN - QUIET_LONE_GAIN)


def pooled(
    merged: Sequence[Sequence[float]], variance: float, tau: float
) -> tuple[list[float], float, float]:
    """How pairs of processes count beside each other, where ``variance`` is that of one of their values:
    (weights of their means, variance of the weighted mean by the turns alone, sum of the squared weights,
    which is the part of tau's square that is left in it)."""
    precisions = [1.0 / (tau * tau + variance / len(values) + 1e-12) for values in merged]
    weights = [precision / math.fsum(precisions) for precision in precisions]
    own = math.fsum(w * w * variance / len(values) for w, values in zip(weights, merged, strict=True))
    return weights, own, math.fsum(w * w for w in weights)


def evidence_of_pairs(clusters: Sequence[Sequence[float]]) -> list[Evidence]:
    """From the pairs of fresh processes of one comparison: how far their means lie from each other."""
    variance, _, merged = variance_within(clusters)
    if len(merged) < 2:
        return []
    means = [math.fsum(values) / len(values) for values in merged]
    centre = math.fsum(means) / len(means)
    freedom = len(means) - 1
    within = variance * math.fsum(1.0 / len(values) for values in merged) / len(merged)
    square = math.fsum((mean - centre) ** 2 for mean in means) / freedom
    return [Evidence(square=square, freedom=freedom, within=within)]


def evidence_of_unchanged(clusters: Sequence[Sequence[float]]) -> list[Evidence]:
    """From one unchanged process against one or several others of the same plan.

    The differences share the first process: M of them lie about 0 as M + 1 processes about their mean,
    each with half the variance of a difference.
    """
    variance, _, merged = variance_within(clusters)
    if not merged:
        return []
    levels = [0.0, *(math.fsum(values) / len(values) for values in merged)]
    centre = math.fsum(levels) / len(levels)
    count = len(merged)
    square = 2.0 * math.fsum((level - centre) ** 2 for level in levels) / count
    within = 2.0 * variance * math.fsum(1.0 / len(v) for v in merged) / (count + 1)
    return [Evidence(square=square, freedom=count, within=within, spread=turn_spread(clusters))]


Mixture = list[tuple[float, float]]
"""(tau, its weight), of those that weigh anything. Weights add up to 1."""


def mixture_of(evidence: Sequence[Evidence], clusters: Sequence[Sequence[float]] = ()) -> Mixture:
    """What tau may be, from the prior and the evidence. ``clusters``: of the comparison that it is for; of
    them it is only asked how far turns spread."""
    scale = prior_scale(spread_known(evidence, clusters))
    lone = sum(one.freedom for one in evidence) < LONE_EVIDENCE
    heaviness = 0.5 * (1.0 + (LONE_FREEDOM if lone else PRIOR_FREEDOM))
    logs = []
    for tau in _TAUS:
        # a density of tau, in steps of log tau
        total = math.log(tau) - heaviness * math.log1p((tau / scale) ** 2)
        for one in evidence:
            variance = tau * tau + one.within
            total -= 0.5 * one.freedom * (math.log(variance) + one.square / variance)
        logs.append(total)
    top = max(logs)
    weights = [math.exp(value - top) for value in logs]
    whole = math.fsum(weights)
    return [
        (tau, weight / whole)
        for tau, weight in zip(_TAUS, weights, strict=True)
        if weight > _NO_WEIGHT * whole
    ]


def typical_shift(mixture: Mixture) -> float:
    """The median of tau."""
    reached = 0.0
    for tau, weight in mixture:
        reached += weight
        if reached >= 0.5:
            return tau
    return mixture[-1][0]


def shift_bound(mixture: Mixture, share: float, alpha: float) -> float:
    """What the weighted mean of shifts stays under with a chance of 1 - ``alpha``.

    ``share``: sum of the squares of the weights, 1 / K for K equal ones.
    """
    scaled = [(1.0 / (tau * math.sqrt(2.0 * share)), weight) for tau, weight in mixture]

    def tail(bound: float) -> float:
        return sum([weight * math.erfc(bound * scale) for scale, weight in scaled])

    low, high = 1e-6, 1e-4
    while tail(high) > alpha and high < 100.0:
        low, high = high, 2.0 * high
    for _ in range(16):
        middle = math.sqrt(low * high)
        if tail(middle) > alpha:
            low = middle
        else:
            high = middle
    return high


def interval_of(
    clusters: Sequence[Sequence[float]],
    *,
    alpha: float,
    evidence: Sequence[Evidence] = (),
    processes_differ: bool = True,
    near: int = NEAR_PAIRS,
) -> Interval | None:
    """Interval for the effect from the log ratios of turns, one list for each pair of processes.

    It holds, with a chance of 1 - ``alpha``, at all looks at once: after any number of turns and of up to
    ``MOST_PROCESS_PAIRS`` pairs of processes. ``evidence``: what else is known about the shifts; the
    clusters' own is added. ``processes_differ=False`` leaves the shifts out: the question is then how
    these very processes differ. None without two values.
    """
    clusters = [values for values in clusters if values]
    if sum(len(values) for values in clusters) < 2:
        return None
    variance, freedom, merged = variance_within(clusters)
    means = [math.fsum(values) / len(values) for values in merged]
    known = [*evidence, *evidence_of_pairs(clusters)] if processes_differ else []
    mixture = mixture_of(known, clusters)
    count = len(merged)
    spend = PROCESS_SHARES[min(count, MOST_PROCESS_PAIRS) - 1]
    tau = typical_shift(mixture) if processes_differ else 0.0
    weights, own, share = pooled(merged, variance, tau)
    centre = math.fsum(weight * mean for weight, mean in zip(weights, means, strict=True))
    total = sum(len(values) for values in merged)
    turns = 0.0
    if freedom:
        turns = reach(total, freedom, alpha, near=near) * math.sqrt(own)
    elif not processes_differ:
        turns = math.inf
    processes = 0.0
    if processes_differ:
        processes = shift_bound(mixture, share, spend * alpha)
        if count == 1 and sum(one.freedom for one in known) < LONE_EVIDENCE:
            processes = max(processes, lone_gain(spread_known(known, clusters)))
    return Interval(
        centre=centre,
        radius=math.hypot(turns, processes),
        turns=turns,
        processes=processes,
        error=math.sqrt(own + tau * tau * share),
        tau=tau,
        merged=max(1, round(sum(len(v) for v in clusters) / total)),
    )
