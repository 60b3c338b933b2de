"""What is odd about the untouched program and limits what can be said of it: a sentence each."""

from __future__ import annotations

import math

from flatout.guard.gradients import NO_AGREEMENT_DB, own_agreement_db
from flatout.pace import pace_of
from flatout.report.record import Record
from flatout.trial import Outcome

LEAST_LOSSES = 4
REPRODUCIBLE_DB = 15.0
"""Two unchanged runs that agree less than this let nothing be said about BF16 and the like."""
SLOW_STEP_SECONDS = 5.0
STEPS_OF_ONE = 320
"""That a search takes until its first technique is decided, where steps are slow."""


def oddities(record: Record, *, untried: bool) -> list[str]:
    """In the order in which a person should mend them. ``untried``: time was too short for a technique."""
    baseline = record.baseline
    if baseline is None:
        return []
    slow = _of_slow_steps(record) if untried else ""
    return [text for text in (_of_losses(baseline), _of_repeats(record), slow) if text]


def _of_losses(baseline: Outcome) -> str:
    lost = next((step for step, loss in baseline.losses if not math.isfinite(loss)), None)
    if lost is not None:
        return (
            f"The untouched program's own loss is not a number from step {lost} on: whether a faster one "
            "computes the same cannot be told until that is mended."
        )
    values = {loss for _, loss in baseline.losses}
    if len(values) == 1 and len(baseline.losses) >= LEAST_LOSSES:
        return (
            f"The untouched program's loss is {values.pop():.4g} at every step: it learns nothing, and "
            "nothing shows whether a faster one computes the same."
        )
    if not baseline.losses and baseline.steps >= LEAST_LOSSES:
        return (
            "No loss was seen, since no backward starts from a single number: loss curves could not be "
            "compared, only gradients."
        )
    return ""


def _of_repeats(record: Record) -> str:
    again = record.trials.get("again")
    own = own_agreement_db(again.outcome.gradients) if again is not None else None
    if own is None or own >= REPRODUCIBLE_DB or own <= NO_AGREEMENT_DB:
        return ""
    return (
        "It does not compute the same twice, not even with the same seed (gradients of two unchanged runs "
        f"agree to {own:.0f} dB): data or threads that no seed reaches. A smaller fault cannot be seen."
    )


def _of_slow_steps(record: Record) -> str:
    baseline = record.baseline
    if baseline is None or not baseline.step_seconds:
        return ""
    step = pace_of(baseline)
    budget = record.row.options.budget_seconds
    needed = baseline.startup_seconds * 4 + STEPS_OF_ONE * step
    tried = any(verdict.plan_b for verdict in record.verdicts.values())
    if step < SLOW_STEP_SECONDS or tried or budget >= needed:
        return ""
    hours = max(0.1, needed / 3600)
    return (
        f"One step takes {step:.3g} s, and to decide on one technique takes about {STEPS_OF_ONE} of them: "
        f"give it --budget {math.ceil(hours)}h, or a smaller batch to learn from."
    )
