"""What the ledger says about a search beyond its trials: read by a search that goes on and by reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from flatout.codec import from_plain
from flatout.ledger import Event
from flatout.trial import Outcome, Trial, Verdict


def baseline_outcome(trials: Mapping[str, Trial], events: Iterable[Event]) -> Outcome | None:
    """What the untouched program showed. A program that ended early was run twice, and what both showed
    together is in an event of its own."""
    for event in events:
        if event.kind == "baseline":
            outcome: Outcome = from_plain(Outcome, event.data["outcome"])
            return outcome
    trial = trials.get("baseline")
    if trial is None or trial.outcome.discovery is None or not trial.outcome.step_seconds:
        return None
    return trial.outcome


def nth(key: str, number: int) -> str:
    """The name of what is done for one key: ``key`` the first time, then ``key~2``, ``key~3`` ..."""
    return key if number == 1 else f"{key}~{number}"


def key_of(name: str) -> str:
    """The key that ``nth`` made a name of."""
    return name.partition("~")[0]


def latest(trials: Mapping[str, Trial], key: str) -> Trial | None:
    """The last trial of this purpose."""
    found = [trial for name, trial in trials.items() if key_of(name) == key]
    return found[-1] if found else None


def chained(verdicts: Sequence[Verdict]) -> tuple[float, float, float] | None:
    """(ratio, low, high) of several steps of a climb one after another. The bounds are multiplied, which
    is wider than need be and holds together at the sum of their error rates."""
    if not verdicts or any(v.ratio is None or v.low is None or v.high is None for v in verdicts):
        return None
    ratios = [math.prod(getattr(v, name) for v in verdicts) for name in ("ratio", "low", "high")]
    return ratios[0], ratios[1], ratios[2]
