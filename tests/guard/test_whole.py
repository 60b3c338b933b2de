"""Updates, invariants, dropout and the report of it all."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.codec import from_plain, to_plain
from flatout.guard.bits import BF16, FP16, FP32, TF32, bits_of_plan, bits_of_program
from flatout.guard.whole import Reference, judge_whole, text_of
from flatout.renderers.sentences import guard_lines
from flatout.runners.mock import DISCOVERY
from flatout.technique import Effect
from flatout.trial import GuardReport, Outcome, State

from .told import batch, facts, gradients, model, row, update

EFFECTS = {"compile": Effect.ROUNDING}


def told(of: str, **more: Any) -> list[dict[str, Any]]:
    """Of an untouched run: the same every time."""
    return [
        gradients(of, [row()]),
        facts(1),
        facts(2),
        model(),
        update(1),
        update(2),
        *more.get("also", ()),
    ]


REFERENCE = Reference(
    baseline=told("baseline"), truth=told("baseline"), again=told("again"), precision="float64"
)


def judge(plan: list[dict[str, Any]], **more: Any) -> GuardReport:
    return judge_whole(plan, REFERENCE, EFFECTS, DISCOVERY, **more)


def test_an_honest_plan_passes_and_its_report_survives_the_ledger() -> None:
    report = judge(told("plan"), seconds=3.0)
    assert report.passed is True
    assert report.complete
    assert report.faults == ()
    assert "agree with FP64 to 130 dB" in text_of(report)
    assert from_plain(GuardReport, to_plain(report)) == report
    outcome = Outcome(state=State.COMPLETED, guarding=tuple(told("plan")))
    assert from_plain(Outcome, to_plain(outcome)) == outcome


def test_what_a_control_excused_is_told() -> None:
    off = gradients("plan", [row(db=40.0), *(row(str(one)) for one in range(5))])
    off["rows"][0]["slope"] = 1.2
    plan = [off, *told("plan")[1:]]
    effects = {"bf16": Effect.APPROXIMATE}
    alone = judge_whole(plan, REFERENCE, effects, DISCOVERY)
    assert alone.passed is False
    assert alone.faults == alone.by_rounding
    control = [{**gradients("control", off["rows"]), "of": "control"}]
    report = judge_whole(plan, REFERENCE, effects, DISCOVERY, control=[control])
    assert report.passed and report.complete
    assert report.excused == alone.faults
    words = f"1 finding as the rounding of BF16 alone brings it (first: {alone.faults[0]})"
    assert words in text_of(report)
    assert words in guard_lines(report)
    assert from_plain(GuardReport, to_plain(report)) == report
    old = {key: value for key, value in to_plain(report).items() if key not in NEW_FIELDS}
    assert from_plain(GuardReport, old).control == ""


NEW_FIELDS = ("by_rounding", "excused", "control")


def changed(place: int, event: dict[str, Any]) -> list[dict[str, Any]]:
    events = told("plan")
    events[place] = event
    return events


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (
            changed(2, facts(2, settings=[[{"lr": 2e-3, "weight_decay": 0.1, "betas": [0.9, 0.999]}]])),
            "learning rate is 0.002, untouched 0.001, at step 2",
        ),
        (
            changed(1, facts(1, settings=[[{"lr": 1e-3, "weight_decay": 0.0, "betas": [0.9, 0.999]}]])),
            "weight decay is 0, untouched 0.1, at step 1",
        ),
        (changed(1, facts(1, backwards=2)), "2 backward calls, untouched 1, in step 1"),
        (changed(1, facts(1, settings=[])), "0 optimiser updates, untouched 1, in step 1"),
        (changed(2, facts(2, skipped=1)), "the scaler skipped 1 updates, untouched 0, in step 2"),
        (changed(1, facts(1, asleep=["Net.norm"])), "in eval mode and not in training mode (Net.norm)"),
        (
            changed(2, facts(2, inputs=[batch(3)])),
            "input 1 is other data than the untouched program's batch",
        ),
        (changed(2, facts(2, inputs=[batch(2, rows=4)])), "has shape 4x16, untouched 8x16: other samples"),
        (changed(2, facts(2, inner_inputs=[batch(1)])), "reaches the model, inside the plan"),
        (
            changed(1, facts(1, targets=[[[8], "whole", 22.0, 60.0, 90.0]])),
            "loss target 1 is other data",
        ),
        (changed(3, model(ties=[])), "no longer tied: head.weight and tokens.weight"),
        (
            changed(3, model(dtypes={"Net.layer.weight": "bfloat16"})),
            "trained weights are bfloat16, untouched float32 (Net.layer.weight)",
        ),
        (changed(3, model(state_dtypes=["bfloat16"])), "keeps its state in bfloat16, untouched float32"),
        (
            changed(4, update(1, own_size=2e-3, apart=1e-3)),
            "update of step 1, from the untouched program's own gradients: that of layer.weight is 2 times",
        ),
        (changed(5, update(2, own_size=0.0, apart=1e-3, moved=False)), "layer.weight does not move"),
    ],
)
def test_every_fault_names_itself(events: list[dict[str, Any]], words: str) -> None:
    report = judge(events)
    assert report.passed is False
    assert words in text_of(report)


def test_rounding_of_weights_is_no_fault() -> None:
    """A small step of large weights: the update's own numbers are coarse."""
    assert judge(changed(4, update(1, size=1e-8, apart=2e-9, rounding=1e-9))).faults == ()


def test_data_that_the_model_makes_are_not_compared() -> None:
    """What differs in a more exact run depends on the numbers, as a generator's pictures do."""
    other = [facts(1, inputs=[batch(1)]), facts(2, inputs=[[[8, 16], "float", 7.00001, 122.0, 698.0]])]
    reference = Reference(
        baseline=told("baseline"),
        truth=[gradients("baseline", [row()]), *other],
        again=told("again"),
        precision="float64",
    )
    plan = changed(2, facts(2, inputs=[[[8, 16], "float", 7.1, 122.0, 698.0]]))
    assert judge_whole(plan, reference, EFFECTS, DISCOVERY).faults == ()


def test_programs_that_draw_other_data_each_time_cannot_be_judged() -> None:
    again = [gradients("again", [row()]), facts(1, inputs=[batch(7)]), facts(2, inputs=[batch(9)])]
    reference = Reference(baseline=told("baseline"), again=again, precision="")
    report = judge_whole(told("plan"), reference, EFFECTS, DISCOVERY)
    assert report.passed is None
    assert "two unchanged runs are given different data" in text_of(report)


def test_running_statistics() -> None:
    def buffers(moved: float, apart: float) -> dict[str, Any]:
        rows = [
            {"name": "norm.running_mean", "size": 1.0, "apart": apart, "moved": moved, "wanted_moved": 0.1}
        ]
        return {"event": "guarding", "what": "buffers", "step": 2, "rows": rows}

    assert judge([*told("plan"), buffers(0.1, 0.001)]).faults == ()
    still = judge([*told("plan"), buffers(0.0, 0.1)])
    assert "the buffer norm.running_mean does not move in step 2" in text_of(still)


def test_dropout() -> None:
    def called(apart: float, least: float | None = None) -> dict[str, Any]:
        least = apart if least is None else least
        return {
            "what": "dropout",
            "module": "Net",
            "elements": 4096,
            "size": 1.0,
            "apart": apart,
            "least_apart": least,
        }

    reference = Reference(
        baseline=REFERENCE.baseline,
        truth=REFERENCE.truth,
        again=REFERENCE.again,
        random=[called(0.4)],
        precision="float64",
    )

    def said(event: dict[str, Any]) -> str:
        return text_of(judge_whole(told("plan"), reference, EFFECTS, DISCOVERY, random=[event]))

    assert "dropout drawn anew" in said(called(0.41))
    assert "dropout is lost or frozen" in said(called(0.0))
    assert "dropout has another rate" in said(called(0.7))
    assert "two calls of Net draw the same numbers" in said(called(0.4, 0.0))


def test_points_without_a_look_are_named() -> None:
    skipped = [facts(1, skipped=1), facts(2, skipped=1)]
    reference = Reference(
        baseline=[gradients("baseline", [row()], 5), *skipped, model()],
        truth=[gradients("baseline", [row()], 5)],
        precision="float64",
    )
    plan = [gradients("plan", [row()], 5), *skipped, model(), update(5)]
    report = judge_whole(plan, reference, EFFECTS, DISCOVERY, points={"start": (1, 2), "later": (5, 6)})
    assert report.passed is True
    assert not report.complete
    assert any("the program's gradient scaler skips these steps" in one for one in report.unchecked)


def test_bits() -> None:
    from dataclasses import replace

    hopper = {"capability": [9, 0], "matmul": "highest", "cudnn_tf32": True, "convolutions": True}
    cuda = replace(DISCOVERY, device="cuda")
    assert bits_of_program(DISCOVERY, {}) == FP32
    assert bits_of_program(cuda, hopper) == TF32
    assert bits_of_program(cuda, {**hopper, "convolutions": False}) == FP32
    assert bits_of_program(cuda, {**hopper, "capability": [7, 5]}) == FP32
    assert bits_of_program(replace(DISCOVERY, already={"bf16": "autocast bfloat16"}), {}) == BF16
    half = {"bf16": "autocast float16", "fp16": "autocast float16"}
    assert bits_of_program(replace(DISCOVERY, already=half), {}) == FP16
    assert bits_of_plan({"bf16": Effect.APPROXIMATE, "compile": Effect.ROUNDING}, FP32) == BF16
    assert bits_of_plan({"compile": Effect.ROUNDING}, TF32) == TF32
    assert bits_of_plan({"tf32": Effect.APPROXIMATE}, BF16) == BF16


def test_data_that_follow_from_the_numbers_are_not_judged() -> None:
    """As where a model plays, and learns from what it has played."""
    truth = [
        gradients("baseline", [row(db=3.0)]),
        facts(1),
        facts(2, inputs=[[[8], "whole", 4.0, 9.0, 7.0]]),
    ]
    baseline = changed(2, facts(2, inputs=[[[8], "whole", 5.0, 9.0, 7.0]]))
    reference = Reference(
        baseline=baseline,
        truth=truth,
        again=changed(2, facts(2, inputs=[[[8], "whole", 5.0, 9.0, 7.0]])),
        precision="float64",
    )
    plan = changed(2, facts(2, inputs=[[[8], "whole", 6.0, 9.0, 7.0]]))
    plan += [gradients("plan", [row(db=-3.0)], 2)]
    report = judge_whole(plan, reference, EFFECTS, DISCOVERY)
    assert report.faults == ()
    assert any("depend on the program's own numbers" in one for one in report.unchecked)


def test_what_two_unchanged_runs_do_not_do_alike_is_no_fault() -> None:
    """As where threads train side by side: how often each comes to its turn is the machine's doing."""
    again = changed(2, facts(2, backwards=18))
    reference = Reference(
        baseline=told("baseline"), truth=told("baseline"), again=again, precision="float64"
    )

    def judged(plan: list[dict[str, Any]]) -> GuardReport:
        return judge_whole(plan, reference, EFFECTS, DISCOVERY)

    report = judged(changed(2, facts(2, backwards=7)))
    assert report.faults == ()
    assert "two unchanged runs do not do the same things: 18 backward calls" in text_of(report)
    assert "counts as untouched" not in text_of(report)
    assert judged(changed(1, facts(1, backwards=7))).faults == (), "at whatever step"
    # what they do alike is held against a plan as ever
    other = judged(changed(2, facts(2, settings=[[{"lr": 2e-3}]])))
    assert "learning rate" in text_of(other)
