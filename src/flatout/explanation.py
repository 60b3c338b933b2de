"""An explanation: everything that ``flatout explain`` may show of a capture, as data. Renderers only show.

Times are seconds here. Shares name their denominator. What is not known is None or empty, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.capture import Metadata
from flatout.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps that the figures are of: the same work again and again."""

    count: int
    seconds: tuple[float, ...]
    """Of each, in order, all ranks."""
    how: str
    """How they were told apart: ``ProfilerStep``, ``optimizer``, ``NVTX: step``, ``repetition`` of
    kernels, or ``whole`` (the capture was taken as one)."""
    note: str = ""
    """What the reader should know: steps left out at the edges, steps that differ much."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """The wall time of one device's steps, split so that compute + communication + copies + idle = wall.

    Interval unions: communication and copies are *exposed*, the time in which no kernel computed. Seconds
    of all steps together.
    """

    rank: int
    device: int
    wall_seconds: float
    compute_seconds: float
    communication_seconds: float
    """Exposed."""
    copy_seconds: float
    """Exposed copies and memsets."""
    idle_seconds: float
    hidden_communication_seconds: float
    """Communication beside which a kernel computed: not in the sum."""
    idle_by_cause: tuple[tuple[str, float], ...] = ()
    """Cause -> seconds, adding up to ``idle_seconds``; ``unknown`` for what has none."""


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """Calls of one kernel, over all steps."""

    name: str
    calls: int
    seconds: float
    """Sum of durations."""
    share: float
    """Of the device's busy time."""
    kind: str
    """``compute`` (products and convolutions), ``attention``, ``optimizer``, ``memory``,
    ``communication``, ``copy``."""
    operator: str = ""
    """The operator that launched most of it."""
    precision: str = ""
    """``float32``, ``tf32``, ``bfloat16``, ``float16``, ``float8``, ``float64``, ``int8``; empty: cannot
    tell."""
    tensor_cores: bool | None = None
    """By its name or by counters; None: cannot tell."""
    occupancy: float | None = None
    """Of the most warps that could be resident, by registers, shared memory and threads; not measured."""


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """All calls of one operator or kernel with one set of shapes."""

    name: str
    seconds: float
    flops_per_second: float
    flops_per_byte: float
    peak_flops_per_second: float
    """Of the precision that it ran in."""
    precision: str
    bound_by: str
    """``arithmetic`` or ``memory``."""
    source: str
    """``shapes`` or ``counters``."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What the device reaches at most, and where its operators stand."""

    device: str
    peak_bytes_per_second: float
    peaks: tuple[tuple[str, float], ...]
    """Precision -> FLOP/s."""
    points: tuple[RooflinePoint, ...]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of one lane in the picture of one step; neighbours of one kind may have been joined."""

    start_seconds: float
    """From the beginning of the picture."""
    seconds: float
    kind: str
    """As ``KernelRow.kind``; on a host lane ``operator``, ``call``, ``wait``, ``range`` or ``python``."""
    name: str


@dataclass(frozen=True, kw_only=True)
class PictureLane:
    """One line of the picture."""

    title: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One typical step as lanes of time: at most some 2,000 spans in all."""

    title: str
    seconds: float
    lanes: tuple[PictureLane, ...]


@dataclass(frozen=True, kw_only=True)
class ReplayCheck:
    """How well the replay of the unchanged trace agrees with it: to be shown before any bound of it."""

    median_error: float | None
    """|replayed - seen| / seen, median over steps; None: no replay, for ``reason``."""
    largest_error: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class CounterRow:
    """One metric over the capture."""

    metric: str
    """A key of ``capture.METRICS``, or the tool's own name."""
    device: int
    rank: int
    mean: float
    largest: float
    readings: int


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Of one capture."""

    metadata: Metadata
    steps: Steps
    verdict: str
    """One sentence: what limits it, how sure, and the most that mending it can save."""
    breakdowns: tuple[Breakdown, ...]
    findings: tuple[Finding, ...]
    """Found first, by their bound; then what cannot be told; then what is clean."""
    replay: ReplayCheck
    kernels: tuple[KernelRow, ...]
    """Dearest first, at most 50."""
    kernels_left_out: int = 0
    roofline: Roofline | None = None
    counters: tuple[CounterRow, ...] = ()
    pictures: tuple[Picture, ...] = ()
    flatout_version: str = ""
