"""The table of events, and captures of one run made one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from flatout.capture import (
    COLUMNS,
    DTYPES,
    NONE,
    Capture,
    Device,
    Kind,
    Lane,
    Metadata,
    Samples,
    make_events,
    merge,
)


def capture(
    columns: Mapping[str, Sequence[int]],
    strings: tuple[str, ...],
    lanes: tuple[Lane, ...],
    metadata: Metadata,
    *,
    readings: Sequence[tuple[int, float]] = (),
) -> Capture:
    samples = Samples(
        time_ns=np.array([time for time, _ in readings], np.int64),
        device=np.zeros(len(readings), np.int32),
        rank=np.full(len(readings), NONE, np.int32),
        metric=np.zeros(len(readings), np.int32),
        value=np.array([value for _, value in readings], np.float64),
        metrics=("power_watts",) if readings else (),
    )
    return Capture(
        events=make_events(columns), strings=strings, lanes=lanes, metadata=metadata, samples=samples
    )


def one(rank: int, *, start: int, name: str, tool: str = "kineto", **metadata: object) -> Capture:
    return capture(
        {"start_ns": [start], "duration_ns": [5], "kind": [Kind.KERNEL], "name": [0], "lane": [0]},
        (name,),
        (Lane(rank=rank, device=0, stream=7),),
        Metadata(tools=(tool,), files=(f"{rank}.json",), ranks=(rank,), **metadata),  # type: ignore[arg-type]
        readings=[(start + 1, 100.0 + rank)],
    )


def test_events_are_ordered_and_what_encloses_comes_first() -> None:
    events = make_events({"start_ns": [30, 10, 10], "duration_ns": [1, 2, 9], "name": [0, 1, 2]})
    assert events.start_ns.tolist() == [10, 10, 30]
    assert events.name.tolist() == [2, 1, 0]
    assert events.end_ns.tolist() == [19, 12, 31]
    assert events.correlation.tolist() == [NONE] * 3
    assert {column: str(getattr(events, column).dtype) for column in COLUMNS} == dict(DTYPES)


def test_a_negative_duration_becomes_a_moment_and_the_callers_array_is_left_alone() -> None:
    durations = np.array([-7, 3], np.int64)
    events = make_events({"start_ns": [1, 2], "duration_ns": durations})
    assert events.duration_ns.tolist() == [0, 3]
    assert durations.tolist() == [-7, 3]


def test_rows_are_taken_by_index_and_by_truth() -> None:
    events = make_events({"start_ns": [1, 2, 3], "duration_ns": [1, 1, 1], "name": [4, 5, 6]})
    assert events.take(np.array([2, 0])).name.tolist() == [6, 4]
    assert events.take(events.name == 5).start_ns.tolist() == [2]


def test_no_events_is_a_table_too() -> None:
    assert len(make_events({"start_ns": [], "duration_ns": []})) == 0


def test_lanes_and_names_by_event() -> None:
    table = capture(
        {"start_ns": [1, 2], "duration_ns": [1, 1], "name": [1, 0], "lane": [1, 0]},
        ("gemm", "relu"),
        (Lane(device=0, stream=7), Lane(process=9, thread=11)),
        Metadata(tools=("kineto",)),
    )
    assert table.lane_column("thread").tolist() == [11, NONE]
    assert table.lane_column("stream").tolist() == [NONE, 7]
    assert table.name_of(0) == "relu"
    assert table.named(word == "gemm" for word in table.strings).tolist() == [False, True]


def test_ranks_are_merged_by_the_clock_since_1970() -> None:
    merged = merge(
        [
            one(1, start=10, name="gemm", epoch_ns=5_000, origin_ns=70, world_size=2, backend="nccl"),
            one(0, start=10, name="relu", epoch_ns=4_000, origin_ns=90, devices=(Device(number=0),)),
        ]
    )
    assert merged.events.start_ns.tolist() == [10, 1010]
    assert [merged.name_of(row) for row in range(2)] == ["relu", "gemm"]
    assert merged.lane_column("rank").tolist() == [0, 1]
    assert merged.samples.time_ns.tolist() == [11, 1011]
    assert merged.samples.of("power_watts").value.tolist() == [100.0, 101.0]
    told = merged.metadata
    assert (told.ranks, told.world_size, told.backend) == ((0, 1), 2, "nccl")
    assert (told.epoch_ns, told.origin_ns, told.missing) == (4_000, 70, ())
    assert told.files == ("1.json", "0.json")


def test_without_it_by_the_tools_own_clock() -> None:
    merged = merge([one(0, start=0, name="a", origin_ns=500), one(1, start=0, name="a", origin_ns=100)])
    assert merged.events.start_ns.tolist() == [0, 400]
    assert merged.lane_column("rank").tolist() == [1, 0]
    assert merged.strings == ("a",)
    assert merged.metadata.missing == ()


@pytest.mark.parametrize("second", [{"tool": "nsys"}, {"origin_ns": 2 * 3600 * 10**9}])
def test_clocks_that_cannot_be_joined_are_said(second: dict[str, object]) -> None:
    merged = merge([one(0, start=3, name="a"), one(1, start=4, name="b", **second)])  # type: ignore[arg-type]
    assert merged.events.start_ns.tolist() == [3, 4]
    assert "clocks could not be joined" in merged.metadata.missing[0]


def test_what_has_no_value_has_none_after_a_merge() -> None:
    merged = merge([one(0, start=1, name="a", epoch_ns=0), one(1, start=2, name="b", epoch_ns=0)])
    assert merged.events.text.tolist() == [NONE, NONE]
    assert merged.events.shapes.tolist() == [NONE, NONE]


def test_one_capture_is_itself_and_none_is_an_error() -> None:
    alone = one(0, start=1, name="a")
    assert merge([alone]) is alone
    with pytest.raises(ValueError, match="no captures"):
        merge([])


def test_samples_of_a_metric_that_is_not_there_are_empty() -> None:
    samples = one(0, start=1, name="a").samples
    assert len(samples.of("power_watts", device=0).value) == 1
    assert len(samples.of("power_watts", device=1).value) == 0
    assert len(samples.of("sm_active_ratio").value) == 0
