"""What a control excuses, and what it never does."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.guard.bars import bar_of
from flatout.guard.bits import format_of_plan
from flatout.guard.points import Expectation, Findings, judge_looks
from flatout.guard.records import looks
from flatout.technique import Effect

from .told import gradients, row

BF16 = Expectation(bar=bar_of({"bf16": Effect.APPROXIMATE}), bits_lost=16)
STEPS = (1, 2, 5, 6, 8, 9)
NAMES = tuple("abcdefghijklmnopqrstuvwxyz")
Slopes = dict[int, dict[str, float]]
"""Step -> parameter -> its slope; all others are 1."""


def told(of: str, slopes: Slopes, db: float = 40.0, **more: Any) -> list[dict[str, Any]]:
    return [
        gradients(
            of,
            [
                row(name, db=db, slope=slopes.get(step, {}).get(name, 1.0), slope_error=1e-4)
                for name in NAMES
            ],
            step,
            **more,
        )
        for step in STEPS
    ]


def judge(plan: Any, *control: Any, expected: Expectation = BF16) -> Findings:
    return judge_looks(
        looks(plan, "plan"),
        looks(told("baseline", {}, 130.0), "baseline"),
        {},
        expected,
        {},
        [looks(one, "control") for one in control],
    )


ONE_FLIP: Slopes = {9: {"a": 1.2, "b": 0.85}}


def test_a_flip_as_the_control_has_it_is_excused() -> None:
    alone = judge(told("plan", ONE_FLIP))
    assert alone.faults == alone.by_rounding
    assert "the gradient of a is 1.2 times" in alone.faults[0]
    other_place = told("control", {2: {"k": 0.9}, 5: {"x": 1.08}})
    found = judge(told("plan", ONE_FLIP), other_place)
    assert found.faults == found.by_rounding == []
    assert found.excused == alone.faults
    assert [point.passed for point in found.points] == [True] * 6


def test_where_rounding_alone_does_nothing_of_the_kind_it_is_refused() -> None:
    found = judge(told("plan", ONE_FLIP), told("control", {5: {"x": 1.02}}))
    assert found.excused == []
    assert "; rounding alone has no parameter off by more than 0.02, and a is by 0.2" in found.faults[0]
    assert [point.passed for point in found.points] == [True] * 5 + [False]


def test_a_draw_more_may_tell_of_few_parameters_only() -> None:
    quiet = told("control", {})
    found = judge(told("plan", ONE_FLIP), quiet)
    assert found.by_rounding == found.faults
    many: Slopes = {9: dict(zip(NAMES, (1.2, 0.8, 1.15, 0.9, 1.06, 0.93), strict=False))}
    found = judge(told("plan", many), quiet)
    assert len(found.faults) == 1
    assert found.by_rounding == []


def near(slopes: Slopes, size: float) -> Slopes:
    """All others are off by about so much, to either side."""
    each = {name: 1.0 + size * (-1.0) ** place for place, name in enumerate(NAMES)}
    return {step: {**each, **slopes.get(step, {})} for step in STEPS}


@pytest.mark.parametrize(
    ("grown", "faults"),
    [
        (near({5: {"x": 1.1}}, 0.008), 0),
        (near({}, 0.008), 1),
        (near({step: {"x": 1.015} for step in STEPS}, 0.008), 1),
        (near({}, 0.2), 1),
    ],
    ids=["a flip", "errors that grow", "a little more", "errors that grow more"],
)
def test_larger_errors_show_flips_and_excuse_nothing_else(grown: Slopes, faults: int) -> None:
    """A parameter off by 0.2 in one look; the format's own errors are 0.001, the larger ones 0.008."""
    plan = told("plan", near(ONE_FLIP, 0.001))
    usual = told("control", near({}, 0.001))
    assert len(judge(plan, usual).faults) == 1
    found = judge(plan, usual, told("control", grown))
    assert len(found.faults) == faults


def test_errors_as_large_as_the_finding_are_no_flips() -> None:
    """Where rounding moves every parameter, its control says what is usual, and larger errors nothing."""
    plan = told("plan", near({9: {"a": 1.4}}, 0.1))
    found = judge(plan, told("control", near({}, 0.1)), told("control", near({}, 0.8)))
    assert "rounding alone has no parameter off by more than 0.1, and a is by 0.4" in found.faults[0]


def test_more_parameters_than_rounding_strikes_are_refused() -> None:
    struck = dict(zip(NAMES, (1.2, 0.8, 1.15, 0.9, 1.2, 0.85, 1.1), strict=False))
    control = told("control", {2: {"k": 0.9}})
    assert judge(told("plan", {9: dict(list(struck.items())[:4])}), control).faults == []
    found = judge(told("plan", {9: struck}), control)
    assert "rounding alone has only 1 parameters off by more than 0" in found.faults[0]


@pytest.mark.parametrize(
    ("control", "faults"),
    [
        ({step: {NAMES[step]: 1.3} for step in STEPS}, 6),
        ({step: {"a": 0.8} for step in STEPS}, 6),
        ({step: {"a": 1.08} for step in STEPS}, 6),
        ({step: {"a": 1.15} for step in STEPS}, 0),
        ({step: {"a": 1.15} for step in (1, 2)}, 0),
    ],
    ids=["others", "to the other side", "less", "the same", "the same, seldom"],
)
def test_a_parameter_that_is_off_in_every_step_must_be_so_in_the_control(
    control: Slopes, faults: int
) -> None:
    """A wrong backward strikes one place."""
    plan: Slopes = {step: {"a": 1.2} for step in STEPS}
    found = judge(told("plan", plan), told("control", control))
    assert len(found.faults) == faults
    assert found.by_rounding == []
    assert all("here it is by 0.2 in every step" in one for one in found.faults)


def test_decibels_of_one_parameter() -> None:
    plan = told("plan", {})
    plan[3]["rows"][0].update(db=-1.0, truth_rms=0.1)
    control = told("control", {})
    assert "the gradient of a agrees with the truth to -1 dB only" in judge(plan, control).faults[0]
    control[5]["rows"][7]["db"] = 5.0
    assert judge(plan, control).faults == []


@pytest.mark.parametrize(
    ("plan_db", "control_db", "words"),
    [
        (9.0, 14.0, ""),
        (9.0, 30.0, "BF16 needs 15 dB (worst: a, 9 dB); rounding alone has agreement to 30 dB overall"),
        (4.0, 5.0, "the format has too few bits for this program"),
    ],
)
def test_all_gradients_together(plan_db: float, control_db: float, words: str) -> None:
    found = judge(told("plan", {}, plan_db), told("control", {}, control_db))
    assert bool(found.faults) == bool(words)
    assert all(words in one for one in found.faults)
    assert len(found.excused) == (0 if words else 6)


def test_the_loss() -> None:
    plan = told("plan", {}, losses=[2.5])
    assert judge(plan, told("control", {}, losses=[2.2])).faults == []
    refused = judge(plan, told("control", {}, losses=[2.01])).faults
    assert "the loss is 2.5 instead of 2 at the same weights and batch; rounding alone has" in refused[0]


@pytest.mark.parametrize(
    ("more", "rows", "words"),
    [
        ({}, {"slope": 1.1}, "times the true ones in 26 of 26 parameters"),
        ({}, {"nil": 0.5}, "it underflows"),
        ({}, {"rms": 0.0, "db": 0.0}, "it underflows"),
        ({}, {"finite": False, "db": -300.0}, "is not finite"),
        ({"lost": ["a"]}, {}, "no gradient reaches a"),
        ({"losses": [2.0, 2.0]}, {}, "2 losses went backward"),
        ({"losses": [float("nan")]}, {}, "the loss is nan"),
    ],
)
def test_what_is_never_excused(more: dict[str, Any], rows: dict[str, Any], words: str) -> None:
    """Not even where the control shows the same."""
    plan, control = told("plan", {}, **more), told("control", {}, **more)
    for event in (*plan, *control):
        event["rows"] = [{**one, **rows} for one in event["rows"]]
    found = judge(plan, control)
    assert words in found.faults[0]
    assert found.excused == found.by_rounding == []


def absent(of: str, where: dict[int, tuple[str, ...]], how: str) -> list[dict[str, Any]]:
    """Gradients that are lost, gained or nil: step -> parameters."""
    events = told(of, {})
    for event in events:
        names = where.get(event["step"], ())
        if how == "nil":
            nil = {"rms": 0.0, "db": 0.0, "slope": 0.0}
            event["rows"] = [{**one, **(nil if one["name"] in names else {})} for one in event["rows"]]
        else:
            event["rows"] = [one for one in event["rows"] if one["name"] not in names]
            event[how] = list(names)
    return events


@pytest.mark.parametrize("how", ["lost", "gained", "nil"])
def test_an_expert_that_a_token_leaves_or_finds_is_excused_where_rounding_does_it_too(how: str) -> None:
    plan = absent("plan", {6: NAMES[:5]}, how)
    asked = judge(plan)
    assert len(asked.by_rounding) == len(asked.faults) == 1
    found = judge(plan, absent("control", {2: ("w", "x")}, "gained"))
    assert (found.excused, found.faults) == (asked.faults, [])
    refused = judge(plan, absent("control", {2: ("w",)}, "nil"), absent("control", {}, how))
    assert refused.excused == []
    assert "; rounding alone has 1 such gradients at most, and here are 5" in refused.faults[0]


def test_without_any_in_the_control_more_draws_are_asked_for_few() -> None:
    few, many = (absent("plan", {6: NAMES[:count]}, "lost") for count in (2, 9))
    none = told("control", {})
    assert judge(few, none).by_rounding == judge(few, none).faults != []
    assert judge(many, none).by_rounding == [] != judge(many, none).faults
    assert judge(few, none, absent("control", {1: NAMES[:16], 5: NAMES[:4]}, "lost")).faults == []


def test_a_gradient_that_is_never_there_is_no_flip() -> None:
    plan = absent("plan", dict.fromkeys(STEPS, ("a",)), "lost")
    assert judge(plan).by_rounding == []
    found = judge(plan, absent("control", dict.fromkeys(STEPS, ("a", "b")), "lost"))
    assert found.excused == found.by_rounding == []
    assert found.faults[0].endswith("no gradient reaches a")


def test_a_plan_that_keeps_the_bits_loses_no_gradient() -> None:
    exact = Expectation(bar=bar_of({"sdpa": Effect.ROUNDING}), bits_lost=0)
    found = judge(
        absent("plan", {6: ("a",)}, "lost"), absent("control", {6: ("a",)}, "lost"), expected=exact
    )
    assert found.by_rounding == found.excused == []
    assert "no gradient reaches a" in found.faults[0]


def test_beside_a_lost_gradient_the_others_are_judged() -> None:
    plan = absent("plan", {6: ("a",)}, "lost")
    for one in plan[3]["rows"]:
        one["slope"] = 1.3
    found = judge(plan, absent("control", {6: ("a",)}, "lost"))
    assert "times the true ones in 25 of 25 parameters" in found.faults[0]


def test_a_control_that_did_not_come_to_that_step_excuses_nothing() -> None:
    found = judge(told("plan", {}, 9.0), told("control", {}, 9.0)[:2])
    assert len(found.excused) == 2
    assert all("rounding alone has nothing at this step" in one for one in found.faults)


def test_the_format_of_a_plan() -> None:
    approximate, rounding = Effect.APPROXIMATE, Effect.ROUNDING
    assert format_of_plan({"bf16": approximate, "compile": rounding}) == "bf16"
    assert format_of_plan({"tf32": approximate}) == "tf32"
    assert format_of_plan({"tf32": approximate, "bf16": approximate}) == "bf16"
    assert format_of_plan({"planted": approximate}) == "bf16"
    assert format_of_plan({"compile": rounding}) == ""


def test_what_is_not_held_against_the_truth_is_no_question_for_a_control() -> None:
    plan = told("plan", ONE_FLIP)
    later = [
        {**event, "against": "baseline", "rows": [row("a", db=3.0, slope=1.5)]}
        if event["step"] == 6
        else event
        for event in plan
    ]
    alone = judge(later)
    assert len(alone.by_rounding) == 1 and len(alone.faults) > 1
    found = judge(later, told("control", {2: {"k": 0.8, "l": 1.2}}))
    assert "the gradient of a is 1.2 times" in found.excused[0]
    assert found.faults == [one for one in alone.faults if one not in alone.by_rounding]
    assert all("step 6" in one for one in found.faults)


def test_a_loss_that_is_not_finite_is_no_rounding_whatever_went_before() -> None:
    losses = {"losses": [1.5, float("nan")], "wanted_losses": [2.0, 2.0]}
    found = judge(told("plan", {}, **losses))
    assert found.faults and not found.by_rounding
    assert "the loss is nan instead of 2" in found.faults[0]
    off = told("plan", {}, losses=[1.5], wanted_losses=[2.0])
    overflown = told("control", {}, losses=[float("inf")], wanted_losses=[2.0])
    assert len(judge(off, overflown).faults) == len(STEPS)


def test_two_looks_are_too_few_for_a_parameter_that_is_off_in_every_one() -> None:
    short = [event for event in told("plan", {1: {"a": 1.2}, 2: {"a": 1.2}}) if event["step"] <= 2]
    control = [event for event in told("control", {1: {"k": 0.8}}) if event["step"] <= 2]
    assert not judge(short, control).faults
