"""The fewest techniques that give the speed: what a later one has made worthless leaves the plan.

A technique was proved on the plan of its time. Where the shares of the final plan show that it is hardly
slower without one of them (by half of what matters, at most), the plan without it is guarded and proved
against the untouched program in its turn, and takes the place of the larger one. One technique a search,
the least worth: the error allowed is split over two last proofs.
"""

from __future__ import annotations

from dataclasses import replace

from flatout.guard.whole import text_of
from flatout.plan import Choice, Plan
from flatout.search.bench import Bench
from flatout.search.climb import Climb, note_accepted, note_decision
from flatout.search.guarding import guard_plan, guard_seconds
from flatout.search.measure import Beaten, Seat
from flatout.search.prove import Aim, numbers, prove
from flatout.search.standing import Standing
from flatout.trial import Call, Verdict

MAY_BE_WORTH = 0.06
"""What a technique could still be worth, by its share's interval: one pair of processes leaves it wide."""
SEEN_AT_MOST = 0.5
"""Of the gain that matters: what it was seen to be worth."""
LOST_AT_MOST = 0.025
"""Of the speed of the larger plan's own proof: the smaller plan that is further behind is not taken."""
TURNS_ESTIMATED = 10


def prune(bench: Bench, climb: Climb, *, alpha: float) -> None:
    """Drop what the final plan does not need, where there is one and the budget allows the proof."""
    plan = climb.best.plan
    whole = bench.verdicts.get(f"final:{plan.key}")
    found = _worthless(bench, plan)
    if found is None or whole is None or whole.call is not Call.BETTER or whole.ratio is None:
        return
    choice, share = found
    less = bench.without(plan, choice.name)
    seat = Seat(bench=bench, plan=less, key=f"pruned:{less.key}")
    verdict = _proved(bench, climb, seat, alpha)
    if verdict is None:
        seat.close()
        return
    matters = bench.options.gain_that_matters
    if (
        verdict.call is not Call.BETTER
        or verdict.guard
        or verdict.ratio is None
        or verdict.ratio < max(1.0 + matters, whole.ratio / (1.0 + LOST_AT_MOST))
    ):
        bench.say(f"{choice.name} stays: without it {verdict.guard or numbers(verdict)}", milestone=True)
        seat.close()
        return
    climb.best.close()
    climb.best = seat
    bench.best, bench.best_ratio = less, verdict.ratio
    note_accepted(bench, less, verdict.key)
    bench.note("final", {"plan": less.key, "verdict": verdict.key})
    reason = f"not needed any more: the plan is as fast without it ({numbers(share)} with it)"
    note_decision(bench, choice, Standing.NO_GAIN, reason, share)


def _worthless(bench: Bench, plan: Plan) -> tuple[Choice, Verdict] | None:
    """The technique that is least worth of those that were seen to be worth ``SEEN_AT_MOST`` or less, with
    its share's verdict."""
    found: list[tuple[float, Choice, Verdict]] = []
    seen_at_most = 1.0 + SEEN_AT_MOST * bench.options.gain_that_matters
    for choice in plan.choices:
        share = bench.verdicts.get(f"share:{choice.name}")
        if share is None or share.plan_b != plan or share.ratio is None or share.high is None:
            continue
        # a verdict that cannot tell says nothing, whatever its ratio
        same = share.call in (Call.SAME, Call.WORSE)
        if same and share.ratio < seen_at_most and share.high < 1.0 + MAY_BE_WORTH:
            found.append((share.ratio, choice, share))
    if not found:
        return None
    _, choice, share = min(found, key=lambda entry: entry[0])
    return choice, share


def _proved(bench: Bench, climb: Climb, seat: Seat, alpha: float) -> Verdict | None:
    """The smaller plan against the untouched program, with the guard's word; None where that cannot be."""
    less = seat.plan
    key = bench.verdict_key(f"final:{less.key}")
    known = bench.verdicts.get(key)
    if known is not None:
        return known
    needed = guard_seconds(bench, less) + TURNS_ESTIMATED * max(1.5, 5 * bench.baseline_step_seconds)
    needed += bench.start_seconds(less)
    needed += 0.0 if climb.baseline.alive else bench.start_seconds(Plan())
    if bench.left() < needed:
        bench.say(f"no time is left to prove {less.key}, which may be as fast", milestone=True)
        return None
    bench.say(f"last proof once more: {less.key}, which may be as fast")
    report = guard_plan(bench, less)
    if report is not None and report.faults:
        bench.say(f"{less.key} is refused by the guard: {text_of(report)}", milestone=True)
        return None
    climb.best.close()
    try:
        verdict = prove(
            bench, key, climb.baseline, seat, Aim(alpha=alpha, matters=bench.options.gain_that_matters)
        )
        verdict, fault = climb.guarded(verdict, seat)
    except Beaten as beaten:
        bench.say(f"{less.key} could not be proved: {beaten.outcome.reason}", milestone=True)
        return None
    if fault is not None:
        bench.say(f"{less.key}: {fault.reason}", milestone=True)
        return None
    return bench.add_verdict(replace(verdict, guard_report=verdict.guard_report or report))
