"""Equal loss over several seeds: who passes, who does not, and when nothing can be said."""

from __future__ import annotations

import math
import random

import pytest

from flatout.quality import Equal, Interval, judge_quality

STEPS = 300


def curve(seed, *, steps=STEPS, own=0.0, drift=0.0, pace=1.0, draws=""):
    """A falling loss with batch noise that belongs to the seed and noise of its own."""
    batch, other = random.Random(f"{seed}"), random.Random(f"{seed}/{own}/{draws}")
    offset = random.Random(f"start {seed}").gauss(0.0, 0.02)
    return {
        step: 3.0 * math.exp(-pace * step / 150.0)
        + offset
        + batch.gauss(0.0, 0.05)
        + other.gauss(0.0, own)
        + drift * step
        for step in range(steps)
    }


def judge(plan, *, seeds=3, baseline=curve, steps=STEPS, ratio=2.0):
    return judge_quality(
        {seed: baseline(seed) for seed in range(seeds)},
        {seed: plan(seed) for seed in range(seeds)},
        key="bf16",
        steps=steps,
        step_ratio=Interval(value=ratio, low=0.9 * ratio, high=1.1 * ratio),
    )


def test_equal_to_the_bit():
    quality = judge(curve)
    assert quality.call is Equal.YES
    assert "to the bit" in quality.reason
    assert quality.steps_ratio.value == pytest.approx(1.0)
    assert quality.time_ratio.value == pytest.approx(2.0)
    assert quality.time_ratio.low == pytest.approx(1.8), "no surer than the step times are"
    assert quality.difference.value == 0.0


def test_rounding_noise_passes():
    quality = judge(lambda seed: curve(seed, own=0.005, steps=375))
    assert quality.call is Equal.YES
    assert quality.difference.high <= quality.margin
    assert quality.steps_ratio.low < 1.0 < quality.steps_ratio.high


def test_a_drifting_loss_is_worse_and_comes_late_or_never():
    quality = judge(lambda seed: curve(seed, own=0.005, drift=5e-4, steps=375))
    assert quality.call is Equal.WORSE
    assert quality.difference.value == pytest.approx(5e-4 * 285, rel=0.1)
    assert any(result.plan_steps is None for result in quality.seeds)
    assert quality.steps_ratio is None


def test_a_plan_that_learns_more_slowly_but_arrives_is_told_how_late():
    quality = judge(lambda seed: curve(seed, pace=0.9, steps=450))
    assert quality.call is Equal.WORSE
    assert quality.steps_ratio.value < 0.97
    assert quality.time_ratio.value == pytest.approx(2.0 * quality.steps_ratio.value)


def test_a_plan_that_learns_faster_is_no_worse():
    quality = judge(lambda seed: curve(seed, pace=1.2))
    assert quality.call is Equal.YES
    assert quality.steps_ratio.value > 1.1


def test_one_seed_cannot_tell_unless_it_is_equal_to_the_bit():
    quality = judge(lambda seed: curve(seed, own=0.005), seeds=1)
    assert quality.call is Equal.UNKNOWN
    assert quality.difference.low is None
    assert judge(curve, seeds=1).call is Equal.YES


def test_a_program_that_sets_its_own_seeds_has_one_run_whatever_is_asked():
    quality = judge(
        lambda seed: curve(0, own=0.005), seeds=3, baseline=lambda seed: curve(0)
    )  # fmt: skip
    assert quality.call is Equal.UNKNOWN
    assert "sets its own seeds" in quality.reason


def test_noise_that_two_seeds_cannot_see_through():
    quality = judge(lambda seed: curve(seed, own=0.8, draws="a"), seeds=2)
    assert quality.call is Equal.UNKNOWN


def test_losses_that_are_no_numbers():
    def lost(seed):
        return {step: math.nan if step > 250 else loss for step, loss in curve(seed).items()}

    assert judge(lost).call is Equal.WORSE
    assert judge(curve, baseline=lost).call is Equal.UNKNOWN


def test_a_loss_that_does_not_fall_says_little():
    def flat(seed, own=0.0):
        drawn = random.Random(f"{seed}")
        return {step: 1.0 + drawn.gauss(0.0, 0.05) + own for step in range(STEPS)}

    quality = judge(lambda seed: flat(seed, 1e-9), baseline=flat)
    assert "says little" in quality.reason


def test_nothing_trained():
    quality = judge(curve, seeds=0)
    assert quality.call is Equal.UNKNOWN
    assert quality.seeds == ()


def test_a_hundred_honest_plans_are_not_called_worse():
    calls = [
        judge(
            lambda seed, number=number: curve(10 * number + seed, own=0.01, draws=str(number)),
            baseline=lambda seed, number=number: curve(10 * number + seed),
        ).call
        for number in range(100)
    ]
    assert calls.count(Equal.WORSE) <= 8
    assert calls.count(Equal.YES) >= 60
