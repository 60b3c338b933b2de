"""What surrounds a measurement: the GPU's clocks, power and heat, its other users, the host's other load.

A :class:`Reading` is one moment; counters in it only grow, so two readings tell what happened between
them. :func:`disturbed` says in words what somebody else, or the machine's protection of itself, did to
a turn; never what the plan under test does to itself: a plan that works the GPU harder may run into its
power cap, and is then as slow in the real job.

What is ordinary here comes from the baseline's own turns (:func:`usual_of`), so that a machine which is
always busy does not cry all the time. Every field is optional: where something cannot be read, nothing
is said about it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flatout.detect import load_nvml
from flatout.host import Host
from flatout.stats import median

IDLE = 0x1
POWER_CAP = 0x4
HARDWARE_SLOWDOWN = 0x8
THERMAL = 0x20
HARDWARE_THERMAL = 0x40
POWER_BRAKE = 0x80
"""Bits of NVML's clocks event reasons, formerly throttle reasons (nvml.h)."""

SLOWED_BY = {
    HARDWARE_THERMAL: "the GPU slowed itself down for heat",
    THERMAL: "the driver slowed the GPU down for heat",
    POWER_BRAKE: "the machine's power brake slowed the GPU down",
    HARDWARE_SLOWDOWN: "the GPU slowed itself down (hardware slowdown)",
}
"""What is no plan's doing, dearest to know first."""
CLOCK_DROP = 0.15
"""Of the usual clock: a lower one that neither idling nor the power cap explains is a disturbance."""
CAP_CHANGE = 0.05
LEAST_SPAN_SECONDS = 0.1
"""Processor time is counted in ticks of 10 ms: shorter spans say nothing about the host."""
STEAL_MARGIN = 0.05
"""Of all processors' time, beyond the usual."""
FOREIGN_USE = 10
"""Per cent of the GPU's time that a process of somebody else's may take beyond the usual."""


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One GPU at one moment. None: the driver does not tell."""

    uuid: str
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    power_cap_watts: float | None = None
    temperature_c: int | None = None
    reasons: int | None = None
    """Why the clocks are what they are: bits as named above."""
    pids: tuple[int, ...] = ()
    """Processes that compute on it, as the driver numbers them; inside a container these may be the
    host's numbers, or be missing."""
    strangers: tuple[int, ...] = ()
    """Of these: seen on this system, and not started by this search."""
    stranger_use_percent: int | None = None
    """Share of the GPU's time that they took lately, the largest of them."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One moment. Times in seconds; ``*_cpu_seconds`` are sums over processors since some start."""

    at: float = 0.0
    """Monotonic."""
    gpus: tuple[GpuReading, ...] = ()
    busy_cpu_seconds: float | None = None
    """Of the whole machine."""
    own_cpu_seconds: float | None = None
    """Of this search and everything that it started."""
    stolen_cpu_seconds: float | None = None
    """Taken by other guests of the same physical machine."""
    throttled_seconds: float | None = None
    """In which the control group's quota held its processes back."""
    cpu_count: int = 0


Span = tuple[Reading, Reading]
"""Before and after."""


@dataclass(frozen=True, kw_only=True)
class Usual:
    """What is ordinary on this machine while nothing but the program's own turns happens."""

    sm_clock_mhz: float | None = None
    power_cap_watts: float | None = None
    reasons: int = 0
    """Seen in any of the readings."""
    others_cpus: float | None = None
    """Processors that others kept busy, at most."""
    stolen_share: float = 0.0
    """Of all processors' time, at most."""
    stranger_use_percent: int = 0
    """Of a GPU's time that a process of somebody else's took, at most."""
    spans: int = 0
    """Turns that this was learnt from; 0: nothing is known, and only what changes within a turn is told."""


class Watcher(Protocol):
    """Whatever can be asked for a reading: a :class:`Watch`, or a test's."""

    def read(self) -> Reading: ...

    def gpu_use(self) -> int | None:
        """Per cent of the last second or so in which any of the GPUs was busy; None: not told. While ours
        hold still it is others' use, also of those that a container's driver does not name."""
        ...

    def close(self) -> None:
        """Safe to call twice."""
        ...


class Watch:
    """Reads the surroundings of programs that this process starts. Cheap: some hundred microseconds.

    ``ranks`` is how many of the host's GPUs the program uses. Never raises: what cannot be read is None.
    """

    def __init__(
        self,
        host: Host,
        device: str,
        ranks: int = 1,
        *,
        nvml: Any = None,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._clock = clock
        self._ticks = float(os.sysconf("SC_CLK_TCK"))
        self._pid = os.getpid()
        self._cpu_count = host.cpu_count
        self._handles: list[tuple[str, Any]] = []
        self._nvml: Any = None
        self._seen_until: dict[str, int] = {}
        if device.startswith("cuda") and host.gpus:
            self._open(host, max(1, ranks), nvml)

    def _open(self, host: Host, ranks: int, nvml: Any) -> None:
        nvml = nvml or load_nvml()
        if nvml is None:
            return
        try:
            nvml.nvmlInit()
            for gpu in host.gpus[:ranks]:
                self._handles.append((gpu.uuid, nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)))
        except nvml.NVMLError:
            self._handles = []
            return
        self._nvml = nvml

    def close(self) -> None:
        """Safe to call twice."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, []

    def read(self) -> Reading:
        own = self._own()
        busy, stolen = self._machine()
        return Reading(
            at=self._clock(),
            gpus=tuple(self._gpu(uuid, handle, set(own)) for uuid, handle in self._handles),
            busy_cpu_seconds=busy,
            own_cpu_seconds=sum(own.values()) if own else None,
            stolen_cpu_seconds=stolen,
            throttled_seconds=self._throttled(),
            cpu_count=self._cpu_count,
        )

    def gpu_use(self) -> int | None:
        rates = [self._ask("nvmlDeviceGetUtilizationRates", handle) for _, handle in self._handles]
        return max((int(rate.gpu) for rate in rates if rate is not None), default=None)

    # the GPU

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _gpu(self, uuid: str, handle: Any, own: set[int]) -> GpuReading:
        nvml = self._nvml
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        cap = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        pids = tuple(sorted(int(process.pid) for process in processes))
        strangers = tuple(
            pid for pid in pids if pid > 0 and pid not in own and (self._proc / str(pid)).is_dir()
        )
        return GpuReading(
            uuid=uuid,
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_SM", 1)),
            memory_clock_mhz=self._ask(
                "nvmlDeviceGetClockInfo", handle, getattr(nvml, "NVML_CLOCK_MEM", 2)
            ),
            power_watts=None if power is None else power / 1e3,
            power_cap_watts=None if cap is None else cap / 1e3,
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, 0),
            reasons=self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
            pids=pids,
            strangers=strangers,
            stranger_use_percent=self._use_of(uuid, handle, strangers) if strangers else None,
        )

    def _use_of(self, uuid: str, handle: Any, pids: Sequence[int]) -> int | None:
        """Of the samples that the driver took since the last look."""
        samples = self._ask("nvmlDeviceGetProcessUtilization", handle, self._seen_until.get(uuid, 0))
        if not samples:
            return None
        self._seen_until[uuid] = max(int(sample.timeStamp) for sample in samples)
        return max((int(sample.smUtil) for sample in samples if sample.pid in pids), default=0)

    # the host

    def _text(self, path: Path) -> str:
        try:
            return path.read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""

    def _machine(self) -> tuple[float | None, float | None]:
        """(Busy, stolen) seconds of all processors, from the first line of /proc/stat (proc(5))."""
        fields = self._text(self._proc / "stat").partition("\n")[0].split()
        if len(fields) < 9 or fields[0] != "cpu":
            return None, None
        user, nice, system, _idle, _wait, hard, soft, steal = (float(field) for field in fields[1:9])
        return (user + nice + system + hard + soft) / self._ticks, steal / self._ticks

    def _own(self) -> dict[int, float]:
        """pid -> seconds, of this process and everything below it, with what ended and was waited for."""
        found: dict[int, float] = {}
        pending = [self._pid]
        while pending:
            pid = pending.pop()
            # the name in brackets may hold anything, brackets included: split after the last one
            fields = self._text(self._proc / str(pid) / "stat").rpartition(")")[2].split()
            if pid in found or len(fields) < 15:
                continue
            found[pid] = sum(float(field) for field in fields[11:15]) / self._ticks
            for task in self._tasks(pid):
                pending += [int(child) for child in self._text(task / "children").split()]
        return found

    def _tasks(self, pid: int) -> Iterable[Path]:
        """Threads: each has children of its own."""
        try:
            return list((self._proc / str(pid) / "task").iterdir())
        except OSError:
            return ()

    def _throttled(self) -> float | None:
        """From cpu.stat of the control group, version 2 or 1, where its root is ours to see."""
        for path, word, unit in (
            (self._cgroup / "cpu.stat", "throttled_usec", 1e-6),
            (self._cgroup / "cpu" / "cpu.stat", "throttled_time", 1e-9),
        ):
            for line in self._text(path).splitlines():
                name, _, value = line.partition(" ")
                if name == word and value.isdigit():
                    return int(value) * unit
        return None


def others_cpus(before: Reading, after: Reading) -> float | None:
    """Processors that others kept busy in between, on average."""
    seconds = after.at - before.at
    if seconds < LEAST_SPAN_SECONDS:
        return None
    busy = _grown(before.busy_cpu_seconds, after.busy_cpu_seconds)
    own = _grown(before.own_cpu_seconds, after.own_cpu_seconds)
    return None if busy is None or own is None else max(0.0, busy - own) / seconds


def own_cpus(before: Reading, after: Reading) -> float | None:
    """Processors that this search and its programs kept busy."""
    seconds = after.at - before.at
    own = _grown(before.own_cpu_seconds, after.own_cpu_seconds)
    return None if own is None or seconds < LEAST_SPAN_SECONDS else own / seconds


def stolen_share(before: Reading, after: Reading) -> float | None:
    """Of all processors' time, what other guests of the physical machine took."""
    seconds = (after.at - before.at) * max(1, after.cpu_count)
    stolen = _grown(before.stolen_cpu_seconds, after.stolen_cpu_seconds)
    return None if stolen is None or seconds < LEAST_SPAN_SECONDS else stolen / seconds


def _grown(before: float | None, after: float | None) -> float | None:
    # a process that ends without being waited for takes its time with it
    return None if before is None or after is None else max(0.0, after - before)


def usual_of(spans: Sequence[Span]) -> Usual:
    """What is ordinary, from turns of the untouched program: the largest of what was seen."""
    ends = [gpu for _, after in spans for gpu in after.gpus]
    clocks = [gpu.sm_clock_mhz for gpu in ends if gpu.sm_clock_mhz and not _has(gpu.reasons, IDLE)]
    caps = [gpu.power_cap_watts for gpu in ends if gpu.power_cap_watts]
    reasons = 0
    for gpu in ends:
        reasons |= gpu.reasons or 0
    others = [value for span in spans if (value := others_cpus(*span)) is not None]
    stolen = [value for span in spans if (value := stolen_share(*span)) is not None]
    return Usual(
        sm_clock_mhz=median(clocks) if clocks else None,
        power_cap_watts=median(caps) if caps else None,
        reasons=reasons,
        others_cpus=max(others) if others else None,
        stolen_share=max(stolen, default=0.0),
        stranger_use_percent=max((gpu.stranger_use_percent or 0 for gpu in ends), default=0),
        spans=len(spans),
    )


def disturbed(before: Reading, after: Reading, usual: Usual | None = None) -> str:
    """What disturbed the turn in between, in words; empty where nothing did.

    It looks at the surroundings alone, never at the turn's own time: leaving turns out by their times
    would choose the result.
    """
    usual = usual or Usual()
    for old, new in zip(before.gpus, after.gpus, strict=False):
        reason = _gpu_disturbed(old, new, usual)
        if reason:
            return reason
    return _host_disturbed(before, after, usual)


def _gpu_disturbed(before: GpuReading, after: GpuReading, usual: Usual) -> str:
    for bit, words in SLOWED_BY.items() if usual.spans else ():
        if (_has(after.reasons, bit) or _has(before.reasons, bit)) and not usual.reasons & bit:
            heat = f" at {after.temperature_c} C" if after.temperature_c is not None else ""
            return words + heat
    cap = before.power_cap_watts if usual.power_cap_watts is None else usual.power_cap_watts
    if cap and after.power_cap_watts and abs(after.power_cap_watts / cap - 1.0) > CAP_CHANGE:
        return f"the GPU's power cap was set from {cap:.0f} W to {after.power_cap_watts:.0f} W"
    clock, usual_clock = after.sm_clock_mhz, usual.sm_clock_mhz
    explained = _has(after.reasons, IDLE) or _has(after.reasons, POWER_CAP) or after.reasons is None
    if clock and usual_clock and clock < (1.0 - CLOCK_DROP) * usual_clock and not explained:
        return f"the GPU's clock fell to {clock} MHz from {usual_clock:.0f} MHz, not by its power cap"
    came = set(after.pids) - set(before.pids)
    if came and before.pids and len(after.pids) > len(before.pids):
        # turns are taken by processes that have long been there
        return f"another process came to the GPU ({len(after.pids)} there instead of {len(before.pids)})"
    if usual.spans and (after.stranger_use_percent or 0) >= usual.stranger_use_percent + FOREIGN_USE:
        return (
            f"another process (pid {', '.join(map(str, after.strangers))}) took "
            f"{after.stranger_use_percent} % of the GPU's time"
        )
    return ""


def _host_disturbed(before: Reading, after: Reading, usual: Usual) -> str:
    stolen = stolen_share(before, after)
    if usual.spans and stolen is not None and stolen > usual.stolen_share + STEAL_MARGIN:
        return f"other guests of this machine took {stolen:.0%} of the processors' time"
    others, own = others_cpus(before, after), own_cpus(before, after)
    if others is None or own is None or usual.others_cpus is None or not after.cpu_count:
        return ""
    # load that leaves processors free takes nothing away
    crowded = others + own > 0.8 * after.cpu_count
    if crowded and others > usual.others_cpus + max(0.5, 0.15 * after.cpu_count):
        return (
            f"others kept {others:.1f} of {after.cpu_count} processors busy, "
            f"{usual.others_cpus:.1f} at most before"
        )
    return ""


def _has(reasons: int | None, bit: int) -> bool:
    return bool(reasons and reasons & bit)


def in_words(spans: Sequence[Span]) -> str:
    """A line for the report: ``clocks 1,980 MHz, 62 C, 640 of 700 W; others 0.2 of 16 processors``."""
    parts = []
    ends = [gpu for _, after in spans for gpu in after.gpus]
    clocks = [gpu.sm_clock_mhz for gpu in ends if gpu.sm_clock_mhz]
    if clocks:
        low, high = min(clocks), max(clocks)
        parts.append(f"clocks {low:,} MHz" if low == high else f"clocks {low:,} to {high:,} MHz")
    heats = [gpu.temperature_c for gpu in ends if gpu.temperature_c is not None]
    if heats:
        parts.append(f"up to {max(heats)} C")
    powers = [gpu.power_watts for gpu in ends if gpu.power_watts]
    caps = [gpu.power_cap_watts for gpu in ends if gpu.power_cap_watts]
    if powers:
        parts.append(f"up to {max(powers):.0f}" + (f" of {max(caps):.0f} W" if caps else " W"))
    if any(_has(gpu.reasons, POWER_CAP) for gpu in ends):
        capped = sum(_has(gpu.reasons, POWER_CAP) for gpu in ends) / len(ends)
        parts.append(f"held by its power cap at {capped:.0%} of the readings")
    strangers = {pid for gpu in ends for pid in gpu.strangers}
    if strangers:
        parts.append(f"{len(strangers)} other processes on the GPU")
    others = [value for span in spans if (value := others_cpus(*span)) is not None]
    if others:
        count = spans[-1][1].cpu_count
        parts.append(f"others kept {median(others):.1f} of {count} processors busy")
    stolen = [value for span in spans if (value := stolen_share(*span)) is not None]
    if stolen and max(stolen) >= 0.01:
        parts.append(f"up to {max(stolen):.0%} of processor time taken by other guests")
    return ", ".join(parts)
