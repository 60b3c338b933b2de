"""Is it still right: what the guard says about a plan, from what its trials showed.

Of the timed processes, ``gradients`` compares the first step's gradients at the same weights and batch with
the untouched program's, and ``curves`` the losses of the same steps. Of the guard's own trials ``whole``
makes one report: gradients at several points of training against the truth (``points``, ``control``),
updates from the same gradients (``updates``), and what must not change at all (``invariants``). Each says
passed, refused with the reason, or that it cannot judge and why.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.trial import GuardReport


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one part of the guard says."""

    passed: bool | None
    """None: it cannot judge, for ``note``."""
    note: str
    """What was seen, in a few words."""
    report: GuardReport | None = None
    """Of the guard's own trials."""


def combine(*judgements: Judgement) -> Judgement:
    """Refused when any refuses; passed when at least one could judge; else cannot judge."""
    refused = [one.note for one in judgements if one.passed is False]
    report = next((one.report for one in judgements if one.report is not None), None)
    if refused:
        return Judgement(passed=False, note="; ".join(refused), report=report)
    known = any(one.passed for one in judgements)
    return Judgement(
        passed=True if known else None,
        note="; ".join(one.note for one in judgements if one.note),
        report=report,
    )
