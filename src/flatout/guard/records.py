"""What the guard's trials told (``guarding`` events), as typed data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Told = Sequence[Mapping[str, Any]]
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def number(value: object) -> float:
    """A float that JSON may have had to write as a word."""
    if isinstance(value, str):
        return _WORDS.get(value, math.nan)
    return float(value) if isinstance(value, (int, float)) else math.nan


@dataclass(frozen=True, kw_only=True)
class Row:
    """One parameter's gradient beside the truth's."""

    name: str
    elements: int
    truth_rms: float
    rms: float
    db: float
    finite: bool
    slope: float | None
    slope_error: float
    nil: float
    equal: bool


@dataclass(frozen=True, kw_only=True)
class Look:
    """The gradients of one optimiser at one guarded step."""

    step: int
    point: str
    take: str
    against: str
    """``truth`` or ``baseline``."""
    rows: dict[str, Row]
    equal: bool
    lost: tuple[str, ...]
    gained: tuple[str, ...]
    shapes: tuple[str, ...]
    losses: tuple[float, ...]
    wanted_losses: tuple[float, ...]

    @property
    def key(self) -> tuple[int, str]:
        return self.step, self.take


def looks(told: Told, of: str) -> dict[tuple[int, str], Look]:
    """The comparisons of ``baseline``, ``again`` or ``plan`` with the truth."""
    found = {}
    for event in told:
        if event.get("what") == "gradients" and event.get("of") == of:
            look = Look(
                step=int(event["step"]),
                point=str(event["point"]),
                take=str(event["take"]),
                against=str(event["against"]),
                rows=_rows(event["rows"]),
                equal=bool(event["equal"]),
                lost=tuple(event["lost"]),
                gained=tuple(event["gained"]),
                shapes=tuple(event["shapes"]),
                losses=tuple(number(one) for one in event["losses"]),
                wanted_losses=tuple(number(one) for one in event["wanted_losses"]),
            )
            found[look.key] = look
    return found


def _rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for row in rows:
        name = str(row["name"])
        while name in found:
            name += "'"  # of another model with the same names
        slope = row["slope"]
        found[name] = Row(
            name=name,
            elements=int(row["elements"]),
            truth_rms=number(row["truth_rms"]),
            rms=number(row["rms"]),
            db=number(row["db"]),
            finite=bool(row["finite"]),
            slope=None if slope is None else number(slope),
            slope_error=0.0 if row["slope_error"] is None else number(row["slope_error"]),
            nil=number(row["nil"]),
            equal=bool(row["equal"]),
        )
    return found


def facts(told: Told) -> dict[int, Mapping[str, Any]]:
    """Step -> what the program did in it."""
    return {int(event["step"]): event for event in told if event.get("what") == "facts"}


def all_of(told: Told, what: str) -> list[Mapping[str, Any]]:
    return [event for event in told if event.get("what") == what]


def notes(told: Told) -> list[str]:
    """What a trial could not do, in its own words."""
    return [str(event["note"]) for event in all_of(told, "note")]
