"""All that the guard's trials of one plan say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flatout.guard.bars import bar_of
from flatout.guard.bits import bits_of_plan, bits_of_program, format_of_plan
from flatout.guard.invariants import (
    differing_data,
    judge_buffers,
    judge_dropout,
    judge_facts,
    judge_model,
)
from flatout.guard.points import Expectation, Findings, judge_looks
from flatout.guard.records import Told, all_of, facts, looks, notes
from flatout.guard.updates import judge_updates
from flatout.technique import Effect
from flatout.trial import GuardReport
from flatout.workload import Discovery


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the untouched program's guard trials told, and the truth's."""

    baseline: Told
    truth: Told = ()
    again: Told = ()
    random: Told = ()
    """With its randomness on."""
    precision: str = ""
    """Of the truth; empty: there is none."""
    unchecked: tuple[str, ...] = ()
    seconds: float = 0.0


def _nothing_at(point: str, steps: tuple[int, ...], baseline: Told) -> str:
    told = facts(baseline)
    skipped = [step for step in steps if step in told and told[step]["skipped"]]
    why = ": the program's gradient scaler skips these steps" if len(skipped) == len(steps) else ""
    return f"{point}: no gradients were compared{why}"


MOST_FAULTS_TOLD = 4
TRUTHS = {
    "float64": "FP64",
    "float32": "FP32 without TF32 and autocast",
    "": "the untouched program itself",
}


def judge_whole(
    plan: Told,
    reference: Reference,
    techniques: Mapping[str, Effect],
    discovery: Discovery,
    *,
    random: Told = (),
    control: Sequence[Told] = (),
    points: Mapping[str, tuple[int, ...]] | None = None,
    unchecked: tuple[str, ...] = (),
    seconds: float = 0.0,
) -> GuardReport:
    """The report of a plan. ``random``: its trial with the program's randomness on; ``control``: what the
    rounding of its format alone does, a draw each, where that was asked; ``points``: what was to be
    compared."""
    models = all_of(reference.baseline, "model")
    program = bits_of_program(discovery, models[0] if models else {})
    kept = bits_of_plan(techniques, program)
    exact = all(effect is Effect.EXACT for effect in techniques.values())
    expected = Expectation(
        bar=bar_of(dict(techniques)),
        bits_lost=program - kept,
        exact=exact,
        float64=reference.precision == "float64",
    )
    skipped = differing_data(reference.baseline, reference.again, reference.truth)
    found = judge_looks(
        looks(plan, "plan"),
        looks(reference.truth, "baseline"),
        looks(reference.again, "again"),
        expected,
        skipped,
        [looks(one, "control") for one in control],
    )
    direct = any(unit.called != "call" for unit in discovery.units)
    invariants, unsteady, steps = judge_facts(
        plan,
        reference.baseline,
        reference.again,
        reference.truth,
        skipped,
        inputs=not direct,
        counts=not any("LBFGS" in one for one in notes(reference.baseline)),
    )
    updates, updates_seen = judge_updates(plan)
    dropout, dropout_seen = judge_dropout(random, reference.random)
    faults = [
        *judge_model(plan, reference.baseline),
        *invariants,
        *dropout,
        *judge_buffers(plan, reference.again),
        *found.faults,
        *updates,
    ]
    open_questions = list(dict.fromkeys([*reference.unchecked, *notes(plan), *found.unknown, *unchecked]))
    if unsteady:
        open_questions.append(f"two unchanged runs do not do the same things: {unsteady[0]}")
    for name, steps_of_point in (points or {}).items() if found.points else ():
        if not any(look.point == name for look in looks(plan, "plan").values()):
            open_questions.append(_nothing_at(name, steps_of_point, reference.baseline))
    if not found.points and not found.unknown:
        open_questions.append("gradients were not compared at any step")
    if not updates_seen and not any("updates could not" in one for one in open_questions):
        open_questions.append("updates were not compared")
    judged = any(point.passed is not None for point in found.points)
    return GuardReport(
        passed=False if faults else (True if judged else None),
        truth=TRUTHS[reference.precision],
        points=tuple(found.points),
        faults=tuple(faults),
        by_rounding=tuple(found.by_rounding),
        excused=tuple(found.excused),
        control=_said(found, format_of_plan(techniques)) if control else "",
        updates=updates_seen,
        invariants=f"data, modes, settings and counts as untouched over {steps} steps"
        if steps and not invariants and not unsteady
        else "",
        dropout=dropout_seen,
        unchecked=tuple(open_questions),
        seconds=seconds,
    )


def _said(found: Findings, format_name: str) -> str:
    """Of a control that was asked."""
    excused = len(found.excused)
    if not excused:
        return ""
    s = "s" * (excused > 1)
    return (
        f"{excused} finding{s} as the rounding of {format_name.upper()} alone bring{'' if s else 's'} "
        f"{'them' if s else 'it'} (first: {found.excused[0]})"
    )


def text_of(report: GuardReport) -> str:
    """One line: every fault, or what was seen."""
    if report.faults:
        more = len(report.faults) - MOST_FAULTS_TOLD
        rest = [f"and {more} more of the kind"] if more > 0 else []
        return "; ".join([*report.faults[:MOST_FAULTS_TOLD], *rest])
    judged = [point for point in report.points if point.passed]
    parts = []
    if judged and all(point.equal for point in judged):
        parts.append(f"gradients equal to the bit at {_places(report)}")
    elif judged:
        least = min((p.overall_db for p in judged if p.overall_db is not None), default=math.nan)
        own = [p.baseline_db for p in judged if p.baseline_db is not None]
        beside = f" (the untouched program itself: {min(own):.0f})" if own else ""
        parts.append(f"gradients agree with {report.truth} to {least:.0f} dB{beside} at {_places(report)}")
    parts += [one for one in (report.control, report.updates, report.invariants, report.dropout) if one]
    if report.unchecked:
        parts.append(f"not checked: {'; '.join(report.unchecked)}")
    return "; ".join(parts)


def _places(report: GuardReport) -> str:
    names = list(dict.fromkeys(point.point for point in report.points if point.passed))
    return ", ".join(names)
