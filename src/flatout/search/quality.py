"""``--quality N``: the plan and the untouched program trained with N seeds each, after the last proof.

A part of the budget is kept for it from the beginning. As many steps are taken as that allows; every curve
goes to the ledger when its process has ended, and a search that was killed goes on with the next.
"""

from __future__ import annotations

import math

from flatout.guard.curves import per_step
from flatout.ledger import Event
from flatout.plan import Plan
from flatout.runners import SessionEnded
from flatout.search.bench import Bench, came_to_its_end
from flatout.search.measure import Seat
from flatout.search.progress import Phase

QUALITY_SHARE = 0.4
"""Of the whole budget."""
LEAST_STEPS, MOST_STEPS = 40, 2000
LONGER = 1.25
"""Times the untouched program's steps: what the plan may take to its level."""
SAFETY = 0.9
"""Of the time that is left, what is planned for."""
CHUNK_SECONDS = 5.0


def reserved_seconds(bench: Bench) -> float:
    """What of the budget is kept for it: no more than it can use, and nothing where a few steps of each
    seed would not fit."""
    if not bench.options.quality:
        return 0.0
    share = QUALITY_SHARE * bench.options.budget_seconds
    return 0.0 if share < _seconds_of(bench, LEAST_STEPS) else min(share, _seconds_of(bench, MOST_STEPS))


def say_cost(bench: Bench) -> None:
    """Before anything is tried: what it will take."""
    seeds = bench.options.quality
    if not seeds:
        return
    kept = reserved_seconds(bench)
    if kept:
        steps = _steps_within(bench, kept, None)
        text = f"{kept:.0f} s of the budget are kept for training {seeds} seeds of both programs, about "
        text += f"{steps} steps each where a plan gains nothing"
    else:
        budget = _seconds_of(bench, LEAST_STEPS) / QUALITY_SHARE
        text = f"takes a budget of about {budget:.0f} s; it is measured only where time is left"
    bench.say(f"--quality {seeds}: {text}", milestone=True)


def _seconds_of(bench: Bench, steps: int) -> float:
    """What training takes where a plan gains nothing."""
    once = 2 * bench.start_seconds(Plan()) + steps * (1.0 + LONGER) * bench.baseline_step_seconds
    return bench.options.quality * once / SAFETY


def measure_quality(bench: Bench, best: Seat) -> None:
    """Notes ``quality_run`` events, one a process, and before these ``quality_planned``; ``unqualified``
    with the reason where it cannot be done. No process of the search may be alive."""
    if not bench.options.quality:
        return
    bench.phase = Phase.QUALITY
    plan = best.plan
    if not plan:
        bench.note("unqualified", {"reason": "there is no plan to compare"})
        return
    planned = _plan(bench, plan)
    if planned is None:
        return
    done = {(event.data["seed"], event.data["plan"]) for event in _runs(bench)}
    for place in range(bench.options.quality):
        seed = bench.options.trial_seed + place
        for one, steps in ((Plan(), planned), (plan, math.ceil(LONGER * planned))):
            if (seed, one.key) not in done and not _train(bench, one, seed, steps):
                return


def _runs(bench: Bench) -> list[Event]:
    return bench.ledger.events(bench.search, "quality_run")


def _plan(bench: Bench, plan: Plan) -> int | None:
    """Steps of each run: as noted before, else by the time that is left."""
    noted = [
        event.data
        for event in bench.ledger.events(bench.search, "quality_planned")
        if event.data["plan"] == plan.key
    ]
    if noted:
        return int(noted[-1]["steps"])
    steps = _steps_within(bench, bench.left(), plan)
    if steps < LEAST_STEPS:
        reason = f"{bench.left():.0f} s are left, too little for {LEAST_STEPS} steps of each seed"
        bench.note("unqualified", {"reason": reason})
        bench.say(f"--quality was not measured: {reason}", milestone=True)
        return None
    bench.note("quality_planned", {"plan": plan.key, "steps": steps, "seeds": bench.options.quality})
    bench.say(
        f"training {bench.options.quality} seeds of both for {steps} steps each, at most "
        f"{bench.left():.0f} s",
        milestone=True,
    )
    return steps


def _steps_within(bench: Bench, seconds: float, plan: Plan | None) -> int:
    """``plan`` None: not known yet, taken to be as fast as the untouched program."""
    step = bench.baseline_step_seconds
    of_plan = step / bench.best_ratio if plan is not None and bench.best_ratio else step
    starts = bench.start_seconds(Plan()) + bench.start_seconds(plan if plan is not None else Plan())
    room = SAFETY * seconds / bench.options.quality - starts
    steps = min(MOST_STEPS, int(room / (step + LONGER * of_plan)))
    if bench.program_steps is not None:
        steps = min(steps, bench.program_steps)
    return max(0, steps)


def _train(bench: Bench, plan: Plan, seed: int, steps: int) -> bool:
    """One process; False where it failed or the budget ended."""
    process = bench.start(f"quality:{seed}:{plan.key}", plan, reference_role=None, seed=seed)
    try:
        process.advance(1)
        while process.steps < steps:
            if bench.left() <= 0:
                bench.note("unqualified", {"reason": "the budget ended before all seeds were trained"})
                process.close()
                return False
            step = bench.baseline_step_seconds
            process.advance(max(1, min(steps - process.steps, int(CHUNK_SECONDS / step))))
            bench.say(f"seed {seed} of {plan.key}: {process.steps} of {steps} steps")
    except SessionEnded as end:
        if not came_to_its_end(end.outcome):
            bench.note("unqualified", {"reason": f"{plan.key} with seed {seed}: {end.outcome.reason}"})
            return False
    curve = sorted(per_step(process.losses).items())
    process.close()
    bench.note("quality_run", {"seed": seed, "plan": plan.key, "curve": [list(point) for point in curve]})
    return True
