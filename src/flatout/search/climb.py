"""The climb: the best plan so far against the same with one more candidate, best screened first.

A candidate stays when the interval lies above 1, the gain matters, and the guard has nothing against
it. A gain small enough to be one lucky process needs more than one pair of them: the interval knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flatout.codec import to_plain
from flatout.guard.curves import Losses
from flatout.plan import Choice, Plan
from flatout.ratios import times
from flatout.search.allowance import Allowance
from flatout.search.bench import ASSUMED_START_SECONDS, SLOW_STEP_SECONDS, Bench
from flatout.search.guarding import guard_seconds, start_ahead
from flatout.search.judge import Fault, fault_of, fault_of_end, guard_fault, judge_plan
from flatout.search.measure import Beaten, Seat, steps_of_block
from flatout.search.prove import Aim, effect_text, numbers, prove
from flatout.search.screen import Screened
from flatout.search.standing import Standing
from flatout.trial import Call, Outcome, Verdict

FINAL_PAIRS_ESTIMATED = 8
LIKELY_GAIN = 1.02
"""Of one whose guard is reckoned with."""
FAIR_SHARE = 0.2
"""Of the whole budget, for measuring one candidate."""
FRESH_SHARE = 0.4
"""With fresh pairs of processes, where it is they that a decision needs."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What came of one candidate."""

    choice: Choice
    standing: Standing
    reason: str
    fault: Fault | None = None
    grown_since: int = 0
    """Techniques in the plan when it was decided."""
    call: Call | None = None


class Climb:
    """The state of a climb: the best plan so far with its seat, the baseline's seat, what was decided."""

    def __init__(self, bench: Bench, baseline: Seat, allowance: Allowance) -> None:
        self.bench = bench
        self.baseline = baseline
        self.best = baseline
        self.allowance = allowance
        """Chances of a false claim that its comparisons may take."""
        self._tries: dict[str, int] = {}
        self.screened: dict[str, Screened] = {}
        self.kept: Seat | None = None
        """The warm process of the best screened candidate, for the first comparison."""
        self.decided: dict[str, Decision] = {}
        self.waiting: list[Choice] = []
        """Candidates whose turn is still to come."""
        self.guard_note = ""
        """What the guard saw of the best plan so far."""
        self.guard_whole = False
        """That came from the guard's own trials."""

    # budget

    def final_seconds(self, guarding: Plan | None = None) -> float:
        """What the last proof needs, and so what no candidate may touch: the guard's trials of the best
        plan so far too, where they are still to be made and ``guarding`` does not take its place."""
        bench = self.bench
        start = 0.0 if self.baseline.alive else bench.start_seconds(Plan())
        if self.best is not self.baseline and not self.best.alive:
            start += bench.start_seconds(self.best.plan)
        if guarding is None:
            start += guard_seconds(bench, self.best.plan)
        return start + FINAL_PAIRS_ESTIMATED * self.pair_seconds(bench.baseline_step_seconds) + 2.0

    def best_step_seconds(self) -> float:
        """Step time of the best plan so far."""
        return self.bench.baseline_step_seconds / (self.bench.best_ratio or 1.0)

    def pair_seconds(self, other_step_seconds: float | None = None) -> float:
        """Estimate of one pair of blocks of the best plan and another, by default one no faster."""
        step = self.best_step_seconds()
        both = step + (step if other_step_seconds is None else other_step_seconds)
        return max(0.8, (4 if step < SLOW_STEP_SECONDS else 2) * both)

    def candidate_seconds(self, plan: Plan, seat: Seat | None) -> float:
        """Estimate for one comparison of ``plan`` with the best so far."""
        bench = self.bench
        step = self.best_step_seconds()
        if not bench.resident:
            return 3 * (bench.start_seconds(plan) + bench.start_seconds(self.best.plan) + 40 * step)
        under_way = (seat is not None and seat.alive) or bench.ahead.has(f"climb:{plan.key}")
        start = 0.0 if under_way else bench.start_seconds(plan)
        if not self.best.alive:
            start += bench.start_seconds(self.best.plan)
        return start + 6 * self.pair_seconds() + self._restart_seconds(plan)

    def seconds_for(self, choices: Sequence[Choice]) -> float:
        """Estimate of trying all of them, the guard of those included that may well be taken."""
        bench = self.bench
        total, made = 0.0, False
        little = eclipsed(bench, choices, self.screened)
        for choice in choices:
            plan = bench.plan_of([choice])
            total += self.candidate_seconds(plan, None)
            gain = expected_gain(bench, choice.name, self.screened.get(choice.name))
            if gain >= LIKELY_GAIN and choice.name not in little:
                total += guard_seconds(bench, plan, with_reference=not made)
                made = True
        return total

    def _restart_seconds(self, plan: Plan) -> float:
        """Where the program is so short that one comparison takes several of its runs."""
        bench = self.bench
        if bench.program_steps is None:
            return 0.0
        step = bench.baseline_step_seconds
        usable = bench.program_steps - max(2, bench.program_steps // 5)
        runs = math.ceil(6 / max(1, usable // steps_of_block(bench, step, step))) - 1
        return runs * (bench.start_seconds(plan) + bench.start_seconds(self.best.plan))

    def fair_seconds(self, share: float) -> float:
        """What measuring one candidate may take: a share of the budget, and so much that the others can
        still be tried."""
        bench = self.bench
        others = sum(
            self.candidate_seconds(bench.with_choice(self.best.plan, choice), None)
            for choice in self.waiting
        )
        room = bench.left() - self.final_seconds() - others
        return min(room, share * bench.options.budget_seconds)

    # one candidate

    def try_candidate(self, choice: Choice) -> Decision:
        """Prove ``choice`` on top of the best plan so far, and take it if it holds."""
        bench = self.bench
        plan = bench.with_choice(self.best.plan, choice)
        bench.ahead.keep_extending(plan)
        key = bench.verdict_key(f"climb:{plan.key}")
        verdict = bench.verdicts.get(key)
        if verdict is None:
            seat = self._seat_for(plan)
            reserve = self.final_seconds()
            needed = self.candidate_seconds(plan, seat)
            if self.guard_whole:
                # a plan that is known to be right is not given up for one that nobody could look at
                needed += guard_seconds(bench, plan)
            if bench.left() - reserve < needed:
                seat.close()
                before = self.decided.get(choice.name)
                if before is not None:
                    return before  # a second try that there is no time for changes nothing
                return self._decide(
                    choice,
                    Standing.NOT_TRIED,
                    f"the budget has {max(0.0, bench.left() - reserve):.0f} s left before the last proof, "
                    f"this needs about {needed:.0f} s",
                )
            verdict, fault = self._compare(key, seat, self._alpha(choice))
            if fault is not None:
                seat.close()
                before = self.decided.get(choice.name)
                if fault.standing is Standing.NOT_TRIED and before is not None:
                    return before
                return self._decide(choice, fault.standing, fault.reason, fault=fault)
            assert verdict is not None
            verdict = bench.add_verdict(verdict)
        else:
            self._alpha(choice)
            seat = Seat(bench=bench, plan=plan, key=f"climb:{plan.key}")
        return self._judge(choice, verdict, seat)

    def _alpha(self, choice: Choice) -> float:
        """Of this comparison of a candidate: most is for its first, half of what is left for each other."""
        tried = self._tries[choice.name] = self._tries.get(choice.name, 0) + 1
        if tried == 1:
            return self.allowance.first_try
        return self.allowance.second_try * 0.5 ** (tried - 1)

    def _compare(self, key: str, seat: Seat, alpha: float) -> tuple[Verdict | None, Fault | None]:
        """A verdict with the guard's word, or the fault that ended it."""
        bench = self.bench
        self._make_room(seat)
        try:
            if bench.resident:
                if not seat.alive:
                    self._start_run(seat.plan)
                fault = self._fault_before(seat)
                if fault is not None:
                    return None, fault
            aim = Aim(
                alpha=alpha,
                matters=bench.options.gain_that_matters,
                reserve_seconds=self.final_seconds(),
                limit_seconds=self.fair_seconds(FAIR_SHARE),
                fresh_limit_seconds=self.fair_seconds(FRESH_SHARE),
            )
            verdict = prove(bench, key, self.best, seat, aim)
        except Beaten as beaten:
            if beaten.seat is seat:
                left = bench.left() - seat.reserve_seconds
                return None, fault_of_end(beaten.outcome, left_seconds=left)
            return None, Fault(
                standing=Standing.FAILED,
                reason=f"the best plan so far failed beside it: {beaten.outcome.reason}",
            )
        return self.guarded(verdict, seat)

    def _fault_before(self, seat: Seat) -> Fault | None:
        """What shows before any time is spent on measuring."""
        try:
            process = seat.warm()
        except Beaten as beaten:
            if beaten.outcome.error == "OutOfMemory" and self.best.alive:
                return None  # the comparison finds out whether it fits alone
            raise
        outcome = process.completed()
        for name in set(seat.plan.names) & set(ASSUMED_START_SECONDS):
            self.bench.learn_start(name, outcome)
        fault = fault_of(
            self.bench, seat.plan, outcome, warm_recompiles=process.recompiles_warm
        ) or guard_fault(self.bench, process, outcome)
        if fault is not None and fault.error:
            process.fail(fault.reason, fault.error)
        return fault

    def guarded(self, verdict: Verdict, seat: Seat) -> tuple[Verdict, Fault | None]:
        """The verdict with what the guard says of a plan that is faster, or the fault that its process
        shows."""
        bench = self.bench
        outcome, losses, fault = self._shown(seat)
        if fault is not None or verdict.call is not Call.BETTER:
            return verdict, fault
        bench.say(f"{seat.plan.key}: faster; is it still right?")
        judged = judge_plan(
            bench,
            seat.plan,
            outcome,
            losses,
            reserve_seconds=self.final_seconds(seat.plan),
            beside=lambda: self._start_next(seat.plan),
        )
        verdict = replace(verdict, guard_note=judged.note, guard_report=judged.report)
        return (replace(verdict, guard=judged.note) if judged.passed is False else verdict), None

    def _shown(self, seat: Seat) -> tuple[Outcome, Losses, Fault | None]:
        """(what the process of a plan has shown, its losses, the fault in that); its trial is written."""
        bench, process = self.bench, seat.process
        if process is None or not process.alive:
            # processes took turns: the last one of this plan has been written down
            trial = next(t for t in reversed(bench.trials.values()) if t.plan == seat.plan)
            return trial.outcome, trial.outcome.losses, fault_of(bench, seat.plan, trial.outcome)
        baseline = self.baseline.process
        if baseline is not None and len(baseline.losses) > len(bench.baseline_losses):
            bench.baseline_losses = tuple(baseline.losses)
        outcome = process.completed()
        fault = fault_of(bench, seat.plan, outcome, warm_recompiles=process.recompiles_warm)
        if fault is not None and fault.error:
            process.fail(fault.reason, fault.error)
        elif fault is None and not process.recorded:
            process.record(outcome)
        return outcome, tuple(process.losses), fault

    def _start_next(self, plan: Plan) -> None:
        """What comes next if ``plan`` is right, on its way while the guard looks at it: the next candidate,
        or the untouched program for the last proof."""
        further = self._next_on(plan)
        if further is not None:
            self._start_run(further)
        elif not self.baseline.alive:
            self.bench.ahead.start(self.baseline.key, self.baseline.plan)

    def _start_run(self, plan: Plan) -> None:
        """A candidate, what comes on top if it is taken, and the guard's trials of both. On top is only
        what has started by then, so that nobody waits for it in vain."""
        bench, reserve = self.bench, self.final_seconds()
        plans = [plan]
        further = self._next_on(plan)
        if further is not None and bench.start_seconds(further) <= bench.start_seconds(plan):
            plans.append(further)
        for one in plans:
            if not bench.ahead.start(f"climb:{one.key}", one, reserve_seconds=reserve):
                return
            if not start_ahead(bench, one, reserve_seconds=reserve):
                return

    def _next_on(self, plan: Plan) -> Plan | None:
        """The first candidate still waiting on top of ``plan``, if it takes nothing's place."""
        plans = (self.bench.with_choice(plan, choice) for choice in self.waiting)
        return next((one for one in plans if set(plan.names) < set(one.names)), None)

    def _judge(self, choice: Choice, verdict: Verdict, seat: Seat) -> Decision:
        bench = self.bench
        matters = 1.0 + bench.options.gain_that_matters
        if verdict.guard:
            seat.close()
            return self._decide(choice, Standing.REFUSED, verdict.guard, verdict=verdict)
        if verdict.call is not Call.BETTER or verdict.ratio is None or verdict.ratio < matters:
            seat.close()
            return self._decide(choice, Standing.NO_GAIN, _no_gain(verdict), verdict=verdict)
        if self.best is not self.baseline:
            self.best.close()
        self.best = seat
        self.guard_note = verdict.guard_note
        self.guard_whole = verdict.guard_report is not None and bool(verdict.guard_report.passed)
        bench.best = seat.plan
        bench.best_ratio = (bench.best_ratio or 1.0) * verdict.ratio
        note_accepted(bench, seat.plan, verdict.key)
        for name, decision in list(self.decided.items()):
            if decision.standing is Standing.APPLIED and name not in seat.plan.names:
                self._decide(decision.choice, Standing.NO_GAIN, f"{choice.name} takes its place, faster")
        return self._decide(
            choice,
            Standing.APPLIED,
            f"{times(verdict.ratio)} on top of {verdict.plan_a.key}",
            verdict=verdict,
        )

    # seats

    def _seat_for(self, plan: Plan) -> Seat:
        kept = self.kept
        if kept is not None:
            self.kept = None
            if kept.plan == plan and kept.alive:
                return kept
            kept.close()
        return Seat(
            bench=self.bench, plan=plan, key=f"climb:{plan.key}", reserve_seconds=self.final_seconds()
        )

    def _make_room(self, seat: Seat) -> None:
        """The baseline's process leaves when three do not fit; the last proof starts it again."""
        bench = self.bench
        if self.best is self.baseline or not self.baseline.alive:
            return
        assert bench.baseline is not None
        shown = [bench.baseline]
        if self.best.process is not None and self.best.process.alive:
            shown.append(self.best.process.peek())
        # the candidate is not known yet: take it for as large as the largest
        largest = max(shown, key=lambda outcome: (outcome.peak_bytes, outcome.host_peak_bytes))
        if not bench.holds(*shown, largest):
            self.baseline.close()

    def _decide(
        self,
        choice: Choice,
        standing: Standing,
        reason: str,
        *,
        fault: Fault | None = None,
        verdict: Verdict | None = None,
    ) -> Decision:
        decision = Decision(
            choice=choice,
            standing=standing,
            reason=reason,
            fault=fault,
            grown_since=len(self.best.plan.choices),
            call=verdict.call if verdict is not None else None,
        )
        self.decided[choice.name] = decision
        note_decision(self.bench, choice, standing, reason, verdict)
        return decision


def note_accepted(bench: Bench, plan: Plan, verdict_key: str) -> None:
    """Write down that ``plan`` is the best from now on; empty: nothing is. The last such note holds."""
    assert bench.discovery is not None
    lines = {name: bench.technique(name).by_hand(plan, bench.discovery) for name in plan.names}
    bench.note("accepted", {"plan": to_plain(plan), "verdict": verdict_key, "by_hand": lines})


def note_decision(
    bench: Bench, choice: Choice, standing: Standing, reason: str, verdict: Verdict | None = None
) -> None:
    """Write down and tell what became of a technique. The last such note of a technique holds."""
    bench.note(
        "decided",
        {
            "name": choice.name,
            "settings": dict(choice.settings),
            "standing": standing.value,
            "reason": reason,
            "verdict": verdict.key if verdict is not None else None,
        },
    )
    bench.decided.add(choice.name)
    bench.say(f"{choice}: {standing}: {reason}", milestone=True)


def expected_gain(bench: Bench, name: str, screened: Screened | None) -> float:
    """What orders the climb: the screened ratio where there is one, else what is usual of the technique,
    as far as its bound allows."""
    if screened is not None and screened.ratio is not None:
        return screened.ratio
    expected = bench.technique(name).expected
    bound = bench.bound(name, bench.baseline_step_seconds)
    return expected if bound is None else min(expected, bound.at_most)


def eclipsed(bench: Bench, choices: Sequence[Choice], screened: Mapping[str, Screened]) -> set[str]:
    """Names of those that bring little once a better one of ``choices`` is in the plan."""
    gains = {one.name: expected_gain(bench, one.name, screened.get(one.name)) for one in choices}
    return {
        name
        for name, gain in gains.items()
        if any(gains.get(other, 0.0) > gain for other in bench.technique(name).eclipsed_by)
    }


def _no_gain(verdict: Verdict) -> str:
    if verdict.low is None:
        return f"cannot tell: {numbers(verdict)}"
    told = f"{numbers(verdict)} over {verdict.plan_a.key}"
    smallest = (
        f"; {effect_text(verdict.smallest_effect)} would have been seen"
        if verdict.smallest_effect is not None
        else ""
    )
    if verdict.call is Call.WORSE:
        return f"slower: {told}"
    if verdict.call is Call.BETTER:
        return f"a gain, but too small to matter: {told}"
    if verdict.call is Call.UNKNOWN:
        return f"cannot tell: {verdict.reason or told}"
    return f"no difference that this machine can show: {told}{smallest}"
