"""Judgement by the first step's gradients: same weights, same batch, same random state."""

from __future__ import annotations

import math

from flatout.guard import Judgement
from flatout.guard.bars import Bar
from flatout.trial import Gradients

FLOOR_MARGIN_DB = 6.0
"""A plan may lie this much below two unchanged runs' own agreement: half of their difference again."""

NO_AGREEMENT_DB = -300.0
"""The agent's figure for gradients that are not finite, or are all zero on one side (its NOISELESS_DB)."""


def judge_gradients(seen: Gradients | None, bar: Bar, floor: Gradients | None) -> Judgement:
    """``seen``: the plan against the baseline; ``floor``: a second unchanged run against the baseline."""
    if seen is None:
        return Judgement(passed=None, note="gradients were not compared")
    if not seen.compared:
        return Judgement(passed=None, note=f"gradients could not be compared: {seen.reason or 'none seen'}")
    own = own_agreement_db(floor)
    if own is not None and own < (bar.overall_db or 0.0):
        return Judgement(
            passed=None,
            note=f"gradients cannot be judged: two unchanged runs' {agreement_text(own)}"
            + (" only" if own > NO_AGREEMENT_DB else ""),
        )
    if seen.missing:
        names = ", ".join(seen.missing[:3]) + (" ..." if len(seen.missing) > 3 else "")
        return Judgement(
            passed=False, note=f"{len(seen.missing)} parameters lost or gained a gradient: {names}"
        )
    if seen.equal:
        return Judgement(passed=True, note="gradients equal to the bit")
    return _by_numbers(seen, bar, floor)


def agreement_text(decibels: float) -> str:
    """``agree to 25 dB``, or what ``NO_AGREEMENT_DB`` stands for."""
    if decibels <= NO_AGREEMENT_DB:
        return "are not finite, or nothing in one of the two: there is nothing to compare"
    return f"agree to {decibels:.0f} dB"


def own_agreement_db(floor: Gradients | None) -> float | None:
    """How far two unchanged runs agree, in decibels; None when to the bit or unknown."""
    if floor is None or floor.equal or not floor.compared:
        return None
    return floor.overall_db


def _by_numbers(seen: Gradients, bar: Bar, floor: Gradients | None) -> Judgement:
    if not _finite(seen.overall_db):
        return Judgement(passed=False, note=f"gradients are not finite (overall {seen.overall_db} dB)")
    assert seen.overall_db is not None
    seen_text = f"gradients agree to {seen.overall_db:.0f} dB"
    own_overall = own_agreement_db(floor)
    own_worst = None if floor is None or floor.equal else floor.worst_db
    if bar.overall_db is None:  # exact
        if own_overall is not None and seen.overall_db >= own_overall - FLOOR_MARGIN_DB:
            return Judgement(
                passed=True, note=f"{seen_text}, as two unchanged runs do ({own_overall:.0f} dB)"
            )
        return Judgement(passed=False, note=f"{seen_text}, but an exact technique must give equal ones")
    needed = _lowered(bar.overall_db, own_overall)
    if seen.overall_db < needed:
        return Judgement(passed=False, note=f"{seen_text} overall, {bar.name} needs {needed:.0f} dB")
    if bar.worst_db is not None and seen.worst_db is not None:
        least = _lowered(bar.worst_db, own_worst)
        if not seen.worst_db >= least:
            return Judgement(
                passed=False,
                note=f"the gradient of {seen.worst_parameter} agrees to {seen.worst_db:.0f} dB only, "
                f"{bar.name} needs {least:.0f} dB",
            )
    if bar.cosine is not None and seen.cosine is not None and not seen.cosine >= bar.cosine:
        return Judgement(
            passed=False, note=f"gradients point elsewhere: cosine {seen.cosine:.4f}, needs {bar.cosine}"
        )
    if seen.loss is not None and seen.reference_loss is not None and math.isfinite(seen.reference_loss):
        apart = abs(seen.loss - seen.reference_loss) / max(abs(seen.reference_loss), 1e-12)
        if not apart <= bar.loss:
            return Judgement(
                passed=False,
                note=f"the first loss is {seen.loss:.6g} instead of {seen.reference_loss:.6g} "
                f"at the same weights and batch",
            )
    return Judgement(passed=True, note=f"{seen_text} ({bar.name} needs {needed:.0f})")


def _lowered(bar: float, own: float | None) -> float:
    return bar if own is None or not math.isfinite(own) else min(bar, own - FLOOR_MARGIN_DB)


def _finite(value: float | None) -> bool:
    """Infinite agreement (equal up to the sign of zero, say) is fine; NaN and nothing are not."""
    return value is not None and not math.isnan(value) and value > -math.inf
