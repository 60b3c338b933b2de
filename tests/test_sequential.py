"""Intervals that hold at every look, by simulation where that is what they promise."""

from __future__ import annotations

import math
import random

import pytest

from flatout.sequential import (
    LONE_GAIN,
    QUIET_LONE_GAIN,
    QUIET_SHIFT,
    TYPICAL_SHIFT,
    Evidence,
    evidence_of_pairs,
    evidence_of_unchanged,
    interval_of,
    lone_gain,
    merge,
    merge_size,
    mixture_of,
    prior_scale,
    reach,
    shift_bound,
    tame,
    typical_shift,
)
from flatout.stats import t_quantile

QUIET = Evidence(square=0.001**2, freedom=3, within=0.0)


def e_value(values: list[float], effect: float, c: float) -> float:
    """The ratio of marginal likelihoods as the module writes it, from sums."""
    n = len(values)
    s = math.fsum(value - effect for value in values)
    v = math.fsum((value - effect) ** 2 for value in values)
    return math.sqrt(c / (n + c)) * ((n + c) * v / ((n + c) * v - s * s)) ** (n / 2)


def test_the_closed_form_solves_the_martingale_for_its_bound():
    from flatout.sequential import _weight

    rng = random.Random(1)
    values = [rng.gauss(0.01, 0.02) for _ in range(17)]
    mean = sum(values) / 17
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / 16 / 17)
    bound = mean + reach(17, 16, 0.01) * error
    assert e_value(values, bound, _weight(0.01, 8)) == pytest.approx(100.0, rel=1e-9)


def test_the_marginal_likelihoods_are_those_of_the_priors():
    # both integrals by brute force: scale with density 1 / s, effect normal in units of the scale
    values, c = [0.3, -0.1, 0.5, 0.2], 0.7

    def marginal(shifted: bool) -> float:
        total = 0.0
        for k in range(-300, 200):
            scale = math.exp(0.02 * k)
            n = len(values)
            if shifted:
                # sum over x of N(x; d s, s^2), d ~ N(0, 1 / c), in closed form given s
                s1, s2 = sum(values) / scale, sum(v * v for v in values) / scale**2
                like = math.sqrt(c / (n + c)) * math.exp(-0.5 * (s2 - s1 * s1 / (n + c)))
            else:
                like = math.exp(-0.5 * sum(v * v for v in values) / scale**2)
            total += like / scale**n * 0.02
        return total

    assert marginal(True) / marginal(False) == pytest.approx(e_value(values, 0.0, c), rel=1e-6)


@pytest.mark.parametrize(("alpha", "most"), [(0.05, 0.05), (0.01, 0.01)])
def test_reach_is_exceeded_at_any_look_no_more_often_than_allowed(alpha, most):
    rng = random.Random(3)
    ever = 0
    runs = 1500
    limits = {n: reach(n, n - 1, alpha) for n in range(4, 41)}
    for _ in range(runs):
        total = squares = 0.0
        for n in range(1, 41):
            value = rng.gauss(0, 1)
            total += value
            squares += value * value
            if n < 4:
                continue
            mean = total / n
            error = math.sqrt((squares - n * mean * mean) / (n - 1) / n)
            if abs(mean) > limits[n] * error:
                ever += 1
                break
    assert ever / runs <= most


def test_reach_costs_little_over_one_look():
    for n in (10, 14, 20, 36, 60):
        assert reach(n, n - 1, 0.01) / t_quantile(0.01, n - 1) < 1.6
    assert reach(4, 3, 0.001, near=5) < 40
    assert math.isinf(reach(2, 1, 0.01))
    assert math.isinf(reach(1, 0, 0.01))


def test_ten_times_is_proved_by_one_pair_of_processes_and_two_per_cent_is_not():
    rng = random.Random(5)

    def pair(effect: float, turns: int = 8) -> list[float]:
        return [effect + rng.gauss(0, 0.002) for _ in range(turns)]

    apart = evidence_of_unchanged([pair(math.log(1.02))])
    tenfold = interval_of([pair(math.log(10.0))], alpha=0.001, evidence=apart)
    assert tenfold.low > math.log(1.5)
    small = interval_of([pair(math.log(1.02))], alpha=0.001, evidence=apart)
    assert small.low < 0
    assert small.processes > small.turns
    doubled = interval_of([pair(math.log(1.9))], alpha=0.001, evidence=apart)
    assert doubled.processes >= QUIET_LONE_GAIN, (
        "one difference of unchanged processes may be small by luck"
    )


def turns(draw: random.Random, effect: float, spread: float, count: int = 6) -> list[float]:
    return [effect + draw.gauss(0, spread) for _ in range(count)]


def test_quiet_turns_let_one_pair_of_processes_prove_a_quarter():
    draw = random.Random(12)
    quiet = evidence_of_unchanged([turns(draw, 0.001, 0.001)])
    quarter = interval_of([turns(draw, math.log(1.25), 0.001)], alpha=0.001, evidence=quiet)
    assert quarter.low > 0.0
    twice = evidence_of_unchanged([turns(draw, 0.001, 0.001), turns(draw, -0.0005, 0.001)])
    large = interval_of([turns(draw, math.log(4.78), 0.001)], alpha=0.001, evidence=twice)
    assert large.radius < 0.05
    noisy = evidence_of_unchanged([turns(draw, 0.001, 0.1)])
    careful = interval_of([turns(draw, math.log(1.25), 0.1)], alpha=0.001, evidence=noisy)
    assert careful.processes >= LONE_GAIN


def test_what_is_taken_for_granted_of_processes_grows_with_the_turns_spread():
    spreads = (None, 0.2, 0.03, 0.02, 0.01, 0.005, 0.003, 0.0003)
    scales = [prior_scale(spread) for spread in spreads]
    gains = [lone_gain(spread) for spread in spreads]
    assert scales == sorted(scales, reverse=True)
    assert gains == sorted(gains, reverse=True)
    assert (scales[0], scales[1], scales[-1]) == (TYPICAL_SHIFT, TYPICAL_SHIFT, QUIET_SHIFT)
    assert gains[:3] == [LONE_GAIN] * 3
    assert gains[-2:] == pytest.approx([QUIET_LONE_GAIN] * 2)


def test_a_comparison_with_noisy_turns_is_taken_for_noisy_whatever_the_unchanged_program_is():
    draw = random.Random(13)
    quiet = evidence_of_unchanged([turns(draw, 0.0, 0.001)])
    interval = interval_of([turns(draw, math.log(1.25), 0.1)], alpha=0.001, evidence=quiet)
    assert interval.processes >= LONE_GAIN


def test_two_kinds_of_processes_that_are_quiet_are_covered_by_one_pair_of_them():
    draw = random.Random(14)
    missed = 0
    for _ in range(400):
        mode = math.log1p(draw.uniform(0.05, 0.2))
        first, again, other = (mode if draw.random() < 0.5 else 0.0 for _ in range(3))
        evidence = evidence_of_unchanged([turns(draw, first - again, 0.001)])
        pair = turns(draw, math.log(1.5) + first - other, 0.001)
        interval = interval_of([pair], alpha=0.01, evidence=evidence)
        missed += not interval.low <= math.log(1.5) <= interval.high
    assert missed <= 4


def test_two_per_cent_is_proved_by_several_pairs_of_processes():
    rng = random.Random(6)
    clusters: list[list[float]] = []
    needed = 0
    while needed < 6:
        needed += 1
        shift = rng.gauss(0, 0.001)
        clusters.append([0.02 + shift + rng.gauss(0, 0.002) for _ in range(8)])
        interval = interval_of(clusters, alpha=0.001, evidence=[QUIET])
        if interval.low > 0:
            break
    assert 1 <= needed <= 4
    assert interval.low < 0.02 < interval.high


def test_more_turns_do_not_narrow_what_processes_hide():
    rng = random.Random(7)
    few = [rng.gauss(0, 0.03) for _ in range(8)]
    many = few + [rng.gauss(0, 0.03) for _ in range(192)]
    short = interval_of([few], alpha=0.01, evidence=[QUIET])
    long = interval_of([many], alpha=0.01, evidence=[QUIET])
    assert long.turns < short.turns / 3
    assert long.processes == pytest.approx(short.processes)
    assert long.radius >= long.processes


@pytest.mark.parametrize("tau", [0.001, 0.01, 0.05])
def test_shifts_of_processes_are_covered_at_every_number_of_them(tau):
    rng = random.Random(f"shifts/{tau}")
    runs, missed = 250, 0
    for _ in range(runs):
        first = rng.gauss(0, tau / math.sqrt(2))
        again = [
            [first - other + rng.gauss(0, 0.002) for _ in range(6)]
            for other in (rng.gauss(0, tau / math.sqrt(2)) for _ in range(3))
        ]
        evidence = evidence_of_unchanged(again)
        clusters: list[list[float]] = []
        for _ in range(4):
            shift = rng.gauss(0, tau)
            clusters.append([shift + rng.gauss(0, 0.002) for _ in range(6)])
            interval = interval_of(clusters, alpha=0.05, evidence=evidence)
            if not interval.low <= 0.0 <= interval.high:
                missed += 1
                break
    assert missed / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_the_noise_of_turns_is_not_taken_for_shifts():
    noisy = evidence_of_unchanged([[0.03, -0.03, 0.02, -0.02, 0.04, -0.03]])
    clear = evidence_of_unchanged([[0.012] * 5 + [0.0121]])
    assert noisy[0].within > clear[0].within
    assert typical_shift(mixture_of(noisy)) < typical_shift(mixture_of(clear))


def test_the_bound_on_shifts_is_their_mixtures_quantile():
    normal = [(0.01, 1.0)]
    assert shift_bound(normal, 1.0, 0.05) == pytest.approx(0.0196, rel=1e-3)
    assert shift_bound(normal, 0.25, 0.05) == pytest.approx(0.0098, rel=1e-3)
    for evidence in ([], [QUIET]):
        mixture = mixture_of(evidence)
        assert sum(weight for _, weight in mixture) == pytest.approx(1.0, abs=1e-9)
        draw = random.Random(4)
        taus, weights = zip(*mixture, strict=True)
        shifts = [draw.gauss(0, draw.choices(taus, weights)[0]) for _ in range(4000)]
        bound = shift_bound(mixture, 1.0, 0.1)
        assert sum(abs(shift) > bound for shift in shifts) / 4000 == pytest.approx(0.1, abs=0.016)


def test_several_unchanged_processes_share_the_first():
    # levels 0, 1, 2 and 3: the variance of a level is 5 / 3, that of a difference twice as much
    (evidence,) = evidence_of_unchanged([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    assert evidence.freedom == 3
    assert evidence.square == pytest.approx(2 * 5 / 3)


def test_fresh_pairs_tell_by_their_spread():
    assert evidence_of_pairs([[1.0, 1.0]]) == []
    (evidence,) = evidence_of_pairs([[1.0, 1.0], [3.0, 3.0]])
    assert evidence.freedom == 1
    assert evidence.square == pytest.approx(2.0)


def test_what_depends_on_its_neighbours_is_merged():
    rng = random.Random(9)
    slow, value = [], 0.0
    for _ in range(60):
        value = 0.85 * value + rng.gauss(0, 0.01)
        slow.append(value)
    white = [rng.gauss(0, 0.01) for _ in range(60)]
    assert merge_size([slow]) >= 4
    assert merge_size([white]) <= 2
    assert merge([1.0, 3.0, 5.0, 7.0, 9.0], 2) == [2.0, 7.0]
    assert merge([1.0], 4) == [1.0]
    wide = interval_of([slow], alpha=0.05, processes_differ=False)
    assert wide.merged >= 4
    assert wide.turns > 2 * interval_of([white], alpha=0.05, processes_differ=False).turns


def test_far_values_are_moved_back_and_only_those():
    values = [0.01 * i for i in range(-6, 7)]
    assert tame([*values, 50.0])[-1] < 1.0
    assert tame(values) == values
    assert tame([0.0, 0.0, 9.0]) == [0.0, 0.0, 9.0], "too few to tell which is far"


def test_too_little_gives_no_interval():
    assert interval_of([], alpha=0.01) is None
    assert interval_of([[1.0]], alpha=0.01) is None
    lone = interval_of([[0.1, 0.2, 0.3]], alpha=0.01, processes_differ=False)
    assert math.isinf(lone.radius)
