"""Screening: each candidate once, alone, against what the untouched program showed.

Short on purpose. It drops what clearly loses, fails, is refused, did not run or is not right, and gives
the order in which the others are tried. Nothing is claimed from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flatout.plan import Choice
from flatout.ratios import times as times_text
from flatout.search.bench import SLOW_STEP_SECONDS, Bench
from flatout.search.judge import Fault, fault_of, fault_of_end, guard_fault
from flatout.search.measure import Beaten, Seat
from flatout.search.record import latest
from flatout.search.standing import Standing
from flatout.stats import relative_spread
from flatout.trial import Block

SCREEN_SECONDS = 1.5
SCREEN_STEPS = 12
CLEAR_LOSS = 0.05
"""A candidate slower by this and by four times the spread seen is not tried further."""


@dataclass(frozen=True, kw_only=True)
class Screened:
    """What screening says about one candidate."""

    choice: Choice
    ratio: float | None
    """Step time of the untouched program over the candidate's, each measured alone; None: not known."""
    fault: Fault | None = None
    """Why it goes no further; None: it does."""


def screen(bench: Bench, choice: Choice, reserve_seconds: float) -> tuple[Screened, Seat | None]:
    """Measure one candidate alone. Its seat comes back warm where it goes on; the caller closes it."""
    plan = bench.plan_of([choice])
    key = f"screen:{plan.key}"
    event = next((e for e in bench.ledger.events(bench.search, "screened") if e.data["key"] == key), None)
    if event is not None:
        return _known(bench, choice, event.data), None
    seat = Seat(bench=bench, plan=plan, key=key, reserve_seconds=reserve_seconds)
    try:
        block = _measured(bench, seat)
    except Beaten as beaten:
        ended = fault_of_end(beaten.outcome, left_seconds=bench.left() - reserve_seconds)
        return _done(bench, key, Screened(choice=choice, ratio=None, fault=ended)), None
    times, process = block.step_seconds, seat.process
    assert process is not None
    outcome = replace(process.completed(), step_seconds=times)
    bench.learn_start(choice.name, outcome)
    ratio = bench.baseline_step_seconds / bench.pace_of(block)
    fault = fault_of(bench, plan, outcome, warm_recompiles=process.recompiles_warm) or guard_fault(
        bench, process, outcome
    )
    if fault is None and ratio < 1.0 - max(CLEAR_LOSS, 4.0 * _spread(bench, times)):
        fault = Fault(standing=Standing.NO_GAIN, reason=f"alone it is slower: {times_text(ratio)}")
    if fault is not None and fault.error:
        process.fail(fault.reason, fault.error)
    else:
        process.record(outcome)
    screened = Screened(choice=choice, ratio=ratio, fault=fault)
    _done(bench, key, screened)
    if fault is not None:
        seat.close()
        return screened, None
    return screened, seat


def _measured(bench: Bench, seat: Seat) -> Block:
    """Its steps; once more by itself where memory was short beside others. Beaten when it fails alone."""
    try:
        return _few_steps(bench, seat)
    except Beaten as beaten:
        others = sum(process.alive for process in bench.live)
        if beaten.outcome.error != "OutOfMemory" or not others:
            raise
        bench.say(f"{seat.plan.key}: out of memory beside {others} others: once more alone")
        bench.clear()
        return _few_steps(bench, seat)


def _few_steps(bench: Bench, seat: Seat) -> Block:
    process = seat.warm()
    step = seat.step_seconds()
    least = 4 if step > SLOW_STEP_SECONDS else SCREEN_STEPS
    steps = max(least, min(2000, math.ceil(SCREEN_SECONDS / max(step, 1e-6)))) + 1
    if bench.program_steps is not None:
        steps = max(3, min(steps, bench.program_steps - process.steps))
    return seat.block(steps, seat.key)


def _known(bench: Bench, choice: Choice, data: dict[str, object]) -> Screened:
    trial = latest(bench.trials, str(data["key"]))
    if trial is not None:
        bench.learn_start(choice.name, trial.outcome)
    ratio = data["ratio"]
    fault = data["fault"]
    return Screened(
        choice=choice,
        ratio=ratio if isinstance(ratio, float) else None,
        fault=Fault(
            standing=Standing(fault["standing"]), reason=fault["reason"], recompiles=fault["recompiles"]
        )
        if isinstance(fault, dict)
        else None,
    )


def _done(bench: Bench, key: str, screened: Screened) -> Screened:
    fault = screened.fault
    bench.note(
        "screened",
        {
            "key": key,
            "name": screened.choice.name,
            "ratio": screened.ratio,
            "fault": None
            if fault is None
            else {
                "standing": fault.standing.value,
                "reason": fault.reason,
                "recompiles": fault.recompiles,
            },
        },
    )
    name = str(screened.choice)
    if fault is not None:
        bench.say(f"{name}: {fault.standing}: {fault.reason}", milestone=True)
    else:
        assert screened.ratio is not None
        bench.say(f"{name} alone: about {times_text(screened.ratio)}, to be proved", milestone=True)
    return screened


def _spread(bench: Bench, times: tuple[float, ...]) -> float:
    """Relative: of the untouched program's blocks, of this one's steps, and between processes."""
    own = relative_spread(times) / math.sqrt(len(times))
    return math.hypot(relative_spread(bench.block_medians), own) + bench.process_noise
