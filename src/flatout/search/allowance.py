"""The error that a search may make, split beforehand over everything that it may claim.

With a confidence of 99 % nothing that a search claims is false with a chance of 99 %: the last proof,
each technique's own gain and each share of the final plan's together (Bonferroni). The split is fixed
before the first comparison, so nothing that is seen can widen it; within a comparison the interval holds
at every look.
"""

from __future__ import annotations

from dataclasses import dataclass

FINAL_SHARE = 0.2
FINAL_TRIES = 2
"""Last proofs that a search may need: a plan may lose a technique whose share shows it to be worthless."""
CLIMB_SHARE = 0.7
FIRST_TRY_SHARE = 0.75
"""Of a candidate's error: for its first comparison, the rest for the one on a plan that has grown since."""
SHARES_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Chances of a false claim."""

    error: float
    """Of the whole search: one less its confidence."""
    candidates: int

    @property
    def final(self) -> float:
        """Of one last proof."""
        return FINAL_SHARE * self.error / FINAL_TRIES

    @property
    def first_try(self) -> float:
        """Of a candidate's comparison with the best plan so far."""
        return CLIMB_SHARE * FIRST_TRY_SHARE * self.error / max(1, self.candidates)

    @property
    def second_try(self) -> float:
        """Of its comparison with another plan later."""
        return CLIMB_SHARE * (1.0 - FIRST_TRY_SHARE) * self.error / max(1, self.candidates)

    @property
    def share(self) -> float:
        """Of one technique's share of the final plan."""
        return SHARES_SHARE * self.error / max(1, self.candidates)
