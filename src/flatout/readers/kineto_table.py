"""Columns that grow by a chunk of a trace's events at a time.

Most columns say something of a few kinds of events alone: of those, only these kinds' values are held
until the end, when every column is filled, put in order and (of a large trace) moved to a file, one after
the other. So memory holds some 40 bytes an event at most, however many columns there are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.capture import DTYPES, NONE, Events, Kind, Lane
from flatout.readers import kineto_events as made
from flatout.readers.kineto_events import NO_ARGS, Args, as_integer

if TYPE_CHECKING:
    from msgspec import Raw
    from numpy.typing import NDArray

_KINDS = {
    "kernel": Kind.KERNEL, "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY, "memcpy": Kind.COPY,
    "gpu_memset": Kind.MEMSET, "memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.DEVICE_RANGE, "cuda_profiler_range": Kind.DEVICE_RANGE,
    "cpu_op": Kind.OPERATOR, "operator": Kind.OPERATOR,
    "cuda_runtime": Kind.CALL, "cuda_driver": Kind.CALL, "runtime": Kind.CALL, "driver": Kind.CALL,
    "hip_runtime": Kind.CALL, "hip_driver": Kind.CALL, "xpu_runtime": Kind.CALL, "xpu_driver": Kind.CALL,
    "privateuse1_runtime": Kind.CALL, "privateuse1_driver": Kind.CALL, "mtia_runtime": Kind.CALL,
    "mtia_ccp_events": Kind.KERNEL,
    "user_annotation": Kind.RANGE,
    "python_function": Kind.PYTHON, "python": Kind.PYTHON,
    "cuda_sync": Kind.SYNCHRONIZATION,
    "overhead": Kind.OVERHEAD,
    "cpu_instant_event": Kind.MEMORY,
}  # fmt: skip
"""Kineto's category, in lower case (old traces write ``Kernel``) -> what it is."""
_ON_STREAM = (Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.DEVICE_RANGE, Kind.SYNCHRONIZATION)
_TOLD_OF: dict[str, tuple[Kind, ...]] = {
    "correlation": (Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.CALL, Kind.SYNCHRONIZATION),
    "moved_bytes": (Kind.COPY, Kind.MEMSET, Kind.MEMORY),
    "blocks": (Kind.KERNEL,), "threads": (Kind.KERNEL,), "registers": (Kind.KERNEL,),
    "shared_bytes": (Kind.KERNEL,),
    "shapes": (Kind.OPERATOR,), "dtypes": (Kind.OPERATOR,),
    "text": (Kind.KERNEL, Kind.OPERATOR, Kind.COPY, Kind.SYNCHRONIZATION),
}  # fmt: skip
"""Column -> the kinds of events that it says something of."""


def _among(kinds: tuple[Kind, ...]) -> NDArray[np.bool_]:
    """One truth value a kind (``np.isin`` takes ten times as long)."""
    table = np.zeros(256, bool)
    table[list(kinds)] = True
    return table


_IS_ON_STREAM = _among(_ON_STREAM)
_IS_TOLD = {column: _among(kinds) for column, kinds in _TOLD_OF.items()}
_SLICES = frozenset({made.Slice, made.ExactSlice})
_QUIET = frozenset({made.FlowStart, made.FlowStep, made.FlowEnd})
_LATEST_MICROSECONDS = 9e15
"""Times beyond (the year 2255) do not fit whole nanoseconds of 64 bits, and are not times."""
_LONGEST_MICROSECONDS = 1e12
_DAY_NS = 86400 * 10**9
"""No profile is as long; Kineto itself writes 0 for a time before its base (``transToRelativeTime``)."""
_HOUR_NS = 3600 * 10**9
_COPY = re.compile(r"(?:Memcpy|Copy\w*)\s*(\wto\w|PtoP)\s*\(\s*(\w+)\s*->\s*(\w+)\s*\)", re.IGNORECASE)


class _Interned(dict[Any, int]):
    """Words -> their numbers, given out in order of first sight."""

    def __missing__(self, word: Any) -> int:
        number = self[word] = len(self)
        return number


class Table:
    """What was read of one trace."""

    def __init__(self) -> None:
        self.count = 0
        self.unread: Counter[str] = Counter()
        """Events that flatout does not read, by what they are."""
        self._strings = _Interned()
        self._places = _Interned()
        """(drawn on a stream, process or device, thread or stream)."""
        self._kinds: dict[str, int] = {}
        self._copies: dict[str, int] = {}
        self._columns: dict[str, list[NDArray[np.generic]]] = {}
        self._open: dict[tuple[object, object], list[Any]] = {}
        self._names: dict[tuple[object, object], str] = {}
        self._odd: Counter[str] = Counter()
        self._calls: Counter[object] = Counter()

    def add(self, events: Sequence[Any]) -> None:
        """Takes in one chunk."""
        slices = [event for event in events if event.__class__ in _SLICES]
        moments: list[Any] = []
        if len(slices) != len(events):
            for event in events:
                kind = event.__class__
                if kind in _SLICES or kind in _QUIET:
                    continue
                if kind is made.Named:
                    if event.name == "thread_name" and event.args is not None and event.args.name:
                        self._names[event.pid, event.tid] = event.args.name
                elif kind in {made.Begin, made.ExactBegin}:
                    self._open.setdefault((event.pid, event.tid), []).append(event)
                elif kind in {made.End, made.ExactEnd}:
                    self._end(event, slices)
                elif kind in {made.Moment, made.ExactMoment, made.OldMoment}:
                    if event.cat == "cpu_instant_event":
                        moments.append(event)
                elif kind is made.Counted:
                    self.unread["counters"] += 1
                elif kind is made.Unread:
                    self.unread[f"events of phase {event.phase!r:.9}"] += 1
        self._slices(slices)
        self._moments(moments)

    def _end(self, event: Any, slices: list[Any]) -> None:
        waiting = self._open.get((event.pid, event.tid))
        if waiting:
            begun = waiting.pop()
            begun.dur = float(event.ts - begun.ts) if isinstance(event.ts, type(begun.ts)) else float("nan")
            slices.append(begun)
        else:
            self._odd["that end and never began: left out"] += 1

    def _slices(self, rows: list[Any]) -> None:
        times = self._times(rows)
        if times is None:
            return
        durations = np.array([row.dur for row in rows], np.float64)
        wrong = ~((durations >= 0) & (durations < _LONGEST_MICROSECONDS))
        if wrong.any():
            durations[wrong] = 0.0
            self._odd["with a duration that cannot be: taken as moments"] += int(wrong.sum())
        kinds = self._kinds
        try:
            kind = np.array([kinds[row.cat] for row in rows], np.uint8)
        except KeyError:
            for word in {row.cat for row in rows}:
                kinds[word] = int(_KINDS.get(word.lower(), Kind.OTHER))
            kind = np.array([kinds[row.cat] for row in rows], np.uint8)
        places, strings = self._places, self._strings
        lane = np.array([places[False, row.pid, row.tid] for row in rows], np.int32)
        on_stream = np.flatnonzero(_IS_ON_STREAM[kind]).tolist()
        lane[on_stream] = [self._stream(rows[i]) for i in on_stream]
        self._append("start_ns", times)
        self._append("duration_ns", np.rint(durations * 1000).astype(np.int64))
        self._append("kind", kind)
        self._append("name", np.array([strings[row.name] for row in rows], np.int32))
        self._append("lane", lane)
        self.count += len(rows)

        def args_of(column: str) -> list[Args]:
            return [rows[i].args or NO_ARGS for i in np.flatnonzero(_IS_TOLD[column][kind]).tolist()]

        self._calls.update([rows[i].pid for i in np.flatnonzero(kind == Kind.CALL).tolist()])
        self._whole("correlation", [one.correlation for one in args_of("correlation")])
        self._whole("moved_bytes", [one.bytes for one in args_of("moved_bytes")])
        kernels = args_of("blocks")
        self._whole("blocks", [_product(one.grid) for one in kernels])
        self._whole("threads", [_product(one.block) for one in kernels])
        self._whole("registers", [one.registers for one in kernels])
        self._whole("shared_bytes", [one.shared for one in kernels])
        operators = args_of("shapes")
        self._whole("shapes", [self._raw(one.dims) for one in operators])
        self._whole("dtypes", [self._raw(one.types) for one in operators])
        told = [rows[i] for i in np.flatnonzero(_IS_TOLD["text"][kind]).tolist()]
        self._whole("text", [self._text(row) for row in told])

    def _moments(self, rows: list[Any]) -> None:
        """Of memory."""
        times = self._times(rows)
        if times is None:
            return
        places, strings = self._places, self._strings
        self._append("start_ns", times)
        self._append("duration_ns", np.zeros(len(rows), np.int64))
        self._append("kind", np.full(len(rows), Kind.MEMORY, np.uint8))
        self._append("name", np.array([strings[row.name] for row in rows], np.int32))
        self._append("lane", np.array([places[False, row.pid, row.tid] for row in rows], np.int32))
        self._whole("moved_bytes", [row.args.moved if row.args else NONE for row in rows])
        self.count += len(rows)

    def _times(self, rows: list[Any]) -> NDArray[np.int64] | None:
        """In nanoseconds; rows whose time cannot be one are taken out. None where none is left."""
        given = [row.ts for row in rows]
        exact = any(isinstance(ts, Decimal) for ts in given)
        times = np.array([float(ts) for ts in given] if exact else given, np.float64)
        right = np.abs(times) < _LATEST_MICROSECONDS  # NaN is not
        if not right.all():
            self._odd["without a time, or with one that cannot be: left out"] += int((~right).sum())
            rows[:] = [row for row, one in zip(rows, right.tolist(), strict=True) if one]
            given, times = [row.ts for row in rows], times[right]
        if not rows:
            return None
        if exact:
            return np.array([round(Decimal(ts) * 1000) for ts in given], np.int64)
        # apart: the product of an absolute time and 1000 does not fit a double
        whole = np.floor(times)
        return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)

    def _append(self, name: str, values: NDArray[np.generic]) -> None:
        self._columns.setdefault(name, []).append(values)

    def _whole(self, name: str, values: list[int]) -> None:
        """Values of those rows of this chunk that the column says something of, in their order."""
        if not values:
            return
        try:
            self._append(name, np.array(values, DTYPES[name]))
        except OverflowError:
            self._odd["with numbers that do not fit their columns: taken as not told"] += 1
            limits = np.iinfo(DTYPES[name])
            fitting = [value if limits.min <= value <= limits.max else NONE for value in values]
            self._append(name, np.array(fitting, DTYPES[name]))

    def _stream(self, row: Any) -> int:
        """The lane of what is drawn on a stream; where ``args`` do not tell it, pid and tid do."""
        args = row.args or NO_ARGS
        device = args.device if args.device >= 0 else row.pid
        return self._places[True, device, args.stream if args.stream >= 0 else row.tid]

    def _raw(self, value: Raw) -> int:
        text = bytes(value)
        return self._strings[text.decode(errors="replace")] if text not in {b"", b"null"} else NONE

    def _text(self, row: Any) -> int:
        args = row.args or NO_ARGS
        if args.collective:
            return self._strings[f"{args.collective} {args.group}".rstrip()]
        if args.stack:
            return self._strings[args.stack]
        kind = self._kinds[row.cat]
        if kind == Kind.COPY:
            number = self._copies.get(row.name)
            if number is None:
                words = _direction(row.name)
                number = self._copies[row.name] = self._strings[words] if words else NONE
            return number
        return self._strings[row.name] if kind == Kind.SYNCHRONIZATION else NONE

    def damage(self) -> tuple[str, ...]:
        """Sentences on events that could not be taken as they stand."""
        unended = sum(len(waiting) for waiting in self._open.values())
        told = [f"{number} events {what}" for what, number in self._odd.items()]
        return (*told, *([f"{unended} events that begin and never end: left out"] if unended else []))

    def strings(self) -> tuple[str, ...]:
        """What the columns' numbers stand for."""
        return tuple(self._strings)

    def events(self) -> tuple[Events, int]:
        """(All rows by time, the time of the first in nanoseconds). Once: the table is empty then."""
        kinds, starts, durations = (self._taken(name) for name in ("kind", "start_ns", "duration_ns"))
        order = _order(starts, durations)
        if len(order):
            middle = starts[order[len(order) // 2]]
            near = np.abs(starts[order] - middle) < _DAY_NS
            if not near.all():
                order = order[near]
                self._odd["a day or more from the others: left out"] += int((~near).sum())
        start_ns, duration_ns = starts[order], durations[order]
        del starts, durations
        origin_ns = int(start_ns[0]) if len(order) else 0
        start_ns -= origin_ns
        self._clip(start_ns, duration_ns)
        done: dict[str, NDArray[Any]] = {
            "start_ns": start_ns,
            "duration_ns": duration_ns,
            "kind": kinds[order],
        }
        for name in ("name", "lane"):
            done[name] = self._taken(name)[order]
        for name, told_of in _IS_TOLD.items():
            if not self._columns.get(name):
                done[name] = np.full(len(order), NONE, DTYPES[name])
                continue
            column = np.full(len(kinds), NONE, DTYPES[name])
            column[told_of[kinds]] = self._taken(name)
            done[name] = column[order]
        return Events(**done), origin_ns

    def _taken(self, name: str) -> NDArray[Any]:
        parts = self._columns.pop(name, [])
        return np.concatenate(parts) if parts else np.zeros(0, DTYPES[name])

    def _clip(self, starts: NDArray[np.int64], durations: NDArray[np.int64]) -> None:
        """A duration that overflowed in the profiler reaches far beyond everything else (TraceLens#669)."""
        if not len(starts):
            return
        last = int(starts[-1])
        beyond = starts + durations > 11 * last + _HOUR_NS
        if beyond.any():
            durations[beyond] = last - starts[beyond]
            self._odd["that last far beyond all others: cut at the start of the last event"] += int(
                beyond.sum()
            )

    def lanes(self, rank: int) -> tuple[Lane, ...]:
        """Where events happened, by their column's numbers."""
        # a trace is of one process, and a device's events do not say which
        process = as_integer(self._calls.most_common(1)[0][0], NONE) if self._calls else NONE
        lanes = []
        for on_stream, where, which in self._places:
            name = self._names.get((where, which), "")
            if on_stream:
                device, stream = as_integer(where, 0), as_integer(which, NONE)
                lanes.append(Lane(rank=rank, process=process, device=device, stream=stream, name=name))
            else:
                name = name or (which if isinstance(which, str) else "")
                place, thread = as_integer(where, NONE), as_integer(which, NONE)
                lanes.append(Lane(rank=rank, process=place, thread=thread, name=name))
        return tuple(lanes)


def _order(starts: NDArray[np.int64], durations: NDArray[np.int64]) -> NDArray[np.int64]:
    """By start; where starts are equal the longer first. (One sort, and one of the few ties: half the time
    of sorting by both.)"""
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    equal = ordered[1:] == ordered[:-1]
    if equal.any():
        tied = np.zeros(len(order), bool)
        tied[1:] |= equal
        tied[:-1] |= equal
        rows = order[tied]
        order[tied] = rows[np.lexsort((-durations[rows], starts[rows]))]
    return order


def _product(sizes: tuple[int, int, int] | None) -> int:
    return NONE if sizes is None else sizes[0] * sizes[1] * sizes[2]


def _direction(name: str) -> str:
    """``HtoD pageable`` of ``Memcpy HtoD (Pageable -> Device)``; empty where the name does not tell."""
    found = _COPY.search(name)
    if found is None:
        return ""
    way, source, target = found.groups()
    return f"{way} {(target if way.lower() == 'dtoh' else source).lower()}"
