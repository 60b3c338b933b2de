"""What a search has learnt about how far processes of one plan differ: read from its verdicts alone.

So a search that goes on after a kill knows what it knew, and a report can say on what an interval rests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from flatout.search.record import key_of
from flatout.sequential import Evidence, evidence_of_pairs, evidence_of_unchanged
from flatout.trial import Verdict

AGAIN = "again"
"""Key of the comparisons of the untouched program with itself: ``again``, ``again~2`` ..."""
ALIGNED = "again:aligned"
"""The same, both at the same step of the program."""


def logs_of(verdict: Verdict) -> list[list[float]]:
    """The log ratios of its pairs of turns, one list for each pair of processes."""
    logs = [math.log(a / b) for a, b in zip(verdict.samples_a, verdict.samples_b, strict=False)]
    clusters, start = [], 0
    for count in verdict.process_pairs or (len(logs),):
        clusters.append(logs[start : start + count])
        start += count
    return [values for values in clusters if values]


def unchanged(verdict: Verdict) -> bool:
    """Both sides were the untouched program."""
    return not verdict.plan_a and not verdict.plan_b


def taken_alike(verdict: Verdict) -> bool:
    """Unchanged processes that were compared at the same step of the program."""
    return key_of(verdict.key) == ALIGNED


def evidence_so_far(verdicts: Iterable[Verdict], *, method: str) -> list[Evidence]:
    """From all comparisons made by the same method.

    Where the first comparisons of unchanged processes found them at different places of a program whose
    steps change as it goes on, and others were taken at the same place, only those tell.
    """
    found: list[Evidence] = []
    same = [one for one in verdicts if one.method == method and one.samples_a]
    again = [one for one in same if unchanged(one)]
    again = [one for one in again if taken_alike(one)] or again
    fresh_each = [values for one in again if len(one.process_pairs) > 1 for values in logs_of(one)]
    if fresh_each:
        means = [math.fsum(values) / len(values) for values in fresh_each]
        square = math.fsum(mean * mean for mean in means) / len(means)
        found.append(Evidence(square=square, freedom=len(means), within=0.0))
    found += evidence_of_unchanged(
        [values for one in again if len(one.process_pairs) <= 1 for values in logs_of(one)]
    )
    for one in same:
        if not unchanged(one):
            found += evidence_of_pairs(logs_of(one))
    return found
