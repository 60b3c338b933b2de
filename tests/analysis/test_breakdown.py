"""Sets of time against an obvious version, and the accounting of a device's time."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from flatout.analysis.breakdown import break_down, places
from flatout.analysis.intervals import Intervals, union, window
from flatout.capture import NONE, ON_DEVICE, Capture, Kind, Lane, Metadata, make_events
from flatout.readers import kineto

SHARED = os.environ.get("FLATOUT_SHARED", "")


def of(pairs: list[tuple[int, int]]) -> Intervals:
    return union(np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64))


def moments(pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in pairs for moment in range(start, end)}


def pairs_of(intervals: Intervals) -> list[tuple[int, int]]:
    return list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True))


def test_sets_of_time_are_what_their_moments_are() -> None:
    draw = random.Random(1)
    for _ in range(300):
        drawn = [
            [
                (start, start + draw.randrange(-1, 9))
                for start in draw.choices(range(40), k=draw.randrange(9))
            ]
            for _ in range(2)
        ]
        one, other = of(drawn[0]), of(drawn[1])
        mine, theirs = moments(drawn[0]), moments(drawn[1])
        for got, wanted in (
            (one, mine),
            (one & other, mine & theirs),
            (one | other, mine | theirs),
            (one - other, mine - theirs),
        ):
            assert moments(pairs_of(got)) == wanted
            assert got.total_ns == len(wanted)
            assert (got.starts < got.ends).all()
            assert (got.starts[1:] > got.ends[:-1]).all()
        asked = np.arange(50)
        assert one.holds(asked).tolist() == [moment in mine for moment in asked.tolist()]


def capture_of(rows: list[tuple[Kind, str, int, int, int]]) -> Capture:
    """Rows are (kind, name, start, duration, lane); lanes: two streams, a thread, another GPU."""
    strings = tuple(dict.fromkeys(name for _, name, *_ in rows))
    lanes = (
        Lane(rank=0, device=0, stream=7),
        Lane(rank=0, device=0, stream=9),
        Lane(rank=0, process=1, thread=1),
        Lane(rank=1, device=0, stream=7),
    )
    events = make_events(
        {
            "kind": [int(kind) for kind, *_ in rows],
            "name": [strings.index(name) for _, name, *_ in rows],
            "start_ns": [start for _, _, start, _, _ in rows],
            "duration_ns": [duration for *_, duration, _ in rows],
            "lane": [lane for *_, lane in rows],
        }
    )
    return Capture(events=events, strings=strings, lanes=lanes, metadata=Metadata(tools=("kineto",)))


def test_time_is_counted_once() -> None:
    capture = capture_of(
        [
            (Kind.CALL, "cudaLaunchKernel", 0, 500, 2),
            (Kind.KERNEL, "gemm", 100, 100, 0),
            (Kind.KERNEL, "ncclDevKernel_AllReduce", 150, 100, 1),
            (Kind.COPY, "Memcpy", 240, 40, 0),
            (Kind.DEVICE_RANGE, "step", 0, 900, 0),
            (Kind.KERNEL, "relu", 290, 10, 0),
            (Kind.KERNEL, "gemm", 0, 30, 3),
        ]
    )
    assert places(capture) == [(0, 0), (1, 0)]
    first, second = break_down(capture)
    nanoseconds = [
        round(seconds * 1e9)
        for seconds in (
            first.wall_seconds, first.compute_seconds, first.communication_seconds, first.copy_seconds,
            first.idle_seconds, first.hidden_communication_seconds,
        )
    ]  # fmt: skip
    assert nanoseconds == [200, 110, 50, 30, 10, 50]
    assert (second.rank, second.wall_seconds, second.idle_seconds) == (1, 3e-8, 0)
    (part, other) = break_down(capture, window(0, 150))
    assert round(part.idle_seconds * 1e9) == 100
    assert round(part.compute_seconds * 1e9) == 50
    assert round(other.idle_seconds * 1e9) == 120


def test_a_collective_that_the_tool_tells() -> None:
    capture = capture_of([(Kind.KERNEL, "custom_reduce", 0, 10, 0), (Kind.KERNEL, "gemm", 10, 10, 0)])
    capture.events.text[:] = [0, NONE]
    (found,) = break_down(capture)
    assert (found.communication_seconds, found.compute_seconds) == (1e-8, 1e-8)


def test_nothing_ran() -> None:
    assert break_down(capture_of([(Kind.CALL, "cudaFree", 0, 1, 2)])) == ()


@pytest.mark.skipif(not SHARED, reason="FLATOUT_SHARED names no folder of public captures")
def test_as_holistic_trace_analysis_says() -> None:
    """Its temporal breakdown of the same trace: idle 46.08 %, compute 35.55 %, the rest 18.37 %. It leaves
    out what starts in the last step that the profiler saw, so that a whole breakdown differs (42.26 %)."""
    capture = kineto.read(Path(SHARED) / "data" / "captures" / "kineto" / "v100x2_nccl_rank1.json.gz")
    last = capture.strings.index("ProfilerStep#6")
    (end,) = capture.events.start_ns[capture.events.name == last].tolist()
    begin = int(capture.events.start_ns[np.isin(capture.events.kind, ON_DEVICE)].min())
    (found,) = break_down(capture, window(begin, end))
    rest = found.communication_seconds + found.copy_seconds
    shares = [100 * part / found.wall_seconds for part in (found.idle_seconds, found.compute_seconds, rest)]
    assert shares == pytest.approx([46.08, 35.55, 18.37], abs=0.1)
    assert found.hidden_communication_seconds == 0
    (whole,) = break_down(capture)
    assert 100 * whole.idle_seconds / whole.wall_seconds == pytest.approx(42.26, abs=0.01)
