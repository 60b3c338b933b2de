"""One step under torch.profiler, told as names with counts and seconds."""

from __future__ import annotations

import time

from .timeline import RANGES, drawn_there, lay_out, measure_cpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_NAMES = 80


class Profiler:
    """From the end of one step to the end of the next."""

    def __init__(self, torch: Any, profile: Any, missing: str) -> None:
        self._torch = torch
        self._profile = profile
        self._missing = missing
        self._start = time.perf_counter()

    @classmethod
    def start(cls, torch: Any) -> Profiler:
        """Begin; where the profiler is not to be had, the event will say why."""
        try:
            if torch.autograd._profiler_enabled():
                return cls(torch, None, "the program runs torch's profiler itself")
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            profile = torch.profiler.profile(activities=activities, record_shapes=True)
            profile.start()
        except Exception as error:
            return cls(torch, None, f"{type(error).__name__}: {error}")
        return cls(torch, profile, "")

    def stop(self) -> dict[str, Any]:
        """End, and give the ``profile`` event, or a ``note`` that says why there is none."""
        if self._profile is None:
            return {"event": "note", "note": f"no profile: {self._missing}"}
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()
        wall = time.perf_counter() - self._start
        try:
            self._profile.stop()
            told = {"event": "profile", "wall_seconds": wall, **summarise(self._profile.events())}
        except Exception as error:
            return {"event": "note", "note": f"no profile: {type(error).__name__}: {error}"}
        return {**told, **self._laid_out(wall)}

    def _laid_out(self, wall: float) -> dict[str, Any]:
        """The line of time and what this CPU reaches; less, or nothing, where this torch tells less."""
        try:
            line = lay_out(self._profile.profiler.kineto_results.events(), wall)
            if line and not (self._torch.cuda.is_available() and self._torch.cuda.is_initialized()):
                low = any(dtype == "c10::BFloat16" for row in line["work"] for dtype, _ in row[1])
                line["peaks"] = measure_cpu(self._torch, low=low)
            return line
        except Exception as error:
            return {"missing": f"{type(error).__name__}: {error}"[:200]}


def summarise(profiled: Any) -> dict[str, Any]:
    """Aggregate torch's function events by name. Seconds; kernels on a GPU, else operators."""
    kernels: dict[str, list[float]] = {}
    operators: dict[str, list[float]] = {}
    kernel_spans: list[tuple[float, float]] = []
    operator_spans: list[tuple[float, float]] = []
    host_names: set[str] = set()
    device_events = []
    optimizer: dict[str, list[tuple[float, float]]] = {"host": [], "device": []}
    for event in profiled:
        if event.name.startswith("Optimizer.step"):
            where = "host" if event.device_type.name == "CPU" else "device"
            optimizer[where].append((event.time_range.start, event.time_range.end))
        if event.device_type.name != "CPU":
            device_events.append(event)
            continue
        host_names.add(event.name)
        if event.name.startswith(RANGES):
            continue
        _add(operators, event.name, event.self_cpu_time_total / 1e6)
        operator_spans.append((event.time_range.start, event.time_range.end))
    for event in device_events:
        if drawn_there(event.name, host_names):
            continue
        start, end = event.time_range.start, event.time_range.end
        _add(kernels, event.name, (end - start) / 1e6)
        kernel_spans.append((start, end))
    if kernels:
        busy, by_kernel, count = union(kernel_spans), kernels, len(kernel_spans)
    else:
        busy, by_kernel, count = union(operator_spans), operators, len(operator_spans)
    return {
        "kernels": _most(by_kernel),
        "operators": _most(operators),
        "device_busy_seconds": busy / 1e6,
        "kernel_count": count,
        "optimizer_host_seconds": union(optimizer["host"]) / 1e6,
        "optimizer_device_seconds": union(optimizer["device"]) / 1e6,
    }


def union(spans: list[tuple[float, float]]) -> float:
    """Length covered by intervals that may overlap."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _add(table: dict[str, list[float]], name: str, seconds: float) -> None:
    entry = table.setdefault(name, [0, 0.0])
    entry[0] += 1
    entry[1] += seconds


def _most(table: dict[str, list[float]]) -> list[list[Any]]:
    ordered = sorted(table.items(), key=lambda item: -item[1][1])[:MOST_NAMES]
    return [[name[:200], int(count), seconds] for name, (count, seconds) in ordered]
