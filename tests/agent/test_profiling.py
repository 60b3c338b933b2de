"""A profile's events, summed up by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flatout.agent.profiling import summarise, union


def event(name: str, start: float, end: float, device: str = "CPU", own: float = 0.0) -> Any:
    return SimpleNamespace(
        name=name,
        device_type=SimpleNamespace(name=device),
        time_range=SimpleNamespace(start=start, end=end),
        self_cpu_time_total=own,
    )


def test_union_of_overlapping_intervals() -> None:
    assert union([(0, 4), (1, 2), (3, 6), (10, 11)]) == 7
    assert union([]) == 0


def test_on_a_cpu_operators_are_the_kernels_and_ranges_are_no_work() -> None:
    summary = summarise(
        [
            event("Optimizer.step#SGD.step", 0, 100, own=60),
            event("aten::linear", 10, 30, own=5),
            event("aten::addmm", 12, 28, own=15),
            event("aten::addmm", 40, 50, own=10),
        ]
    )
    assert summary["device_busy_seconds"] == 30e-6
    assert summary["kernels"] == [["aten::addmm", 2, 25e-6], ["aten::linear", 1, 5e-6]]
    assert summary["kernel_count"] == 3


def test_on_a_gpu_kernels_count_and_annotations_drawn_there_do_not() -> None:
    summary = summarise(
        [
            event("aten::mm", 0, 5, own=5),
            event("step", 0, 50, own=1),
            event("gemm", 10, 20, device="CUDA"),
            event("gemm", 15, 25, device="CUDA"),
            event("step", 0, 50, device="CUDA"),
        ]
    )
    assert summary["device_busy_seconds"] == 15e-6
    assert summary["kernels"] == [["gemm", 2, 20e-6]]
    assert [row[0] for row in summary["operators"]] == ["aten::mm", "step"]
