"""Pure functions over numbers: what a search decides by.

Step times are seconds; ratios are plain numbers; nothing here knows what a trial is. Standard library
only. Sources are named at each function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation times this estimates the standard deviation of a normal distribution."""


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones. ValueError when empty."""
    if not values:
        raise ValueError("median of no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median, in the values' own unit."""
    centre = median(values)
    return median([abs(value - centre) for value in values])


def relative_spread(values: Sequence[float]) -> float:
    """1.4826 MAD over the median: a standard deviation that outliers do not move; 0 for one value."""
    centre = median(values)
    return MAD_TO_SIGMA * mad(values) / centre if centre else 0.0


def normal_cdf(z: float) -> float:
    """Probability that a standard normal variable is at most ``z``."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def trend_p_value(values: Sequence[float]) -> tuple[int, float]:
    """Mann-Kendall test for a monotone trend: (S, two-sided p).

    S counts pairs that rise minus pairs that fall (Mann, Econometrica 13, 1945). For up to 10 values
    without ties p is exact, from the number of permutations with each S (Kendall, Rank Correlation
    Methods, 1948); else the normal approximation with the correction for ties and continuity.
    """
    n = len(values)
    if n < 3:
        return 0, 1.0
    s = sum(
        (values[j] > values[i]) - (values[j] < values[i]) for i in range(n - 1) for j in range(i + 1, n)
    )
    ties = n - len(set(values))
    if n <= 10 and not ties:
        return s, _kendall_tail(n, abs(s))
    groups = [list(values).count(value) for value in set(values)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in groups)) / 18
    if variance <= 0 or s == 0:
        return s, 1.0
    z = (abs(s) - 1) / math.sqrt(variance)
    return s, min(1.0, 2.0 * (1.0 - normal_cdf(z)))


def _kendall_tail(n: int, s: int) -> float:
    """P(|S| >= s) over all orders of n distinct values."""
    counts = [1]  # by number of inversions
    for size in range(2, n + 1):
        wider = [0] * (len(counts) + size - 1)
        for inversions, count in enumerate(counts):
            for more in range(size):
                wider[inversions + more] += count
        counts = wider
    pairs = n * (n - 1) // 2
    extreme = sum(count for inversions, count in enumerate(counts) if abs(pairs - 2 * inversions) >= s)
    return extreme / math.factorial(n)


def steady(values: Sequence[float], *, last: int) -> bool:
    """Whether warm-up is over: the last ``last`` block medians show no trend (p above 0.1), or none that
    matters: the first of them is within 2 % of the last."""
    if len(values) < last:
        return False
    window = values[-last:]
    centre = median(window)
    if centre <= 0 or abs(window[-1] - window[0]) <= 0.02 * centre:
        return True
    return trend_p_value(window)[1] > 0.1


def autocorrelation_time(values: Sequence[float]) -> float:
    """How many consecutive values carry the information of one independent value; at least 1.

    1 + 2 times the sum of autocorrelations up to the first pair of lags (1 and 2, 3 and 4 ...) whose sum is
    not positive, after Geyer's initial positive sequence (Statistical Science 7, 1992), whose pairs begin
    with lag 0.
    """
    n = len(values)
    if n < 8:
        return 1.0
    mean = sum(values) / n
    centred = [value - mean for value in values]
    variance = sum(value * value for value in centred)
    if variance <= 0:
        return 1.0
    total = 0.0
    for lag in range(1, n // 2 - 1, 2):
        pair = sum(
            sum(centred[i] * centred[i + k] for i in range(n - k)) / variance for k in (lag, lag + 1)
        )
        if pair <= 0:
            break
        total += pair
    return max(1.0, 1.0 + 2.0 * total)


def block_steps(step_seconds: float, *, target_seconds: float) -> int:
    """Steps of one block that is to take so long: from 4 to 2,000."""
    by_time = math.ceil(target_seconds / step_seconds) if step_seconds > 0 else 0
    return max(4, min(2000, by_time))


def beta_fraction(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), 0 <= x <= 1.

    Continued fraction of DLMF 8.17.22, evaluated by Lentz's method (Thompson and Barnett, J. Comp.
    Phys. 64, 1986), on the side of the mean where it converges fast.
    """
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta_fraction(b, a, 1.0 - x)
    front = math.exp(
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * math.log(x)
        + b * math.log1p(-x)
        - math.log(a)
    )
    tiny = 1e-300
    c = 1.0
    d = 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    fraction = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            change = c * d
            fraction *= change
        if abs(change - 1.0) < 1e-15:
            break
    return front * fraction


def t_tail(t: float, freedom: float) -> float:
    """P(|T| > |t|) of Student's t with ``freedom`` degrees (DLMF 8.17; I_x(freedom / 2, 1 / 2))."""
    return beta_fraction(freedom / 2.0, 0.5, freedom / (freedom + t * t))


def t_quantile(two_sided: float, freedom: float) -> float:
    """The t with P(|T| > t) = ``two_sided``, 0 < two_sided < 1, by bisection of :func:`t_tail`."""
    if not 0.0 < two_sided < 1.0:
        raise ValueError(f"a probability between 0 and 1 is needed, not {two_sided}")
    if freedom < 1:
        raise ValueError(f"at least one degree of freedom is needed, not {freedom}")
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > two_sided:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if t_tail(middle, freedom) > two_sided:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
