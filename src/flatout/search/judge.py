"""What a warmed process has shown, judged: did its techniques run, does it settle, is it still right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flatout.guard import Judgement, combine
from flatout.guard.bars import bar_of
from flatout.guard.curves import Losses, judge_losses
from flatout.guard.gradients import judge_gradients
from flatout.guard.whole import text_of
from flatout.plan import Plan
from flatout.runners import SessionEnded
from flatout.search.bench import Bench, Process
from flatout.search.guarding import guard_plan, undecided_text
from flatout.search.standing import Standing
from flatout.technique import Effect
from flatout.trial import Gradients, Outcome

RECOMPILES_ALLOWED = 8
"""torch._dynamo gives a function up after so many (config.recompile_limit): from then on it runs uncompiled
and compiles nothing again, so a program that reaches it never settles."""
LATE_RECOMPILES_ALLOWED = 4
"""After the warm-up. A few are honest: an epoch's last batch, a length seen for the first time."""
STILL_STEPS = 2
"""Of the short trials with the program's randomness off."""
HOPELESS_DB = 0.0
"""Gradients whose error is as large as they are: refused before any truth is asked."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a plan cannot be taken, whatever its speed."""

    standing: Standing
    reason: str
    error: str = ""
    """Class in errors.py for its trial; empty: the trial itself is sound."""
    recompiles: int = 0
    """Where the fault is compiling without end: how often. Other settings may help."""


FAULTS = {
    "OutOfMemory": "out of memory",
    "Hung": "no step within the time allowed",
    "TooFewSteps": "the program ends before it could be measured",
}


def fault_of_end(outcome: Outcome, *, left_seconds: float) -> Fault:
    """From the outcome of a process that failed. ``left_seconds``: of the budget, for it to use;
    to have had too little of it is no failure."""
    if outcome.error == "Hung" and left_seconds <= 0.0:
        return Fault(
            standing=Standing.NOT_TRIED,
            reason="the budget ended before it could be timed",
            error=outcome.error,
        )
    if outcome.error == "TechniqueInactive":
        return Fault(
            standing=Standing.REFUSED,
            reason=outcome.reason,
            error=outcome.error,
            recompiles=outcome.recompiles,
        )
    reason = (
        outcome.reason or FAULTS.get(outcome.error, "") or f"it ended with exit code {outcome.exit_code}"
    )
    return Fault(standing=Standing.FAILED, reason=reason, error=outcome.error)


def fault_of(
    bench: Bench, plan: Plan, outcome: Outcome, *, warm_recompiles: int | None = None
) -> Fault | None:
    """From what a process has shown, whether it still lives or not.

    ``warm_recompiles``: those counted when its warm-up was over, where that is known.
    """
    assert bench.discovery is not None
    for name in plan.names:
        evidence = outcome.active.get(name)
        missing = (
            "the agent saw nothing of it"
            if evidence is None
            else bench.technique(name).active(evidence, bench.discovery)
        )
        if missing:
            return Fault(
                standing=Standing.REFUSED,
                reason=f"{name} did not run: {missing}",
                error="TechniqueInactive",
            )
    since = 0 if warm_recompiles is None else outcome.recompiles - warm_recompiles
    own = bench.baseline.recompiles if bench.baseline is not None else 0
    if outcome.recompiles - own >= RECOMPILES_ALLOWED or since >= LATE_RECOMPILES_ALLOWED:
        late = f", {since} of them after its warm-up" if since > 0 else ""
        return Fault(
            standing=Standing.REFUSED,
            reason=f"{outcome.recompiles} recompiles in {outcome.steps} steps{late}",
            recompiles=outcome.recompiles,
        )
    return None


def guard_fault(bench: Bench, process: Process, outcome: Outcome) -> Fault | None:
    """What the guard has against a plan after its first steps, before time is spent on its speed."""
    gradients = _judge_first_step(bench, process.plan, outcome.gradients)
    assert bench.discovery is not None
    # with dropout the difference may be other draws: judged apart before the plan is accepted, as is what
    # lies near the bar, where the untouched program's own error must be known first
    if gradients.passed is False and not bench.discovery.random and _is_hopeless(bench, outcome.gradients):
        return Fault(standing=Standing.REFUSED, reason=gradients.note)
    losses = judge_curve(bench, process.plan, process.losses)
    return Fault(standing=Standing.REFUSED, reason=losses.note) if losses.passed is False else None


def _is_hopeless(bench: Bench, seen: Gradients | None) -> bool:
    """The first step shows a fault that no truth will excuse."""
    if not bench.runner.guards or seen is None or seen.missing or seen.overall_db is None:
        return True
    return seen.overall_db < HOPELESS_DB


def _judge_first_step(bench: Bench, plan: Plan, seen: Gradients | None) -> Judgement:
    """The gradient probe of a plan: its first step against the untouched program's."""
    bar = bar_of({name: bench.technique(name).effect for name in plan.names})
    return judge_gradients(seen, bar, bench.floor)


def judge_curve(bench: Bench, plan: Plan, losses: Losses) -> Judgement:
    """The losses of a plan's process against the untouched program's."""
    effects = {bench.technique(name).effect for name in plan.names}
    if Effect.RECIPE in effects:
        return Judgement(passed=None, note="losses are not compared: the plan changes the training itself")
    return judge_losses(
        losses, bench.baseline_losses, bench.again_losses, redrawn=_is_redrawn(bench, effects)
    )


def _is_redrawn(bench: Bench, effects: set[Effect]) -> bool:
    """The plan may draw other random numbers. CUDA's dropout draws others for 16 bits than for 32."""
    assert bench.discovery is not None
    if not bench.discovery.random:
        return False
    fewer_bits = Effect.APPROXIMATE in effects and bench.discovery.device.startswith("cuda")
    return Effect.REDRAW in effects or fewer_bits


def _still_gradients(bench: Bench, plan: Plan) -> tuple[Gradients | None, str]:
    """(the gradient probe with the program's own randomness off (dropout p = 0), why there is none or
    empty): two short processes, the first one shared."""
    try:
        reference = _short_trial(bench, "still:baseline", Plan(), "save")
        if reference.error or not reference.steps:
            return None, reference.reason or reference.error
        return _short_trial(bench, f"still:{plan.key}", plan, "compare").gradients, ""
    except SessionEnded as end:
        return None, end.outcome.reason


def judge_plan(
    bench: Bench,
    plan: Plan,
    outcome: Outcome,
    losses: Losses,
    *,
    reserve_seconds: float = 0.0,
    beside: Callable[[], None] = lambda: None,
) -> Judgement:
    """Everything the guard can say about a plan that is about to be accepted. ``reserve_seconds`` of the
    budget are for something else; ``beside`` starts what may start beside the plan's guard trial."""
    report = guard_plan(bench, plan, reserve_seconds=reserve_seconds, beside=beside)
    if report is not None and (report.faults or report.passed is not None):
        own = Judgement(passed=report.passed, note=text_of(report), report=report)
        return combine(own, judge_curve(bench, plan, losses))
    undecided = undecided_text(report)
    if undecided:
        own = Judgement(passed=False, note=undecided, report=report)
        return combine(own, judge_curve(bench, plan, losses))
    open_questions = "; ".join(report.unchecked) if report is not None else ""
    seen = outcome.gradients
    gradients = _judge_first_step(bench, plan, seen)
    assert bench.discovery is not None
    if gradients.passed is False and bench.discovery.random:
        # its techniques may draw other random numbers than the untouched program
        seen, why = _still_gradients(bench, plan)
        gradients = _judge_first_step(bench, plan, seen)
        note = f"no gradients without randomness: {why}" if why else f"{gradients.note}, randomness off"
        gradients = Judgement(passed=gradients.passed, note=note)
    if gradients.passed is False and not _is_hopeless(bench, seen):
        text = "too near the bar where the untouched program's own error is not known"
        gradients = Judgement(passed=None, note=f"cannot judge: {gradients.note}: {text}")
    if open_questions:
        open_questions = f"the guard's own trials could not judge it: {open_questions}"
    left_open = Judgement(passed=None, note=open_questions, report=report)
    return combine(gradients, judge_curve(bench, plan, losses), left_open)


def _short_trial(bench: Bench, key: str, plan: Plan, role: str) -> Outcome:
    known = bench.trials.get(key)
    if known is not None:
        return known.outcome
    process = bench.start(key, plan, reference_role=role, randomness_off=True)
    process.advance(STILL_STEPS)
    outcome = process.completed()
    process.record(outcome)
    process.close()
    return outcome
