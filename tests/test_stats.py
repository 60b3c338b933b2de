"""The numbers behind every verdict. Expected t and beta values are scipy 1.14's, to its digits."""

from __future__ import annotations

import math
import random

import pytest

from flatout import stats

T_QUANTILES = [
    # two-sided probability, degrees, scipy.stats.t.ppf(1 - p / 2, df)
    (0.05, 1, 12.706204736432095),
    (0.01, 2, 9.924843200918069),
    (0.05, 4, 2.7764451051977987),
    (0.01, 9, 3.249835541592126),
    (0.001, 5, 6.868826625881265),
    (0.05, 30, 2.0422724563012373),
    (0.01, 120, 2.6174211453308573),
    (0.5, 7, 0.7111417776160187),
]


@pytest.mark.parametrize(("probability", "freedom", "expected"), T_QUANTILES)
def test_t_quantile_agrees_with_published_values(probability, freedom, expected):
    assert stats.t_quantile(probability, freedom) == pytest.approx(expected, rel=2e-6)


def test_t_tail_and_quantile_are_inverse():
    for freedom in (1, 2, 3, 7, 24, 200):
        for probability in (1e-6, 3e-4, 0.01, 0.2, 0.9):
            t = stats.t_quantile(probability, freedom)
            assert stats.t_tail(t, freedom) == pytest.approx(probability, rel=1e-9)


def test_beta_closed_forms():
    for x in (0.01, 0.2, 0.5, 0.77, 0.999):
        assert stats.beta_fraction(1.0, 1.0, x) == pytest.approx(x, rel=1e-12)
        assert stats.beta_fraction(2.0, 1.0, x) == pytest.approx(x * x, rel=1e-12)
        arcsine = 2 / math.pi * math.asin(math.sqrt(x))
        assert stats.beta_fraction(0.5, 0.5, x) == pytest.approx(arcsine, rel=1e-12)
    assert stats.beta_fraction(3.0, 2.0, 0.0) == 0.0
    assert stats.beta_fraction(3.0, 2.0, 1.0) == 1.0


def test_t_with_one_degree_is_cauchy():
    for t in (0.1, 1.0, 12.0):
        assert stats.t_tail(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-12)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1])
def test_t_quantile_refuses_what_is_no_probability(probability):
    with pytest.raises(ValueError, match="probability"):
        stats.t_quantile(probability, 3)


def test_median_and_mad():
    assert stats.median([3, 1, 2]) == 2
    assert stats.median([4, 1, 2, 3]) == 2.5
    assert stats.mad([1, 1, 2, 2, 4, 6, 9]) == 1
    with pytest.raises(ValueError, match="no values"):
        stats.median([])


def test_mann_kendall_exact_for_a_monotone_series():
    # one order of 5! rises and one falls: p = 2 / 120
    assert stats.trend_p_value([5, 4, 3, 2, 1]) == (-10, pytest.approx(2 / 120))
    assert stats.trend_p_value([1, 2, 3]) == (3, pytest.approx(2 / 6))


def test_mann_kendall_with_ties_and_many_values():
    assert stats.trend_p_value([1, 1, 1, 1]) == (0, 1.0)
    s, p = stats.trend_p_value([float(i) for i in range(30)])
    assert s == 435
    assert p < 1e-10
    rng = random.Random(3)
    assert stats.trend_p_value([rng.random() for _ in range(40)])[1] > 0.01


def test_steady():
    assert not stats.steady([1.0, 1.0])
    assert not stats.steady([5.0, 4.0, 3.0, 2.0, 1.5])
    assert stats.steady([5.0, 4.0, 1.0, 1.01, 0.99, 1.0, 1.02])
    assert stats.steady([1.004, 1.003, 1.002, 1.001, 1.0]), "a trend that does not matter"


def test_autocorrelation_time_of_ar1():
    rng = random.Random(5)
    value, series = 0.0, []
    for _ in range(4000):
        value = 0.8 * value + rng.gauss(0, 1)
        series.append(value)
    # truth: (1 + 0.8) / (1 - 0.8) = 9
    assert 6 < stats.autocorrelation_time(series) < 13
    white = [rng.gauss(0, 1) for _ in range(4000)]
    assert stats.autocorrelation_time(white) < 1.4
    assert stats.autocorrelation_time([1.0] * 50) == 1.0


def test_block_steps():
    assert stats.block_steps(0.285) == 4
    assert stats.block_steps(3.0) == 4
    assert stats.block_steps(0.001) == 400
    assert stats.block_steps(0.285, correlation=9.0) == 27
    assert stats.block_steps(1e-6) == 2000


def test_paired_ratio_cancels_what_both_sides_saw():
    drift = [1.0, 1.3, 0.8, 2.0, 1.1]
    jitter = [1.0, 1.001, 0.999, 1.0005, 0.9995]
    a = [2.0 * d * j for d, j in zip(drift, jitter, strict=True)]
    interval = stats.paired_ratio(a, drift, alpha=0.01)
    assert interval.low < 2.0 < interval.high
    assert interval.high / interval.low < 1.01
    assert 0 < interval.smallest_effect < 0.01


def test_paired_ratio_is_antisymmetric():
    a, b = [1.0, 1.1, 0.9, 1.05], [0.5, 0.52, 0.49, 0.51]
    there, back = stats.paired_ratio(a, b, alpha=0.05), stats.paired_ratio(b, a, alpha=0.05)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high)


def test_one_disturbed_pair_in_ten_hides_nothing():
    rng = random.Random(2)
    a = [1.1 * math.exp(rng.gauss(0, 0.003)) for _ in range(10)]
    b = [1.0] * 10
    b[4] = 9.0
    interval = stats.paired_ratio(a, b, alpha=0.01)
    assert 1.08 < interval.low < 1.1 < interval.high < 1.12


def test_trimmed_intervals_hold_the_truth_under_heavy_tails():
    rng = random.Random(19)
    held = 0
    for _ in range(400):
        noise = [rng.gauss(0, 0.01) * (10 if rng.random() < 0.1 else 1) for _ in range(24)]
        a = [1.02 * math.exp(value) for value in noise[:12]]
        b = [math.exp(value) for value in noise[12:]]
        interval = stats.paired_ratio(a, b, alpha=0.05)
        held += interval.low <= 1.02 <= interval.high
    assert held >= 367  # 95 % of 400 less 3 standard deviations


def test_paired_ratio_needs_pairs():
    with pytest.raises(ValueError, match="two pairs"):
        stats.paired_ratio([1.0], [1.0], alpha=0.05)


def test_paired_ratio_holds_the_truth():
    rng = random.Random(11)
    held = 0
    for _ in range(400):
        a = [1.02 * math.exp(rng.gauss(0, 0.01)) for _ in range(6)]
        b = [math.exp(rng.gauss(0, 0.01)) for _ in range(6)]
        interval = stats.paired_ratio(a, b, alpha=0.05)
        held += interval.low <= 1.02 <= interval.high
    assert 365 <= held <= 395  # 95 % of 400, give or take 3.5 standard deviations


def test_smallest_effect_is_found_four_times_in_five():
    rng = random.Random(7)
    sigma, pairs, alpha = 0.004, 8, 0.01
    effect = stats.smallest_effect(sigma / math.sqrt(pairs), pairs=pairs, alpha=alpha)
    found = 0
    for _ in range(500):
        a = [(1 + effect) * math.exp(rng.gauss(0, sigma)) for _ in range(pairs)]
        found += stats.paired_ratio(a, [1.0] * pairs, alpha=alpha).low > 1
    assert 0.7 < found / 500 < 0.95
