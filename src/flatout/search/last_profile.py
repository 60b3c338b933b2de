"""One profiled step of the plan that the search ended with: what search/floor.py divides."""

from __future__ import annotations

from flatout.codec import to_plain
from flatout.runners import SessionEnded
from flatout.search.bench import Bench
from flatout.search.measure import Beaten, Seat

PROFILING_SECONDS = 5.0


def profile_last(bench: Bench, best: Seat) -> None:
    """Where it still lives, or time is left to start it. The untouched program's step was profiled when it
    was measured."""
    plan = best.plan
    profiled = bench.ledger.events(bench.search, "profiled")
    if not plan or any(event.data["plan"] == plan.key for event in profiled):
        return
    needed = PROFILING_SECONDS + 2 * best.step_seconds()
    if best.alive:
        # some seconds beyond the budget are worth it, minutes are not
        spare = bench.left() + 2 * PROFILING_SECONDS
    else:
        needed += bench.start_seconds(plan)
        spare = bench.left()
    if spare < needed:
        bench.note("unprofiled", {"plan": plan.key, "reason": f"no time was left ({needed:.0f} s)"})
        return
    bench.say(f"one profiled step of {plan.key}: what is left of it")
    try:
        process = best.warm()
        profile = process.profile()
        shown = process.peek()
    except (Beaten, SessionEnded) as end:
        bench.note("unprofiled", {"plan": plan.key, "reason": end.outcome.reason})
        return
    if profile is None:
        bench.note("unprofiled", {"plan": plan.key, "reason": "the profiler is not to be had there"})
        return
    bench.note(
        "profiled",
        {
            "plan": plan.key,
            "step_seconds": best.step_seconds(),
            "loader_wait_seconds": shown.loader_wait_seconds_per_step,
            "profile": to_plain(profile),
        },
    )
