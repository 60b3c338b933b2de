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
    assert not stats.steady([1.0, 1.0], last=5)
    assert not stats.steady([5.0, 4.0, 3.0, 2.0, 1.5], last=5)
    assert stats.steady([5.0, 4.0, 1.0, 1.01, 0.99, 1.0, 1.02], last=5)
    assert stats.steady([1.004, 1.003, 1.002, 1.001, 1.0], last=5), "a trend that does not matter"


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
    assert stats.block_steps(0.285, target_seconds=0.4) == 4
    assert stats.block_steps(3.0, target_seconds=0.4) == 4
    assert stats.block_steps(0.001, target_seconds=0.4) == 400
    assert stats.block_steps(1e-6, target_seconds=0.4) == 2000
