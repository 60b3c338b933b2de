"""Judgement by updates: what each optimiser makes of the untouched program's own gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flatout.guard.records import Told, all_of, number

RELATIVE = 0.002
"""Of an update's size: fused and unfused optimisers round apart by some millionths."""
ROUNDINGS = 3.0
"""Spacings of the weight's own numbers that an update may be off by."""


def judge_updates(plan: Told) -> tuple[list[str], str]:
    """(faults, what was seen)."""
    faults: list[str] = []
    compared, worst = 0, 0.0
    for event in all_of(plan, "updates"):
        step = int(event["step"])
        # where the untouched program's own update is no number there is nothing to be held against
        rows = [row for row in event["rows"] if math.isfinite(number(row["size"]))]
        compared += len(rows)
        still = [str(row["name"]) for row in rows if row["wanted_moved"] and not row["moved"]]
        if still:
            names = ", ".join(still[:3]) + (f" and {len(still) - 3} more" if len(still) > 3 else "")
            faults.append(
                f"update of step {step}: {names} {'does' if len(still) == 1 else 'do'} not move, with the "
                "untouched program's own gradients"
            )
        for row in rows:
            if number(row["size"]) > 0:
                worst = max(worst, number(row["apart"]) / number(row["size"]))
        off = [row for row in rows if _off(row) and str(row["name"]) not in still]
        if off:
            faults.append(_text(step, max(off, key=_share), len(off), len(rows)))
    if not compared:
        return faults, ""
    return faults, f"updates from the same gradients agree to {worst:.1g} of their size"


def _off(row: Mapping[str, Any]) -> bool:
    allowed = RELATIVE * number(row["size"]) + ROUNDINGS * number(row["rounding"])
    return not number(row["apart"]) <= allowed


def _share(row: Mapping[str, Any]) -> float:
    return number(row["apart"]) / max(number(row["size"]), 1e-30)


def _text(step: int, row: Mapping[str, Any], off: int, of: int) -> str:
    size, own = number(row["size"]), number(row["own_size"])
    how = f"{own / size:.3g} times as large" if size > 0 else f"{own:.3g} instead of nil"
    if number(row["start_apart"]) > ROUNDINGS * number(row["rounding"]):
        how += ", and the weights before it differ already"
    return (
        f"update of step {step}, from the untouched program's own gradients: that of {row['name']} is "
        f"{how} and {_share(row):.2g} of its size away ({off} of {of} parameters are off)"
    )
