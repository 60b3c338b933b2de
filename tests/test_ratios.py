"""Ratios as text."""

from __future__ import annotations

import pytest

from flatout.ratios import bounded, times


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "1.000x"),
        (0.98765, "0.988x"),
        (1.0344, "1.034x"),
        (1.199, "1.199x"),
        (1.2, "1.20x"),
        (2.3149, "2.31x"),
        (10.372, "10.37x"),
        (120.4, "120x"),
    ],
)
def test_times(ratio, text):
    assert times(ratio) == text


def test_bounds_have_as_many_digits_as_the_ratio():
    assert bounded(1.26, 1.14, 1.4) == "1.26x [1.14, 1.40]"
    assert bounded(1.002, 0.99, 1.31) == "1.002x [0.990, 1.310]"
    assert bounded(10.372, 10.25, 10.49) == "10.37x [10.25, 10.49]"
    assert bounded(float("inf"), 1.0, float("inf")) == "infx [1, inf]"
