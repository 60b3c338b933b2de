"""What a person may choose about a search, and the figures that it decides by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pace(StrEnum):
    """How much is spent on finding gains."""

    FAST = "fast"
    NORMAL = "normal"
    THOROUGH = "thorough"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a pace stands for. None of them touches how sure a claim is: fewer pairs find fewer gains."""

    budget_seconds: float
    """Unless the person gives a budget."""
    most_pairs: int
    """Of turns, in one comparison, over all its pairs of processes."""
    share_pairs: int
    """Of turns, for one technique's share of the final plan; 0: no shares are measured."""
    retry_share: float
    """Of the budget: what trying a rejected technique once more on a larger plan may cost."""


FIGURES = {
    Pace.FAST: Figures(budget_seconds=180.0, most_pairs=16, share_pairs=0, retry_share=0.0),
    Pace.NORMAL: Figures(budget_seconds=600.0, most_pairs=60, share_pairs=16, retry_share=0.15),
    Pace.THOROUGH: Figures(budget_seconds=3600.0, most_pairs=240, share_pairs=60, retry_share=0.3),
}


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Plain data, stored in the ledger with the search. Times in seconds."""

    budget_seconds: float = FIGURES[Pace.NORMAL].budget_seconds
    """Wall time for the whole search, process starts and compiles included."""
    only: tuple[str, ...] = ()
    """Names of the techniques to consider; empty: all."""
    without: tuple[str, ...] = ()
    """Names of techniques to leave alone."""
    allow: tuple[str, ...] = ()
    """Names of techniques that may change the recipe, which none may without leave."""
    pace: Pace = Pace.NORMAL
    seed: int | None = None
    """Seed of Python, numpy and torch in every trial; None: 1. All trials share it, since the guard
    compares the same weights and batch."""
    gain_that_matters: float = 0.01
    """A technique is kept when it makes a step at least this fraction faster."""
    confidence: float = 0.99
    """Of the whole search: the chance that nothing which it claims is false, over all its candidates
    and all the times that it looked."""
    fresh: bool = False
    """Start anew even where an unfinished search of the same workload could go on."""
    step_limit_seconds: float = 300.0
    """No single step, the first included, may take longer."""
    quality: int = 0
    """Seeds with which the plan and the untouched program are trained to equal loss at the end; 0: none."""
    isolation: str = "auto"
    """The way of isolation that was asked for."""

    @property
    def figures(self) -> Figures:
        return FIGURES[self.pace]

    @property
    def trial_seed(self) -> int:
        return 1 if self.seed is None else self.seed

    @property
    def resume_key(self) -> dict[str, object]:
        """The options that must agree for a search to go on from an unfinished one; the budget, the way of
        isolation, ``quality`` and ``fresh`` may differ."""
        key: dict[str, object] = {
            "only": sorted(self.only),
            "without": sorted(self.without),
            "seed": self.trial_seed,
            "gain_that_matters": self.gain_that_matters,
            "confidence": self.confidence,
        }
        # left out where they are as ever, so that searches of an earlier flatout go on
        if self.allow:
            key["allow"] = sorted(self.allow)
        if self.pace is not Pace.NORMAL:
            key["pace"] = self.pace.value
        return key
