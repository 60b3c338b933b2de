"""Where a device's time went: compute + exposed communication + exposed copies + idle = wall, exactly."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from flatout.analysis.intervals import Intervals, union, window
from flatout.capture import NONE, ON_DEVICE, Capture, Kind
from flatout.explanation import Breakdown

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMMUNICATION = re.compile(r"nccl|rccl|oneccl|hccl|mscclpp|nvshmem", re.IGNORECASE)
"""In a kernel's name, whatever its library calls itself this year: NCCL's ``ncclKernel`` became
``ncclDevKernel``, and tools that asked for the former saw no communication (HolisticTraceAnalysis#122)."""


def places(capture: Capture) -> list[tuple[int, int]]:
    """(rank, device) of every device on which something ran, in order."""
    ran = np.isin(capture.events.kind, ON_DEVICE)
    lanes = (capture.lanes[lane] for lane in np.unique(capture.events.lane[ran]).tolist())
    return sorted({(lane.rank, lane.device) for lane in lanes})


def communicates(capture: Capture) -> NDArray[np.bool_]:
    """Which events are kernels of a collective: told by the tool, else by their names. Shape (n,)."""
    named = capture.named(bool(_COMMUNICATION.search(word)) for word in capture.strings)
    told = capture.events.text != NONE  # of a kernel: its collective
    found: NDArray[np.bool_] = (capture.events.kind == Kind.KERNEL) & (told | named)
    return found


def break_down(capture: Capture, within: Intervals | None = None) -> tuple[Breakdown, ...]:
    """One a device, ``within`` these times (of the capture's clock), else from its first event's start to
    its last one's end, over all its streams.

    A moment in which a kernel computes is compute, whatever else runs beside it; else communication, where
    one runs; else copies.
    """
    events = capture.events
    communication = communicates(capture)
    ranks, devices = capture.lane_column("rank"), capture.lane_column("device")
    ran = np.isin(events.kind, ON_DEVICE)
    found = []
    for rank, device in places(capture):
        here = ran & (ranks == rank) & (devices == device)

        def of(rows: NDArray[np.bool_], here: NDArray[np.bool_] = here) -> Intervals:
            return union(events.start_ns[here & rows], events.end_ns[here & rows])

        busy = of(here)
        if within is None:
            first = int(events.start_ns[here].min())
            span = window(first, int(events.end_ns[here].max()))
        else:
            span = within
        computing = of((events.kind == Kind.KERNEL) & ~communication) & span
        communicating = of(communication) & span
        exposed = communicating - computing
        copying = (busy & span) - computing - exposed
        idle = span - busy
        wall_ns = span.total_ns
        parts = (computing.total_ns, exposed.total_ns, copying.total_ns, idle.total_ns)
        if sum(parts) != wall_ns:
            raise AssertionError(f"{parts} do not add up to {wall_ns} ns on device {device} of rank {rank}")
        found.append(
            Breakdown(
                rank=rank,
                device=device,
                wall_seconds=wall_ns / 1e9,
                compute_seconds=parts[0] / 1e9,
                communication_seconds=parts[1] / 1e9,
                copy_seconds=parts[2] / 1e9,
                idle_seconds=parts[3] / 1e9,
                hidden_communication_seconds=(communicating.total_ns - exposed.total_ns) / 1e9,
            )
        )
    return tuple(found)
