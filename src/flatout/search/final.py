"""The last proof: the plan that the climb ended with against the untouched program."""

from __future__ import annotations

from dataclasses import replace

from flatout.guard.whole import text_of
from flatout.plan import Plan
from flatout.ratios import times
from flatout.search.bench import Bench
from flatout.search.climb import Climb, note_accepted, note_decision
from flatout.search.guarding import guard_plan, undecided_text
from flatout.search.measure import Beaten
from flatout.search.prove import RESIDENT, Aim, numbers, prove
from flatout.search.shifts import evidence_so_far
from flatout.search.standing import Standing
from flatout.sequential import QUIET_SPREAD, spread_known
from flatout.trial import Call, GuardReport, Verdict

FINAL_FIRST_LOOK = 10
"""Pairs of turns: the interval that people quote may cost a few more than a decision needs, where it is
the turns that make it wide."""
FINAL_FIRST_LOOK_STEP_SECONDS = 0.5
"""The untouched program's step, at most: of longer ones, these few more would cost too much."""


def prove_final(bench: Bench, climb: Climb, *, alpha: float) -> Verdict | None:
    """The verdict, or None where there is no plan or no time left (the climb's own verdicts then stand).

    A plan that it does not confirm is given up: its techniques are no gain.
    """
    plan = climb.best.plan
    if not plan:
        return None
    proved = _proved_by_climb(bench, climb)
    if proved is not None:
        bench.note("final", {"plan": plan.key, "verdict": proved.key})
        bench.say(f"{plan.key}: proved against the untouched program itself already", milestone=True)
        return proved
    key = bench.verdict_key(f"final:{plan.key}")
    verdict = bench.verdicts.get(key)
    if verdict is None:
        report = guard_plan(bench, plan)  # of the climb, where it had the time for it
        verdict = _refused(bench, climb, key, report) or _measure(bench, climb, key, alpha)
        if verdict is None:
            return None
        if report is not None and report.passed and not climb.guard_whole:
            # the climb had no time for it: what it noted then is no longer so
            verdict = replace(verdict, guard_note=text_of(report))
        verdict = bench.add_verdict(replace(verdict, guard_report=report))
    matters = 1.0 + bench.options.gain_that_matters
    if verdict.call is Call.UNKNOWN or verdict.ratio is None:
        reason = f"it cannot tell: {verdict.reason or 'too few blocks'}"
        bench.note("unproved", {"plan": plan.key, "reason": reason})
        bench.say(f"last proof: {reason}", milestone=True)
        return verdict
    if verdict.call is Call.BETTER and verdict.ratio >= matters and not verdict.guard:
        bench.best_ratio = verdict.ratio
        bench.note("final", {"plan": plan.key, "verdict": key})
        bench.say(f"{plan.key}: {times(verdict.ratio)} of the untouched program, proved", milestone=True)
        return verdict
    note_accepted(bench, Plan(), key)
    why = verdict.guard or numbers(verdict)
    for choice in plan.choices:
        note_decision(
            bench,
            choice,
            Standing.REFUSED if verdict.guard else Standing.NO_GAIN,
            f"the last proof against the untouched program did not confirm the plan: {why}",
            verdict,
        )
    climb.best.close()
    climb.best = climb.baseline
    bench.best = climb.baseline.plan
    bench.best_ratio = None
    return verdict


def _proved_by_climb(bench: Bench, climb: Climb) -> Verdict | None:
    """The climb's own verdict, where it compared the plan with the untouched program and its processes are
    the larger part of the interval: the very same ones could say nothing new, where turns are quiet."""
    if not _quiet(bench) or (bench.runner.guards and not climb.guard_whole):
        return None
    for verdict in reversed(bench.verdicts.values()):
        if not verdict.key.startswith("climb:") or verdict.plan_b != climb.best.plan or verdict.plan_a:
            continue
        turns, processes = verdict.turns_radius, verdict.processes_radius
        told = turns is not None and processes is not None and turns <= processes
        return verdict if told and verdict.call is Call.BETTER and not verdict.guard else None
    return None


def _quiet(bench: Bench) -> bool:
    spread = spread_known(evidence_so_far(bench.verdicts.values(), method=RESIDENT))
    return spread is not None and spread <= QUIET_SPREAD


def _refused(bench: Bench, climb: Climb, key: str, report: GuardReport | None) -> Verdict | None:
    """A plan that the climb had no time to guard, and that the guard has something against, or could not
    clear of it."""
    why = undecided_text(report)
    if report is not None and report.faults:
        why = text_of(report)
    if not why:
        return None
    return Verdict(
        key=key,
        plan_a=Plan(),
        plan_b=climb.best.plan,
        call=Call.WORSE,
        ratio=1.0,
        low=None,
        high=None,
        confidence=bench.options.confidence,
        pairs=0,
        smallest_effect=None,
        guard=why,
        guard_note=why,
    )


def _measure(bench: Bench, climb: Climb, key: str, alpha: float) -> Verdict | None:
    step = bench.baseline_step_seconds
    baseline, best = climb.baseline, climb.best
    needed = 3 * max(1.5, 4 * step)
    needed += sum(bench.start_seconds(seat.plan) for seat in (baseline, best) if not seat.alive)
    if not bench.resident:
        needed = 3 * (bench.start_seconds(baseline.plan) + bench.start_seconds(best.plan) + 40 * step)
    if bench.left() < needed:
        bench.note("unproved", {"plan": best.plan.key, "left": bench.left(), "needed": needed})
        bench.say("no time is left for the last proof: the climb's own verdicts stand", milestone=True)
        return None
    bench.say(f"last proof: {best.plan.key} against the untouched program")
    aim = Aim(
        alpha=alpha,
        matters=bench.options.gain_that_matters,
        narrow=True,
        first_look=None if step > FINAL_FIRST_LOOK_STEP_SECONDS or _quiet(bench) else FINAL_FIRST_LOOK,
    )
    try:
        verdict = prove(bench, key, baseline, best, aim)
    except Beaten as beaten:
        bench.note("unproved", {"plan": best.plan.key, "reason": beaten.outcome.reason})
        bench.say(f"the last proof could not be made: {beaten.outcome.reason}", milestone=True)
        return None
    return replace(verdict, guard_note=climb.guard_note)
