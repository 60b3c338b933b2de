"""What the guard refuses, what it lets pass, and where it says that it cannot judge."""

from __future__ import annotations

import math
import random
import re

import pytest

from flatout.guard import Judgement, combine
from flatout.guard.bars import APPROXIMATE, BY_TECHNIQUE, EXACT, ROUNDING, bar_of
from flatout.guard.curves import judge_losses
from flatout.guard.gradients import judge_gradients
from flatout.technique import Effect
from flatout.trial import Gradients


def seen(overall: float, **more: object) -> Gradients:
    values: dict[str, object] = {
        "compared": 9,
        "equal": False,
        "overall_db": overall,
        "worst_db": overall - 10,
        "worst_parameter": "head.bias",
        "median_db": overall,
        "cosine": 1.0,
        "loss": 4.0,
        "reference_loss": 4.0,
    }
    return Gradients(**{**values, **more})  # type: ignore[arg-type]


EQUAL = Gradients(compared=9, equal=True)


def test_the_bar_of_a_plan_is_that_of_its_least_exact_technique():
    assert bar_of({}) is EXACT
    assert bar_of({"pinned": Effect.EXACT}) is EXACT
    assert bar_of({"compile": Effect.REDRAW, "pinned": Effect.EXACT}) is ROUNDING
    assert bar_of({"tf32": Effect.APPROXIMATE, "compile": Effect.REDRAW}) is BY_TECHNIQUE["tf32"]
    assert bar_of({"tf32": Effect.APPROXIMATE, "bf16": Effect.APPROXIMATE}).overall_db == 15.0
    assert bar_of({"other": Effect.APPROXIMATE}) is APPROXIMATE


@pytest.mark.parametrize(
    ("gradients", "bar", "passed", "says"),
    [
        (EQUAL, EXACT, True, "equal to the bit"),
        (seen(140.0), EXACT, False, "must give equal ones"),
        (seen(90.0), ROUNDING, True, "90 dB"),
        (seen(38.0), ROUNDING, False, "needs 40 dB"),
        (seen(45.0, worst_db=12.0), ROUNDING, False, "head.bias agrees to 12 dB"),
        (seen(45.0, worst_db=math.nan), ROUNDING, False, "head.bias"),
        (seen(90.0, cosine=0.9), ROUNDING, False, "cosine 0.9"),
        (seen(90.0, loss=4.1), ROUNDING, False, "first loss is 4.1 instead of 4"),
        (seen(90.0, loss=math.nan), ROUNDING, False, "first loss is nan"),
        (seen(22.0), BY_TECHNIQUE["bf16"], True, "22 dB"),
        (seen(14.0), BY_TECHNIQUE["bf16"], False, "BF16 needs 15 dB"),
        (seen(30.0), BY_TECHNIQUE["tf32"], False, "TF32 needs 35 dB"),
        (seen(math.nan), ROUNDING, False, "not finite"),
        (seen(-math.inf), BY_TECHNIQUE["bf16"], False, "not finite"),
        (seen(math.inf), ROUNDING, True, "inf dB"),
        (seen(90.0, missing=("a", "b", "c", "d")), ROUNDING, False, "4 parameters .*: a, b, c ..."),
        (Gradients(compared=9, equal=True, missing=("a",)), EXACT, False, "1 parameter"),
        (None, ROUNDING, None, "not compared"),
        (Gradients(compared=0, equal=False, reason="file is gone"), ROUNDING, None, "file is gone"),
    ],
)
def test_gradients(gradients, bar, passed, says):
    judged = judge_gradients(gradients, bar, EQUAL)
    assert judged.passed is passed
    assert re.search(says, judged.note)


def test_the_programs_own_noise_lowers_the_bar_a_little_and_then_ends_the_judgement():
    assert judge_gradients(seen(37.0), ROUNDING, seen(42.0)).passed is True
    assert judge_gradients(seen(34.0), ROUNDING, seen(42.0)).passed is False
    assert judge_gradients(seen(37.0), ROUNDING, seen(39.0)).passed is None
    assert judge_gradients(seen(22.0), BY_TECHNIQUE["bf16"], seen(39.0)).passed is True
    assert judge_gradients(seen(120.0), EXACT, seen(118.0)).passed is True
    assert judge_gradients(seen(100.0), EXACT, seen(118.0)).passed is False


def curve(steps: int, seed: int = 0, noise: float = 0.05) -> list[tuple[int, float]]:
    rng = random.Random(seed)
    return [(step, 4.0 * math.exp(-step / 200) + rng.gauss(0, noise)) for step in range(steps)]


def test_equal_losses_pass():
    assert judge_losses(curve(30), curve(30)).passed is True
    assert "equal to the bit" in judge_losses(curve(30), curve(50)).note


def test_rounding_apart_passes_and_divergence_does_not():
    base = curve(60)
    near = [(step, loss * (1 + 1e-5 * step)) for step, loss in base]
    far = [(step, loss + 0.01 * step) for step, loss in base]
    better = [(step, loss - 0.01 * step) for step, loss in base]
    assert judge_losses(near, base).passed is True
    refused = judge_losses(far, base)
    assert refused.passed is False
    assert re.search(r"above the untouched program's 3\.\d+ over steps \d+ to \d+ \(allowed", refused.note)
    refused = judge_losses(better, base)
    assert refused.passed is False, "the same batches give no reason to learn faster"
    assert "below the untouched program's" in refused.note


def falling(
    steps: int, *, speed: float = 1.0, scatter: float = 0.0, seed: int = 0
) -> list[tuple[int, float]]:
    """A loss that falls as a small GPT's does, ``speed`` times as fast; each step's batch has its own
    difficulty, the same for every run, and ``scatter`` of its own."""
    batches, own = random.Random(5), random.Random(seed)
    return [
        (step, 1.0 + 3.0 * math.exp(-speed * step / 100) + batches.gauss(0, 0.1) + own.gauss(0, scatter))
        for step in range(steps)
    ]


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_a_tenth_faster_or_slower_shows_below_what_the_batches_differ(speed: float):
    """As of another learning rate: within 60 steps, though batches differ by as much as the drift."""
    assert judge_losses(falling(60, speed=speed, scatter=0.005), falling(60)).passed is False
    assert judge_losses(falling(60, speed=1 + (speed - 1) / 10, scatter=0.005), falling(60)).passed is True


def test_what_has_learnt_all_before_the_last_windows_is_seen_in_the_first():
    def fast(speed: float) -> list[tuple[int, float]]:
        return [(step, 1.0 + 3.0 * math.exp(-speed * step / 12)) for step in range(100)]

    refused = judge_losses(fast(1.15), fast(1.0))
    assert refused.passed is False
    assert "below the untouched program's" in refused.note
    assert judge_losses(fast(1.15)[60:], fast(1.0)[60:]).passed is True, "nothing of it is left"


def test_scatter_of_the_difference_is_its_scale():
    """A plan whose every step differs at random, by more than any drift that counts, is together."""
    for seed in range(50):
        judged = judge_losses(falling(80, scatter=0.2, seed=seed), falling(80))
        assert judged.passed is True, judged.note


def test_a_wander_is_no_drift():
    """What chaos makes of rounding: it grows, leads away slowly and comes back, by more than counts."""
    base = falling(100)
    for seed in range(100):
        rng, apart, wander = random.Random(seed), 0.0, []
        for step, loss in base:
            apart = 0.9 * apart + rng.gauss(0, min(0.05, 1e-4 * math.exp(step / 5)))
            wander.append((step, loss + apart))
        judged = judge_losses(wander, base)
        assert judged.passed is True, judged.note


def test_divergence_in_the_last_steps_alone_is_seen():
    base = falling(80)
    late = [(step, loss + (0.08 * (step - 60) if step > 60 else 0.0)) for step, loss in base]
    refused = judge_losses(late, base)
    assert refused.passed is False
    assert "over steps 60 to 79" in refused.note


def test_other_random_numbers_lead_elsewhere():
    base = falling(80)
    apart = falling(80, speed=1.15)
    assert judge_losses(apart, base).passed is False
    assert judge_losses(apart, base, redrawn=True).passed is True
    never = [(step, base[0][1]) for step, _ in base]
    assert judge_losses(never, base, redrawn=True).passed is False, "it learns nothing"


def test_a_program_that_throws_itself_back_is_held_to_nothing_smaller():
    base = [(step, loss + (3.0 if 5 <= step < 20 else 0.0)) for step, loss in falling(80)]
    apart = [(step, loss + 0.005 * step) for step, loss in base]
    judged = judge_losses(apart, base)
    assert judged.passed is True
    assert "own climbs by" in judged.note
    assert (
        judge_losses([(step, loss + 0.005 * step) for step, loss in falling(80)], falling(80)).passed
        is False
    )


def test_a_loss_small_by_orders_of_magnitude_is_held_to_its_own_size():
    base = [(step, 10.0 ** (-step / 10) * (1.5 + math.cos(step))) for step in range(80)]
    stuck = [(step, loss + 1e-3) for step, loss in base]
    refused = judge_losses(stuck, base)
    assert refused.passed is False
    assert "0.001 above" in refused.note


def test_one_step_far_out_is_told_and_two_are_a_fault():
    base = falling(60, scatter=0.0)
    one = [(step, loss + (1.5 if step == 30 else 0.002 * math.cos(step))) for step, loss in base]
    judged = judge_losses(one, base)
    assert judged.passed is True
    assert "but for step 30" in judged.note
    two = [(step, loss + (1.5 if step in (30, 45) else 0.002 * math.cos(step))) for step, loss in base]
    refused = judge_losses(two, base)
    assert refused.passed is False
    assert "leaps in 2 of 60 steps, first in step 30" in refused.note
    again = [(step, loss + (1.6 if step == 12 else 0.0)) for step, loss in base]
    assert judge_losses(two, base, again).passed is True, "unchanged runs leap as well"


def test_another_draw_of_the_same_noise_passes():
    refused = sum(
        judge_losses(curve(60, seed), curve(60, 1000 + seed)).passed is False for seed in range(100)
    )
    assert refused == 0


def test_the_noise_of_two_unchanged_runs_is_the_scale():
    base = falling(60)
    plan = falling(60, speed=1.12)
    assert judge_losses(plan, base).passed is False
    assert judge_losses(plan, base, falling(60, speed=0.93)).passed is True, "it leads itself as far away"
    assert judge_losses(plan, base, falling(60, speed=0.99)).passed is False
    base, again = curve(60, 1, 0.5), curve(60, 2, 0.5)
    worse = [(step, loss + 0.3) for step, loss in curve(60, 3, 0.5)]
    assert judge_losses(worse, base, again).passed is True
    much_worse = [(step, loss + 2.0) for step, loss in curve(60, 3, 0.5)]
    assert judge_losses(much_worse, base, again).passed is False


def test_not_finite():
    base = curve(30)
    for bad in (math.nan, math.inf):
        broken = [(step, bad if step >= 7 else loss) for step, loss in base]
        refused = judge_losses(broken, base)
        assert refused.passed is False
        assert "step 7" in refused.note
    never = [(step, math.nan) for step in range(30)]
    judged = judge_losses(never, never)
    assert judged.passed is None
    assert "from the start" in judged.note


def test_constant_loss_and_too_few_steps():
    flat = [(step, 2.0) for step in range(20)]
    same = judge_losses(flat, flat)
    assert same.passed is None, "nothing moves, so nothing is shown to be right"
    assert same.note == "losses cannot be judged: the untouched program's is 2 at every step"
    assert judge_losses([(step, 1.99) for step in range(20)], flat).passed is None
    assert judge_losses([(step, 1.9) for step in range(20)], flat).passed is False
    assert judge_losses([(step, 2.2) for step in range(20)], flat).passed is False
    assert judge_losses(curve(3), [(step, 1.0) for step in range(3)]).passed is None
    assert judge_losses([], flat).passed is None


def test_several_losses_of_a_step_are_averaged():
    base = [(step, float(step + part)) for step in range(20) for part in (1, 3)]
    swapped = [(step, float(step + part)) for step in range(20) for part in (3, 1)]
    assert judge_losses(swapped, base).passed is True


def test_another_number_of_losses_a_step_is_seen_however_late():
    base = [(step, loss) for step, loss in falling(300) for _ in range(2)]
    late = [(step, loss) for place, (step, loss) in enumerate(base) if step < 250 or place % 2]
    refused = judge_losses(late, base)
    assert refused.passed is False
    assert refused.note == "1 backward calls in each step from 289 to 298, untouched 2: other samples"
    assert judge_losses(base[:-1], base).passed is True, "the last step is not finished"
    some = [one for place, one in enumerate(base) if place % 6]
    assert judge_losses(some, base).passed is True, "not in every step"
    uneven = [(step, loss) for step, loss in falling(300) for _ in range(1 + step % 3)]
    assert judge_losses([*uneven, *uneven], uneven).passed is True, "it has no usual number"


def test_combine():
    good, bad, unknown = (Judgement(passed=passed, note=str(passed)) for passed in (True, False, None))
    assert combine(good, bad) == bad
    assert combine(good, unknown) == Judgement(passed=True, note="True; None")
    assert combine(unknown, unknown).passed is None


def test_an_easy_first_batch_does_not_blind_the_curves():
    """It is no climb when the second batch is an ordinary one."""
    draw = random.Random(3)
    batches = [0.3, *(math.exp(draw.gauss(0.0, 0.1)) for _ in range(59))]
    untouched = [(step, (1.0 + 2.0 * math.exp(-step / 30)) * batch) for step, batch in enumerate(batches)]
    learns_nothing = [(step, 3.0 * batch) for step, batch in enumerate(batches)]
    assert judge_losses(learns_nothing, untouched).passed is False
