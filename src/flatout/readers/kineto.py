"""Traces of torch.profiler (Kineto's Chrome JSON, plain or compressed) as a Capture.

Events are decoded chunk by chunk into typed structs and at once into columns, so that memory holds the
columns and one chunk. Arrows (``ph`` s, f, t) are skipped: correlation ids say the same.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from flatout.capture import DTYPES, NONE, Capture, Device, Kind, Lane, Metadata, make_events
from flatout.errors import BadCapture
from flatout.readers.chunks import Chunks
from flatout.readers.stream import Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KINDS = {
    "kernel": Kind.KERNEL, "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY, "memcpy": Kind.COPY,
    "gpu_memset": Kind.MEMSET, "memset": Kind.MEMSET,
    "gpu_user_annotation": Kind.DEVICE_RANGE, "cuda_profiler_range": Kind.DEVICE_RANGE,
    "cpu_op": Kind.OPERATOR, "operator": Kind.OPERATOR,
    "cuda_runtime": Kind.CALL, "cuda_driver": Kind.CALL, "runtime": Kind.CALL, "driver": Kind.CALL,
    "hip_runtime": Kind.CALL, "hip_driver": Kind.CALL, "xpu_runtime": Kind.CALL,
    "privateuse1_runtime": Kind.CALL, "privateuse1_driver": Kind.CALL, "mtia_runtime": Kind.CALL,
    "user_annotation": Kind.RANGE,
    "python_function": Kind.PYTHON, "python": Kind.PYTHON,
    "cuda_sync": Kind.SYNCHRONIZATION,
    "overhead": Kind.OVERHEAD,
    "cpu_instant_event": Kind.MEMORY,
}  # fmt: skip
"""Kineto's category, in lower case (old traces write ``Kernel``) -> what it is."""
_DRAWN_ON_STREAM = (Kind.KERNEL, Kind.COPY, Kind.MEMSET, Kind.DEVICE_RANGE, Kind.SYNCHRONIZATION)
_OTHER_PHASES = frozenset("iIstfCbneNODPRcVv")
"""Moments, arrows, counters, objects and such of the Chrome trace format: not needed here."""
_LATEST_MICROSECONDS = 9e15
"""Times beyond (the year 2255) do not fit whole nanoseconds of 64 bits, and are not times."""
_LONGEST_MICROSECONDS = 1e12
_YEAR_2001_NS = 10**18
_COPY = re.compile(r"(?:Memcpy|Copy\w*)\s*(\wto\w|PtoP)\s*\(\s*(\w+)\s*->\s*(\w+)\s*\)", re.IGNORECASE)
_RANK = re.compile(r"rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)


_NOT_TOLD = msgspec.Raw()


class _Args(msgspec.Struct, gc=False):
    device: int = NONE
    stream: int = NONE
    correlation: int = NONE
    bytes: int = NONE
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int = msgspec.field(name="registers per thread", default=NONE)
    shared: int = msgspec.field(name="shared memory", default=NONE)
    collective: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    # not "Raw | None": such a union takes null alone
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOT_TOLD)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOT_TOLD)
    stack: str = msgspec.field(name="Call stack", default="")
    moved: int = msgspec.field(name="Bytes", default=NONE)
    moved_on: int = msgspec.field(name="Device Id", default=NONE)
    name: str | None = None
    """Of a process or thread, in metadata."""


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = NONE
    tid: int | str = NONE
    ts: float = math.nan
    dur: float = 0.0
    args: _Args | None = None


_NO_ARGS = _Args()


def read(path: Path, *, progress: Callable[[int, int], None] | None = None) -> Capture:
    """The trace in this file; ``progress`` is told bytes read and in all.

    What of it is damaged is left out and told in ``metadata.damage``. BadCapture where it is no trace, or
    nothing in it can be read.
    """
    stream = Stream(path, progress)
    chunks = Chunks(stream, msgspec.json.Decoder(list[_Event]).decode, _decode_odd)
    table = _Table()
    collecting = gc.isenabled()
    gc.disable()  # passes over millions of new objects double the time (profilers' traces hold no cycles)
    try:
        for events in chunks:
            table.add(events)
    finally:
        if collecting:
            gc.enable()
    damage = (*stream.damage, *chunks.losses.sentences(), *table.damage())
    if damage and not table.count:
        raise BadCapture(
            f"{path} holds no event that can be read: {damage[0]}",
            hint="Record it again; the profiler may have been killed as it wrote the file.",
        )
    keys, unread = _keys(chunks.outside)
    return table.capture(path.name, keys, (*damage, *unread))


class _Interned(dict[Any, int]):
    """Words -> their numbers, given out in order of first sight."""

    def __missing__(self, word: Any) -> int:
        number = self[word] = len(self)
        return number


class _Table:
    """Columns that grow by a chunk of events at a time."""

    def __init__(self) -> None:
        self.count = 0
        self._strings = _Interned()
        self._places = _Interned()
        """(drawn on a stream, process or device, thread or stream)."""
        self._kinds: dict[str, int] = {}
        self._copies: dict[str, str] = {}
        self._columns: dict[str, list[NDArray[np.generic]]] = {}
        self._open: dict[tuple[object, object], list[_Event]] = {}
        self._names: dict[tuple[object, object], str] = {}
        self._odd: Counter[str] = Counter()
        self._calls: Counter[object] = Counter()

    def add(self, events: Iterable[_Event]) -> None:
        """Takes in one chunk."""
        rows: list[_Event] = []
        kinds: list[int] = []
        for event in events:
            ph = event.ph
            if ph == "X":
                pass
            elif ph == "M":
                if event.name == "thread_name" and event.args is not None and event.args.name:
                    self._names[event.pid, event.tid] = event.args.name
                continue
            elif ph in {"B", "E"}:
                paired = self._pair(event)
                if paired is None:
                    continue
                event = paired  # noqa: PLW2901
            elif ph not in {"i", "I"} or event.cat != "cpu_instant_event":
                if ph not in _OTHER_PHASES:
                    self._odd["without a phase that is known (ph): left out"] += 1
                continue
            if not abs(event.ts) < _LATEST_MICROSECONDS:
                self._odd["without a time, or with one that cannot be: left out"] += 1
                continue
            if not 0 <= event.dur < _LONGEST_MICROSECONDS:
                self._odd["with a duration that cannot be: taken as moments"] += 1
                event.dur = 0.0
            kind = self._kinds.get(event.cat)
            if kind is None:
                kind = self._kinds[event.cat] = int(_KINDS.get(event.cat.lower(), Kind.OTHER))
            rows.append(event)
            kinds.append(kind)
        if rows:
            self._append(rows, kinds)

    def _append(self, rows: list[_Event], kinds: list[int]) -> None:
        count = len(rows)
        self.count += count
        kind = np.array(kinds, np.uint8)
        args = [row.args or _NO_ARGS for row in rows]

        def of(*wanted: Kind) -> list[int]:
            """Which rows are of these kinds: most columns say something of few."""
            places: list[int] = np.flatnonzero(np.isin(kind, wanted)).tolist()
            return places

        def sparse(name: str, places: list[int], values: list[int]) -> None:
            column = np.full(count, NONE, DTYPES[name])
            column[places] = self._whole(values, DTYPES[name])
            self._column(name, column)

        self._calls.update([rows[i].pid for i in of(Kind.CALL)])
        self._column("start_ns", _nanoseconds([row.ts for row in rows]))
        self._column("duration_ns", _nanoseconds([row.dur for row in rows]))
        self._column("kind", kind)
        strings, places = self._strings, self._places
        self._column("name", np.array([strings[row.name] for row in rows], np.int32))
        drawn = np.isin(kind, _DRAWN_ON_STREAM).tolist()
        lanes = [
            self._stream(row, one) if on_stream else places[False, row.pid, row.tid]
            for row, one, on_stream in zip(rows, args, drawn, strict=True)
        ]
        self._column("lane", np.array(lanes, np.int32))
        self._column("correlation", self._whole([one.correlation for one in args], "int64"))
        kernels = of(Kind.KERNEL)
        sparse("blocks", kernels, [_product(args[i].grid) for i in kernels])
        sparse("threads", kernels, [_product(args[i].block) for i in kernels])
        sparse("registers", kernels, [args[i].registers for i in kernels])
        sparse("shared_bytes", kernels, [args[i].shared for i in kernels])
        moving = of(Kind.COPY, Kind.MEMSET, Kind.MEMORY)
        sparse(
            "moved_bytes", moving, [args[i].moved if args[i].bytes < 0 else args[i].bytes for i in moving]
        )
        operators = of(Kind.OPERATOR)
        sparse("shapes", operators, [self._raw(args[i].dims) for i in operators])
        sparse("dtypes", operators, [self._raw(args[i].types) for i in operators])
        told = np.flatnonzero((kind != Kind.CALL) & (kind != Kind.MEMORY)).tolist()
        sparse("text", told, [self._text(rows[i], args[i], kinds[i]) for i in told])

    def _column(self, name: str, values: NDArray[np.generic]) -> None:
        self._columns.setdefault(name, []).append(values)

    def _stream(self, row: _Event, args: _Args) -> int:
        """The lane of what is drawn on a stream; where ``args`` do not tell it, pid and tid do."""
        device = args.device if args.device >= 0 else row.pid
        return self._places[True, device, args.stream if args.stream >= 0 else row.tid]

    def _raw(self, value: msgspec.Raw) -> int:
        text = bytes(value)
        return self._strings[text.decode(errors="replace")] if text not in {b"", b"null"} else NONE

    def _text(self, row: _Event, args: _Args, kind: int) -> int:
        if args.collective:
            return self._strings[f"{args.collective} {args.group}".rstrip()]
        if args.stack:
            return self._strings[args.stack]
        if kind == Kind.COPY:
            words = self._copies.get(row.name)
            if words is None:
                words = self._copies[row.name] = _direction(row.name)
            return self._strings[words] if words else NONE
        return self._strings[row.name] if kind == Kind.SYNCHRONIZATION else NONE

    def _whole(self, values: list[int], dtype: str) -> NDArray[np.generic]:
        try:
            return np.array(values, dtype)
        except OverflowError:
            self._odd["with numbers that do not fit their columns: taken as not told"] += 1
            limits = np.iinfo(dtype)
            return np.array([v if limits.min <= v <= limits.max else NONE for v in values], dtype)

    def _pair(self, event: _Event) -> _Event | None:
        """Of a beginning None; of an end the whole event, None where nothing began."""
        waiting = self._open.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            waiting.append(event)
            return None
        if not waiting:
            self._odd["that end and never began: left out"] += 1
            return None
        begun = waiting.pop()
        begun.dur = event.ts - begun.ts
        return begun

    def damage(self) -> tuple[str, ...]:
        """Sentences on events that could not be taken as they stand."""
        unended = sum(len(waiting) for waiting in self._open.values())
        told = [f"{number} events {what}" for what, number in self._odd.items()]
        return (*told, *([f"{unended} events that begin and never end: left out"] if unended else []))

    def capture(self, file: str, keys: Mapping[str, Any], damage: tuple[str, ...]) -> Capture:
        """All that was added."""
        columns = {
            name: np.concatenate(parts) if len(parts) > 1 else parts[0]
            for name, parts in self._columns.items()
        } or {"start_ns": np.zeros(0, np.int64), "duration_ns": np.zeros(0, np.int64)}
        self._columns.clear()
        starts = columns["start_ns"].astype(np.int64, copy=False)
        origin_ns = int(starts.min()) if len(starts) else 0
        columns["start_ns"] = starts - origin_ns
        info = _object(keys.get("distributedInfo"))
        rank, missing = _rank(info, file)
        seen = {Kind(int(kind)) for kind in np.unique(columns.get("kind", np.zeros(0, np.uint8)))}
        if Kind.KERNEL not in seen:
            missing.append(
                "no kernel of a GPU was recorded: what a GPU did, if there was one, cannot be told"
            )
        if Kind.CALL not in seen and Kind.KERNEL in seen:
            missing.append(
                "no call of the CUDA or HIP runtime was recorded: what launched a kernel cannot be told"
            )
        shapes = "shapes" in columns and bool((columns["shapes"] != NONE).any())
        stacks = Kind.PYTHON in seen or any("\n" in word or ".py(" in word for word in self._strings)
        return Capture(
            events=make_events(columns),
            strings=tuple(self._strings),
            lanes=self._lanes(rank),
            metadata=Metadata(
                tools=("kineto",),
                files=(file,),
                origin_ns=origin_ns,
                epoch_ns=_epoch_ns(keys, origin_ns) if len(starts) else None,
                ranks=(rank,) if rank >= 0 else (),
                world_size=max(_integer(info.get("world_size"), 0), 0),
                backend=info["backend"] if isinstance(info.get("backend"), str) else "",
                devices=_devices(keys),
                versions=_versions(keys, info),
                damage=damage,
                missing=tuple(missing),
                shapes_recorded=shapes,
                stacks_recorded=stacks,
                memory_recorded=Kind.MEMORY in seen,
            ),
        )

    def _lanes(self, rank: int) -> tuple[Lane, ...]:
        # a trace is of one process, and a device's events do not say which
        process = _integer(self._calls.most_common(1)[0][0], NONE) if self._calls else NONE
        lanes = []
        for on_stream, where, which in self._places:
            name = self._names.get((where, which), "")
            if on_stream:
                device, stream = _integer(where, 0), _integer(which, NONE)
                lanes.append(Lane(rank=rank, process=process, device=device, stream=stream, name=name))
            else:
                name = name or (which if isinstance(which, str) else "")
                place, thread = _integer(where, NONE), _integer(which, NONE)
                lanes.append(Lane(rank=rank, process=place, thread=thread, name=name))
        return tuple(lanes)


def _nanoseconds(microseconds: list[float]) -> NDArray[np.int64]:
    """Whole and fractional part apart: the product of an absolute time and 1000 does not fit a double."""
    times = np.array(microseconds, np.float64)
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)


def _product(sizes: tuple[int, int, int] | None) -> int:
    return NONE if sizes is None else sizes[0] * sizes[1] * sizes[2]


def _direction(name: str) -> str:
    """``HtoD pageable`` of ``Memcpy HtoD (Pageable -> Device)``; empty where the name does not tell."""
    found = _COPY.search(name)
    if found is None:
        return ""
    way, source, target = found.groups()
    return f"{way} {(target if way.lower() == 'dtoh' else source).lower()}"


def _decode_odd(text: bytes) -> _Event | None:
    """An event that does not decode as its like do: what of it can be used, None where that is nothing."""
    try:
        given = json.loads(text.decode(errors="replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not isinstance(given.get("ph"), str):
        return None
    args = _object(given.get("args"))

    def word(value: object) -> str:
        return value if isinstance(value, str) else ""

    def sizes(value: object) -> tuple[int, int, int] | None:
        if not isinstance(value, list) or len(value) != 3:
            return None
        x, y, z = (_integer(one, NONE) for one in value)
        return (x, y, z) if min(x, y, z) >= 0 else None

    event = _Event(
        ph=given["ph"], cat=word(given.get("cat")), name=word(given.get("name")),
        pid=_place(given.get("pid")), tid=_place(given.get("tid")),
        ts=_number(given.get("ts"), math.nan), dur=_number(given.get("dur"), 0.0),
        args=_Args(
            device=_integer(args.get("device"), NONE), stream=_integer(args.get("stream"), NONE),
            correlation=_integer(args.get("correlation"), NONE), bytes=_integer(args.get("bytes"), NONE),
            grid=sizes(args.get("grid")), block=sizes(args.get("block")),
            registers=_integer(args.get("registers per thread"), NONE),
            shared=_integer(args.get("shared memory"), NONE),
            collective=word(args.get("Collective name")), group=word(args.get("Process Group Name")),
            dims=_raw(args.get("Input Dims")), types=_raw(args.get("Input type")),
            stack=word(args.get("Call stack")), moved=_integer(args.get("Bytes"), NONE),
            moved_on=_integer(args.get("Device Id"), NONE), name=word(args.get("name")),
        ),
    )  # fmt: skip
    return None if event.ph in {"X", "B", "E"} and math.isnan(event.ts) else event


def _raw(value: object) -> msgspec.Raw:
    return _NOT_TOLD if value is None else msgspec.Raw(json.dumps(value).encode())


def _place(value: object) -> int | str:
    return value if isinstance(value, str) else _integer(value, NONE)


def _number(value: object, otherwise: float) -> float:
    """As a float; of a string what it spells. ``otherwise`` where it is none, or does not fit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return otherwise
    try:
        return float(value)
    except (ValueError, OverflowError):
        return otherwise


def _integer(value: object, otherwise: int) -> int:
    """As a whole number of at most 64 bits; ``otherwise`` where it is none."""
    number = _number(value, math.nan)
    if not abs(number) < 2**63:  # NaN too
        return otherwise
    return value if isinstance(value, int) else int(number)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _keys(outside: bytes) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(The keys around the events, a sentence where they could not be read)."""
    text = outside.decode(errors="replace").strip()
    if text.startswith("["):
        return {}, ()
    for ending in ("", "]}", "}"):  # of a file that was cut off
        try:
            return _object(json.loads(text + ending, strict=False)), ()
        except (ValueError, RecursionError):
            continue
    return {}, ("the keys around the events (rank, devices, versions) could not be read",)


def _rank(info: Mapping[str, Any], file: str) -> tuple[int, list[str]]:
    """(The rank, NONE where it is not told; what is missing)."""
    rank = _integer(info.get("rank"), NONE)
    if rank >= 0:
        return rank, []
    named = _RANK.search(file)
    if named:
        return int(named[1]), [
            f"the trace does not tell its rank: {named[1]} is taken from the file's name"
        ]
    return NONE, ["the trace does not tell its rank" if info else "the trace tells nothing of other ranks"]


def _epoch_ns(keys: Mapping[str, Any], origin_ns: int) -> int | None:
    """Newer traces count from ``baseTimeNanoseconds`` (pytorch/kineto#784); older ones since 1970."""
    base = _integer(keys.get("baseTimeNanoseconds"), NONE)
    if base > 0:
        return base + origin_ns
    return origin_ns if origin_ns > _YEAR_2001_NS else None


def _devices(keys: Mapping[str, Any]) -> tuple[Device, ...]:
    given = keys.get("deviceProperties")
    return tuple(
        Device(
            number=_integer(one.get("id"), number),
            name=one["name"] if isinstance(one.get("name"), str) else "",
            multiprocessors=_integer(one.get("numSms"), 0),
            memory_bytes=_integer(one.get("totalGlobalMem"), 0),
            compute_capability=(_integer(one.get("computeMajor"), 0), _integer(one.get("computeMinor"), 0)),
            threads_per_multiprocessor=_integer(one.get("maxThreadsPerMultiprocessor"), 0),
            registers_per_multiprocessor=_integer(one.get("regsPerMultiprocessor"), 0),
            shared_bytes_per_multiprocessor=_integer(one.get("sharedMemPerMultiprocessor"), 0),
        )
        for number, one in enumerate(given if isinstance(given, Sequence) else ())
        if isinstance(one, dict)
    )


def _versions(keys: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, str]:
    told = {
        word: keys.get(key)
        for word, key in (
            ("cuda", "cuda_runtime_version"), ("driver", "cuda_driver_version"),
            ("cupti", "cupti_version"), ("hip", "hip_runtime_version"),
        )
    }  # fmt: skip
    told["nccl"] = info.get("nccl_version")
    return {word: str(value) for word, value in told.items() if isinstance(value, int | str) and value}
