"""A capture: what a profiler recorded, whatever made it, as one typed table of events plus metadata.

``Events`` is columnar: one numpy array a column, all of one length, ordered by start. Names, shapes and
other strings are interned once in ``Capture.strings``; where an event happened is one number, its lane.
Times are whole nanoseconds since ``Metadata.origin_ns`` (Kineto's absolute times do not fit a double).
Readers make captures, ``merge`` joins those of one run, rules and renderers read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NONE = -1
"""In any column of whole numbers: not known, or it has none."""


class Kind(IntEnum):
    """What an event is. Those up to ``MEMSET`` ran on a device, the others on the host."""

    KERNEL = 0
    COPY = 1
    """A copy of memory that the device made; ``text`` holds its direction, such as ``HtoD pageable``."""
    MEMSET = 2
    DEVICE_RANGE = 3
    """A range drawn over a device's stream (an annotation, or a graph as a whole): no work of its own."""
    OPERATOR = 4
    """An operator of a framework, such as ``aten::mm``."""
    CALL = 5
    """A call of the CUDA or HIP runtime or driver."""
    RANGE = 6
    """A named range of the host: an annotation, NVTX, ``ProfilerStep#3``."""
    PYTHON = 7
    """A Python function; its name tells file and line where the tool does."""
    SYNCHRONIZATION = 8
    """A wait as the device's driver records it (stream, event, context); ``text`` holds which."""
    OVERHEAD = 9
    """Time of the profiler's own: buffers flushed, instrumentation."""
    MEMORY = 10
    """A moment at which memory was taken or given back: ``moved_bytes`` (negative: given back; allocators
    hand out no single byte, so that ``NONE`` stays free)."""
    SYSTEM = 11
    """A call of the operating system (nsys's OSRT)."""
    OTHER = 12


ON_DEVICE = (Kind.KERNEL, Kind.COPY, Kind.MEMSET)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One line of time on which events are drawn: a thread of the host, or a stream of a device."""

    rank: int = NONE
    process: int = NONE
    thread: int = NONE
    """Of the operating system; ``NONE`` for a stream."""
    device: int = NONE
    """The tool's ordinal; ``NONE`` for a thread."""
    stream: int = NONE
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Events:
    """The table. Every column has shape (n,); rows are ordered by ``start_ns``."""

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    """0 for a moment; never negative."""
    kind: NDArray[np.uint8]
    """A ``Kind``."""
    name: NDArray[np.int32]
    """Index into ``Capture.strings``."""
    lane: NDArray[np.int32]
    """Index into ``Capture.lanes``."""
    correlation: NDArray[np.int64]
    """Joins a device's event with the call that launched it, within one rank and process."""
    moved_bytes: NDArray[np.int64]
    """Of copies, memsets and moments of memory."""
    blocks: NDArray[np.int64]
    """Of a kernel: product of its grid."""
    threads: NDArray[np.int32]
    """Of a kernel: a block's threads."""
    registers: NDArray[np.int32]
    """Of a kernel: a thread's registers."""
    shared_bytes: NDArray[np.int32]
    """Of a kernel: a block's shared memory."""
    shapes: NDArray[np.int32]
    """Of an operator: index into ``strings`` of its inputs' shapes as JSON, such as ``[[8, 128], []]``."""
    dtypes: NDArray[np.int32]
    """Of an operator: index into ``strings`` of its inputs' types as JSON, in the tool's own words."""
    text: NDArray[np.int32]
    """Index into ``strings`` of what the tool says beside: a collective's name and group, a copy's
    direction, the kind of a wait, a call stack."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """Start plus duration."""
        return self.start_ns + self.duration_ns

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Events:
        """These rows: indices, or one truth value a row."""
        return Events(**{column: getattr(self, column)[rows] for column in COLUMNS})


COLUMNS = tuple(column.name for column in fields(Events))
DTYPES: Mapping[str, str] = {
    "start_ns": "int64", "duration_ns": "int64", "kind": "uint8", "name": "int32", "lane": "int32",
    "correlation": "int64", "moved_bytes": "int64", "blocks": "int64", "threads": "int32",
    "registers": "int32", "shared_bytes": "int32", "shapes": "int32", "dtypes": "int32", "text": "int32",
}  # fmt: skip


def make_events(columns: Mapping[str, Sequence[int] | NDArray[np.generic]]) -> Events:
    """Events of the columns given, in order of start (equal starts: the longer first, so that what
    encloses comes before what it encloses); other columns are ``NONE``, a kind that is not told
    ``OTHER``. A negative duration becomes 0."""
    count = len(columns["start_ns"])
    table = {}
    for column in COLUMNS:
        given = columns.get(column)
        table[column] = (
            np.full(count, Kind.OTHER if column == "kind" else NONE, DTYPES[column])
            if given is None
            else np.asarray(given).astype(DTYPES[column], copy=False)
        )
    table["duration_ns"] = np.maximum(table["duration_ns"], 0)
    starts, durations = table["start_ns"], table["duration_ns"]
    later = starts[1:] > starts[:-1]
    if not np.all(later | ((starts[1:] == starts[:-1]) & (durations[1:] <= durations[:-1]))):
        order = np.lexsort((-durations, starts))
        for column in COLUMNS:
            table[column] = table[column][order]
    return Events(**table)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Counters over time, one row a reading, in order of time. Shapes (n,)."""

    time_ns: NDArray[np.int64]
    """Since ``Metadata.origin_ns``; of an average over an interval, its end."""
    device: NDArray[np.int32]
    rank: NDArray[np.int32]
    metric: NDArray[np.int32]
    """Index into ``metrics``."""
    value: NDArray[np.float64]
    metrics: tuple[str, ...]
    """Names with their unit, the same whatever tool read them: see ``METRICS``."""

    def of(self, metric: str, device: int | None = None) -> Samples:
        """Of one metric (and one device); empty where there are none."""
        wanted = self.metric == (self.metrics.index(metric) if metric in self.metrics else NONE - 1)
        if device is not None:
            wanted &= self.device == device
        return replace(self, **{column: getattr(self, column)[wanted] for column in READING_COLUMNS})


READING_COLUMNS = ("time_ns", "device", "rank", "metric", "value")


METRICS = {
    "graphics_active_ratio": "the share of time in which the graphics or compute engine was busy",
    "sm_active_ratio": "the share of time in which an SM had a warp, mean over SMs",
    "sm_occupancy_ratio": "resident warps over the most that fit, mean over SMs",
    "tensor_active_ratio": "the share of cycles in which a tensor pipe worked",
    "tensor_hmma_active_ratio": "the same of FP16 and BF16",
    "tensor_imma_active_ratio": "the same of INT8",
    "tensor_dmma_active_ratio": "the same of FP64",
    "fp64_active_ratio": "the share of cycles in which the FP64 pipe worked",
    "fp32_active_ratio": "the same of FP32",
    "fp16_active_ratio": "the same of FP16",
    "integer_active_ratio": "the same of integers",
    "sm_issue_ratio": "the share of cycles in which an SM issued an instruction",
    "dram_active_ratio": "device memory's traffic over the most that it can bear",
    "dram_read_ratio": "the same, reads alone",
    "dram_write_ratio": "the same, writes alone",
    "pcie_sent_bytes_per_second": "over PCIe to the host",
    "pcie_received_bytes_per_second": "over PCIe from the host",
    "nvlink_sent_bytes_per_second": "over NVLink, all links",
    "nvlink_received_bytes_per_second": "over NVLink, all links",
    "busy_ratio": "NVML's utilisation: the share of time in which any kernel ran, however small",
    "memory_used_bytes": "device memory in use",
    "memory_total_bytes": "device memory there is",
    "power_watts": "what the board draws",
    "energy_joules": "what it has drawn since it started",
    "temperature_celsius": "of the GPU",
    "sm_clock_hertz": "of the SMs",
    "memory_clock_hertz": "of the memory",
}
"""Ratios are 0 to 1. A metric that a tool reads and that is not here keeps the tool's own name."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What a rule of Nsight Compute says of one kernel."""

    rule: str
    title: str
    message: str
    kind: str
    """``optimization``, ``warning``, ``ok`` or another word of the tool's."""
    speedup_ratio: float | None = None
    """Its own estimate: 0.25 is "25 % faster at most"; None where it gives none."""
    speedup_scope: str = ""
    """``global`` (the kernel) or ``local`` (what the rule is about)."""


@dataclass(frozen=True, kw_only=True)
class KernelCounters:
    """One kernel that Nsight Compute replayed. It flushes caches and replays: its time is not the job's."""

    name: str
    device: int = NONE
    duration_seconds: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The tool's names -> values. Every one is optional: it depends on the sections that were recorded."""
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU as the tool describes it; 0 or empty where it does not."""

    number: int
    name: str = ""
    multiprocessors: int = 0
    memory_bytes: int = 0
    compute_capability: tuple[int, int] = (0, 0)
    threads_per_multiprocessor: int = 0
    registers_per_multiprocessor: int = 0
    shared_bytes_per_multiprocessor: int = 0
    bytes_per_second: float = 0.0
    """Of its memory at most."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """Where a capture comes from, and what it lacks."""

    tools: tuple[str, ...]
    """``kineto``, ``nsys``, ``ncu``, ``dcgm``, ``gpm``; with the version where told: ``nsys 2026.2.1``."""
    files: tuple[str, ...] = ()
    """Names without their folders."""
    origin_ns: int = 0
    """What time 0 is on the tool's own clock."""
    epoch_ns: int | None = None
    """What time 0 is since 1970, where the tool tells."""
    host: str = ""
    ranks: tuple[int, ...] = ()
    """Those whose events are here; empty where no rank is told."""
    world_size: int = 0
    """0: not told."""
    backend: str = ""
    """``nccl``, ``gloo``, ...; empty: not told."""
    devices: tuple[Device, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    """``cuda``, ``driver``, ``nccl``, ``torch``, ..., as told."""
    permissions: tuple[str, ...] = ()
    """What the tool was not allowed to record."""
    damage: tuple[str, ...] = ()
    """What of the file could not be read, with bytes or rows: "the last 49 bytes: cut off in mid-event"."""
    missing: tuple[str, ...] = ()
    """What was not recorded and what therefore cannot be told, a sentence each."""
    shapes_recorded: bool = False
    stacks_recorded: bool = False
    memory_recorded: bool = False
    command: str = ""
    """What was profiled, redacted; empty: not told."""


def no_samples() -> Samples:
    """An empty table."""
    whole: NDArray[np.int32] = np.zeros(0, np.int32)
    return Samples(
        time_ns=np.zeros(0, np.int64),
        device=whole,
        rank=whole,
        metric=whole,
        value=np.zeros(0),
        metrics=(),
    )


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What one or several files hold of one run."""

    events: Events
    strings: tuple[str, ...]
    lanes: tuple[Lane, ...]
    metadata: Metadata
    samples: Samples = field(default_factory=no_samples)
    counters: tuple[KernelCounters, ...] = ()

    def name_of(self, row: int) -> str:
        """The name of one event."""
        return self.strings[int(self.events.name[row])]

    def lane_column(self, attribute: str) -> NDArray[np.int64]:
        """``rank``, ``process``, ``thread``, ``device`` or ``stream`` of every event, shape (n,)."""
        table = np.array([getattr(lane, attribute) for lane in self.lanes] or [NONE], np.int64)
        return table[self.events.lane] if len(self.events) else np.zeros(0, np.int64)

    def named(self, wanted: Iterable[bool]) -> NDArray[np.bool_]:
        """Which events have a name of which ``wanted``, one truth value a string, holds. Shape (n,)."""
        return np.fromiter(wanted, bool, len(self.strings))[self.events.name]


def merge(captures: Sequence[Capture]) -> Capture:
    """Several ranks, or several tools, of one run as one capture.

    Their clocks are joined by ``epoch_ns`` where all have it, else by ``origin_ns`` where all are of one
    tool and those origins lie within an hour, else every one starts at 0 and ``missing`` says so.
    ValueError where there is none.
    """
    if not captures:
        raise ValueError("no captures to merge")
    if len(captures) == 1:
        return captures[0]
    shifts, note, epoch, origin = _shifts(captures)
    strings: dict[str, int] = {}
    lanes: dict[Lane, int] = {}
    columns: dict[str, list[NDArray[np.generic]]] = {column: [] for column in COLUMNS}
    metrics: dict[str, int] = {}
    readings: dict[str, list[NDArray[np.generic]]] = {column: [] for column in READING_COLUMNS}
    for capture, shift in zip(captures, shifts, strict=True):
        # one entry more: NONE, which is the last index, stays NONE
        words = np.array([strings.setdefault(s, len(strings)) for s in capture.strings] + [NONE], np.int32)
        places = np.array([lanes.setdefault(one, len(lanes)) for one in capture.lanes] + [NONE], np.int32)
        for column in COLUMNS:
            values = getattr(capture.events, column)
            if column in ("name", "shapes", "dtypes", "text"):
                values = words[values]
            elif column == "lane":
                values = places[values]
            elif column == "start_ns":
                values = values + shift
            columns[column].append(values)
        samples = capture.samples
        numbers = np.array(
            [metrics.setdefault(one, len(metrics)) for one in samples.metrics] + [NONE], np.int32
        )
        for column, parts in readings.items():
            values = getattr(samples, column)
            if column == "metric":
                values = numbers[values]
            elif column == "time_ns":
                values = values + shift
            parts.append(values)
    order = np.argsort(np.concatenate(readings["time_ns"]), kind="stable")
    return Capture(
        events=make_events({column: np.concatenate(parts) for column, parts in columns.items()}),
        strings=tuple(strings),
        lanes=tuple(lanes),
        metadata=_merged_metadata([capture.metadata for capture in captures], note, epoch, origin),
        samples=Samples(
            metrics=tuple(metrics),
            **{column: np.concatenate(parts)[order] for column, parts in readings.items()},
        ),
        counters=tuple(one for capture in captures for one in capture.counters),
    )


def _shifts(captures: Sequence[Capture]) -> tuple[list[int], str, int | None, int]:
    """(What is added to each one's times, a note where clocks could not be joined, epoch, origin)."""
    timed = [one for one in captures if len(one.events) or len(one.samples.time_ns)]
    epochs = [one.metadata.epoch_ns for one in timed]
    known = [epoch for epoch in epochs if epoch is not None]
    if timed and len(known) == len(timed):
        first = min(known)
        return (
            [(one.metadata.epoch_ns or first) - first for one in captures],
            "",
            first,
            min(one.metadata.origin_ns for one in timed),
        )
    origins = [one.metadata.origin_ns for one in timed]
    tools = {one.metadata.tools[0].split()[0] if one.metadata.tools else "" for one in timed}
    if origins and len(tools) == 1 and max(origins) - min(origins) < 3600 * 10**9:
        first = min(origins)
        shifts = [one.metadata.origin_ns - first if one in timed else 0 for one in captures]
        return shifts, "", None, first
    note = "the files' clocks could not be joined: each starts at 0, and times are not comparable across"
    return [0] * len(captures), note if len(timed) > 1 else "", None, 0


def _merged_metadata(
    parts: Sequence[Metadata], note: str, epoch_ns: int | None, origin_ns: int
) -> Metadata:
    def all_of(attribute: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for part in parts for word in getattr(part, attribute)))

    devices: dict[int, Device] = {}
    for device in (device for part in parts for device in part.devices):
        devices.setdefault(device.number, device)
    return Metadata(
        tools=all_of("tools"),
        files=tuple(name for part in parts for name in part.files),
        origin_ns=origin_ns,
        epoch_ns=epoch_ns,
        host=", ".join(dict.fromkeys(part.host for part in parts if part.host)),
        ranks=tuple(sorted({rank for part in parts for rank in part.ranks})),
        world_size=max(part.world_size for part in parts),
        backend=next((part.backend for part in parts if part.backend), ""),
        devices=tuple(devices.values()),
        versions={word: version for part in parts for word, version in part.versions.items()},
        permissions=all_of("permissions"),
        damage=all_of("damage"),
        missing=(*all_of("missing"), *([note] if note else ())),
        shapes_recorded=any(part.shapes_recorded for part in parts),
        stacks_recorded=any(part.stacks_recorded for part in parts),
        memory_recorded=any(part.memory_recorded for part in parts),
        command=next((part.command for part in parts if part.command), ""),
    )
