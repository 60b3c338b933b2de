"""What a person may choose about a search, and the figures that it decides by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Plain data, stored in the ledger with the search. Times in seconds."""

    budget_seconds: float = 600.0
    """Wall time for the whole search, process starts and compiles included."""
    only: tuple[str, ...] = ()
    """Names of the techniques to consider; empty: all."""
    without: tuple[str, ...] = ()
    """Names of techniques to leave alone."""
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

    @property
    def trial_seed(self) -> int:
        return 1 if self.seed is None else self.seed

    @property
    def resume_key(self) -> dict[str, object]:
        """The options that must agree for a search to go on from an unfinished one; the budget and
        ``fresh`` may differ."""
        return {
            "only": sorted(self.only),
            "without": sorted(self.without),
            "seed": self.trial_seed,
            "gain_that_matters": self.gain_that_matters,
            "confidence": self.confidence,
        }
