"""Each technique's share: the final plan against the same without it, where the budget allows."""

from __future__ import annotations

from flatout.plan import Plan
from flatout.ratios import times
from flatout.search.bench import Bench
from flatout.search.climb import Climb
from flatout.search.measure import Beaten, Seat
from flatout.search.prove import LEAST_TURNS, Aim, prove


def measure_shares(bench: Bench, climb: Climb, *, alpha: float) -> None:
    """Their verdicts. Where the climb's last step compared just these two plans, its own verdict holds."""
    plan = climb.best.plan
    turns = bench.options.figures.share_pairs
    if len(plan.choices) < 2 or not bench.resident or not turns:
        return
    waiting = [
        choice
        for choice in reversed(plan.choices)
        if not _compared_by_climb(bench, bench.without(plan, choice.name), plan)
    ]
    while waiting:
        choice = waiting.pop(0)
        less = bench.without(plan, choice.name)
        key = bench.verdict_key(f"share:{choice.name}")
        verdict = bench.verdicts.get(key)
        if verdict is None:
            step = bench.baseline_step_seconds
            seat = Seat(bench=bench, plan=less, key=f"share:{choice.name}")
            needed = LEAST_TURNS * max(1.5, 5 * step)
            needed += 0.0 if bench.ahead.has(seat.key) else bench.start_seconds(less)
            if not climb.best.alive:
                needed += bench.start_seconds(plan)
            if bench.left() < needed:
                continue
            bench.say(f"share of {choice.name}: the plan without it")
            if climb.baseline is not climb.best:
                climb.baseline.close()
            bench.ahead.start_all(
                {f"share:{one.name}": bench.without(plan, one.name) for one in (choice, *waiting)}
            )
            aim = Aim(alpha=alpha, matters=0.0, turns=turns, processes=1, to_the_end=True)
            try:
                verdict = prove(bench, key, seat, climb.best, aim)
            except Beaten as beaten:
                bench.say(f"the share of {choice.name} could not be measured: {beaten.outcome.reason}")
                seat.close()
                continue
            seat.close()
            bench.add_verdict(verdict)
        if verdict.ratio is not None:
            bench.say(f"{choice.name} is worth {times(verdict.ratio)} in the final plan", milestone=True)
    bench.ahead.keep_only()


def _compared_by_climb(bench: Bench, less: Plan, plan: Plan) -> bool:
    """Not so of what took another's place: then the plan without both was never timed beside it."""
    return any(
        verdict.key.startswith("climb:") and (verdict.plan_a, verdict.plan_b) == (less, plan)
        for verdict in bench.verdicts.values()
    )
