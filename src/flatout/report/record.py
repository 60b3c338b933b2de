"""A search as the ledger holds it, read once and asked from several sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flatout.codec import from_plain
from flatout.ledger import Event, Ledger, SearchRow
from flatout.plan import Plan
from flatout.search.record import baseline_outcome, chained
from flatout.stats import median
from flatout.trial import Call, Outcome, Trial, Verdict


@dataclass(frozen=True, kw_only=True)
class Proved:
    """The best plan and what is known about it against the untouched program."""

    plan: Plan
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    smallest_effect: float | None = None
    baseline_step_seconds: float | None = None
    plan_step_seconds: float | None = None
    pairs: int = 0
    method: str = ""
    guard_note: str = ""
    date: float = 0.0
    """Unix time."""
    lines: dict[str, str] | None = None


class Record:
    """Reads everything about one search; LedgerError where the ledger cannot be read."""

    def __init__(self, ledger: Ledger, search: int) -> None:
        self.row: SearchRow = ledger.search(search)
        self.trials: dict[str, Trial] = ledger.trials(search)
        self.verdicts: dict[str, Verdict] = ledger.verdicts(search)
        self.events: list[Event] = ledger.events(search)
        self.elapsed_seconds = ledger.spent_seconds(search)
        self.baseline: Outcome | None = baseline_outcome(self.trials, self.events)
        folder = self.last("folder")
        self.folder = str(folder.data["path"]) if folder else str(ledger.path.parent)

    def last(self, kind: str) -> Event | None:
        return next((event for event in reversed(self.events) if event.kind == kind), None)

    def per_name(self, kind: str) -> dict[str, dict[str, Any]]:
        """Technique name -> data of its last event of this kind."""
        return {event.data["name"]: event.data for event in self.events if event.kind == kind}

    def outcomes(self) -> list[Outcome]:
        """Of every process: what its trial holds, and what its later end added."""
        ends = [
            from_plain(Outcome, event.data["outcome"]) for event in self.events if event.kind == "ended"
        ]
        return [trial.outcome for trial in self.trials.values()] + ends

    def trials_with(self, name: str) -> list[Trial]:
        """Trials whose plan has a technique."""
        return [trial for trial in self.trials.values() if name in trial.plan.names]

    def proved(self) -> Proved:
        """The best plan so far, with the last proof where there is one, else the climb's own verdicts."""
        accepted = self.last("accepted")
        if accepted is None:
            return Proved(plan=Plan())
        plan: Plan = from_plain(Plan, accepted.data["plan"])
        if not plan:
            return Proved(plan=plan)
        lines = {str(name): str(text) for name, text in accepted.data["by_hand"].items()}
        climbed = self.verdicts.get(str(accepted.data["verdict"]))
        final = self.last("final")
        verdict = self.verdicts.get(str(final.data["verdict"])) if final else None
        if verdict is None or verdict.plan_b != plan:
            if climbed is not None and not climbed.plan_a:
                verdict = climbed
            else:
                return self._chained(plan, lines, accepted.time)
        when = final.time if final is not None and verdict.plan_b == plan else accepted.time
        return Proved(
            plan=plan,
            ratio=verdict.ratio,
            low=verdict.low,
            high=verdict.high,
            smallest_effect=verdict.smallest_effect,
            baseline_step_seconds=median(verdict.samples_a) if verdict.samples_a else None,
            plan_step_seconds=median(verdict.samples_b) if verdict.samples_b else None,
            pairs=verdict.pairs,
            method=verdict.method,
            guard_note=verdict.guard_note or (climbed.guard_note if climbed else ""),
            date=when,
            lines=lines,
        )

    def _chained(self, plan: Plan, lines: dict[str, str], when: float) -> Proved:
        steps = self._steps_to(plan)
        numbers = chained(steps)
        if numbers is None:
            return Proved(plan=plan, lines=lines, date=when)
        ratio, low, high = numbers
        base = median(steps[0].samples_a)
        return Proved(
            plan=plan,
            ratio=ratio,
            low=low,
            high=high,
            baseline_step_seconds=base,
            plan_step_seconds=base / ratio,
            pairs=min(step.pairs for step in steps),
            method="product of the climb's steps",
            guard_note=steps[-1].guard_note,
            date=when,
            lines=lines,
        )

    def _steps_to(self, plan: Plan) -> list[Verdict]:
        """The accepted verdicts that lead from the untouched program to a plan, first one first."""
        accepted = [
            self.verdicts[str(event.data["verdict"])]
            for event in self.events
            if event.kind == "accepted" and str(event.data["verdict"]) in self.verdicts
        ]
        steps: list[Verdict] = []
        wanted = plan
        for verdict in reversed(accepted):
            if verdict.plan_b == wanted and verdict.call is Call.BETTER:
                steps.insert(0, verdict)
                wanted = verdict.plan_a
        return steps if steps and not steps[0].plan_a else []
