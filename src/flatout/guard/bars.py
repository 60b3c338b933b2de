"""How close a plan's gradients must be to the untouched program's, by what its techniques do.

Signal-to-noise in decibels: 20 dB is one part in ten of the gradient's length, 40 dB one in a hundred.
float32's own rounding through a few dozen layers lands at 80 to 120 dB and can fall to 50 where sums
cancel; a wrong mask, a detached branch or a wrong scale lands below 20. torchao holds every parameter's
gradient under float8 to 20 dB (its float8 tests). BF16 keeps 8 bits of mantissa, so one operation is at
about 50 dB and a whole backward of a deep network at 20 to 35; TF32 keeps 11 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.technique import Effect


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The least agreement that passes. Decibels; None: not asked."""

    name: str
    overall_db: float | None = None
    worst_db: float | None = None
    cosine: float | None = None
    loss: float = 1e-3
    """Largest relative difference of the first step's loss."""


EXACT = Bar(name="exact", loss=0.0)
ROUNDING = Bar(name="rounding", overall_db=40.0, worst_db=20.0, cosine=0.9999)
APPROXIMATE = Bar(name="approximate", overall_db=15.0, cosine=0.98, loss=0.05)

BY_TECHNIQUE = {
    "tf32": Bar(name="TF32", overall_db=35.0, cosine=0.999, loss=0.01),
    "bf16": Bar(name="BF16", overall_db=15.0, cosine=0.98, loss=0.05),
}
"""Where a technique's own bits say more than its class. Cosine 0.98 is what 15 dB amounts to."""


def bar_of(techniques: dict[str, Effect]) -> Bar:
    """The bar of a plan (technique name -> effect): that of its least exact technique."""
    bars = [
        BY_TECHNIQUE.get(name)
        or {Effect.EXACT: EXACT, Effect.APPROXIMATE: APPROXIMATE}.get(effect, ROUNDING)
        for name, effect in techniques.items()
    ]
    return min(
        bars, key=lambda bar: float("inf") if bar.overall_db is None else bar.overall_db, default=EXACT
    )
