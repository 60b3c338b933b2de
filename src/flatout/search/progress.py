"""How far a search has come, as data for a live view or plain lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from flatout.plan import Plan


class Phase(StrEnum):
    """In the order in which a search goes through them."""

    BASELINE = "baseline"
    NOISE = "noise"
    SCREENING = "screening"
    CLIMBING = "climbing"
    PROVING = "proving"
    SHARES = "shares"
    QUALITY = "quality"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One moment of a search. A new one is told whenever something changes; times in seconds."""

    phase: Phase
    text: str
    """One line for a person: what is being done or was just learnt."""
    milestone: bool = False
    """True for a result worth a line of its own where there is no live view (a trial or verdict ended);
    False for what only a live view shows (starting, warming up, a block measured)."""
    best: Plan = field(default_factory=Plan)
    """The best plan proved so far; empty: the program as it is."""
    best_ratio: float | None = None
    """Time of the baseline's step over that of the best plan's."""
    baseline_step_seconds: float | None = None
    elapsed_seconds: float = 0.0
    budget_seconds: float = 0.0
    done: int = 0
    """Techniques decided so far."""
    total: int = 0
    """Techniques that could be decided; 0 while the baseline is not yet understood."""

    @property
    def left_seconds(self) -> float:
        return max(0.0, self.budget_seconds - self.elapsed_seconds)
