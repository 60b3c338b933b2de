"""Sets of time: unions of half-open intervals [start, end) of whole nanoseconds, as two sorted arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Intervals:
    """Disjoint, in order, none empty, no two that touch. Shapes (n,)."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def total_ns(self) -> int:
        """The time in the set."""
        return int((self.ends - self.starts).sum())

    def holds(self, times: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of these moments lies in the set. Shape of ``times``."""
        begun = np.searchsorted(self.starts, times, "right")
        return begun > np.searchsorted(self.ends, times, "right")

    def __and__(self, other: Intervals) -> Intervals:
        return _combined(self, other, lambda mine, theirs: mine & theirs)

    def __or__(self, other: Intervals) -> Intervals:
        return _combined(self, other, lambda mine, theirs: mine | theirs)

    def __sub__(self, other: Intervals) -> Intervals:
        return _combined(self, other, lambda mine, theirs: mine & ~theirs)


def union(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Intervals:
    """Of any intervals, in any order, overlapping or not; empty and negative ones count for nothing."""
    real = ends > starts
    starts, ends = starts[real], ends[real]
    if not len(starts):
        return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Intervals(starts[first], ends[last])


def window(start_ns: int, end_ns: int) -> Intervals:
    """One interval; none where it is empty."""
    return union(np.array([start_ns], np.int64), np.array([end_ns], np.int64))


def _combined(mine: Intervals, theirs: Intervals, keep: _Keep) -> Intervals:
    bounds = np.unique(np.concatenate((mine.starts, mine.ends, theirs.starts, theirs.ends)))
    starts, ends = bounds[:-1], bounds[1:]
    kept = keep(mine.holds(starts), theirs.holds(starts))
    return union(starts[kept], ends[kept])


if TYPE_CHECKING:
    from collections.abc import Callable

    _Keep = Callable[[NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.bool_]]
