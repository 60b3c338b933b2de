"""Traces of torch.profiler: every oddity that was seen in the field, in files made here."""

from __future__ import annotations

import gc
import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flatout.capture import NONE, Capture, Kind
from flatout.errors import BadCapture, FlatoutError
from flatout.readers import chunks, kineto, kineto_events, stream

KERNEL = {
    "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1000, "dur": 50,
    "args": {
        "device": 0, "stream": 7, "correlation": 5, "grid": [4, 3, 2], "block": [32, 4, 1],
        "registers per thread": 96, "shared memory": 49152,
    },
}  # fmt: skip
LAUNCH = {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 42, "tid": 43, "ts": 990, "dur": 4,
    "args": {"correlation": 5},
}  # fmt: skip


def write(folder: Path, events: list[Any], name: str = "trace.json", **keys: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, **keys, "traceEvents": events}, indent=1))
    return path


def kinds(capture: Capture) -> Counter[str]:
    return Counter(Kind(kind).name for kind in capture.events.kind.tolist())


def test_a_kernel_and_its_launch(tmp_path: Path) -> None:
    arrow = {"ph": "s", "id": 5, "pid": 42, "tid": 43, "ts": 990, "cat": "ac2g", "name": "ac2g"}
    named = {"ph": "M", "name": "thread_name", "pid": 42, "tid": 43, "args": {"name": "python"}}
    path = write(
        tmp_path,
        [KERNEL, arrow, named, LAUNCH],
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
        deviceProperties=[{"id": 0, "name": "H200", "numSms": 132, "computeMajor": 9, "computeMinor": 0}],
        baseTimeNanoseconds=1_700_000_000_000_000_000,
        cuda_runtime_version=12040,
    )
    capture = kineto.read(path)
    events, told = capture.events, capture.metadata
    assert [capture.name_of(row) for row in range(2)] == ["cudaLaunchKernel", "gemm"]
    assert events.start_ns.tolist() == [0, 10_000]
    assert events.duration_ns.tolist() == [4000, 50_000]
    assert events.correlation.tolist() == [5, 5]
    assert (events.blocks[1], events.threads[1]) == (24, 128)
    assert (events.registers[1], events.shared_bytes[1]) == (96, 49152)
    host, device = (capture.lanes[lane] for lane in events.lane.tolist())
    assert (host.process, host.thread, host.name, host.rank) == (42, 43, "python", 3)
    assert (device.device, device.stream, device.process, device.rank) == (0, 7, 42, 3)
    assert (told.ranks, told.world_size, told.backend) == ((3,), 8, "nccl")
    assert told.devices[0].multiprocessors == 132
    assert told.epoch_ns == 1_700_000_000_000_000_000 + 990_000
    assert told.versions == {"cuda": "12040"}
    assert not told.damage


def test_nanoseconds_survive(tmp_path: Path) -> None:
    near = {**KERNEL, "ts": 4458676522690.655, "dur": 156.777}
    late = {**KERNEL, "ts": 4458676522847.432}
    events = kineto.read(write(tmp_path, [near, late])).events
    assert events.start_ns.tolist() == [0, 156_777]
    assert events.duration_ns[0] == 156_777
    whole = {**KERNEL, "ts": 1669783687464181}
    assert kineto.read(write(tmp_path, [whole])).metadata.epoch_ns == 1_669_783_687_464_181_000


def test_nanoseconds_of_absolute_times_survive(tmp_path: Path) -> None:
    """Microseconds since 1970 with a fraction: a double keeps only quarters of them."""
    path = tmp_path / "absolute.json"
    text = json.dumps({"traceEvents": [LAUNCH, KERNEL, {**KERNEL, "args": {"correlation": "5"}}]})
    text = text.replace('"ts": 990', '"ts": 1712195495519689.047')
    path.write_text(text.replace('"ts": 1000', '"ts": 1712195495519695.812'))
    capture = kineto.read(path)
    assert capture.events.start_ns.tolist() == [0, 6765, 6765]
    assert capture.metadata.epoch_ns == 1_712_195_495_519_689_047


def test_what_lies_far_from_everything_is_told(tmp_path: Path) -> None:
    """A time of another century, and a duration that overflowed in the profiler (TraceLens#669)."""
    events = [{**KERNEL, "ts": 10**12 + i * 1000} for i in range(20)]
    capture = kineto.read(write(tmp_path, [*events, {**KERNEL, "ts": 0}, {**KERNEL, "ts": 10**14}]))
    assert len(capture.events) == 20
    assert "2 events a day or more from the others" in capture.metadata.damage[0]
    capture = kineto.read(write(tmp_path, [*events, {**KERNEL, "ts": 10**12 + 50, "dur": 9e11}]))
    assert capture.events.end_ns.max() == 19_050_000
    assert "1 events that last far beyond all others" in capture.metadata.damage[0]


def test_what_is_not_read_is_told(tmp_path: Path) -> None:
    counter = {"ph": "C", "name": "queue", "pid": 0, "ts": 1, "args": {"length": 3}}
    capture = kineto.read(write(tmp_path, [KERNEL, counter, {"ph": "b", "ts": 3}, {"ph": "?"}]))
    told = " ".join(capture.metadata.missing)
    assert "1 counters in the file are not read" in told
    assert "1 events of phase 'b'" in told
    assert "1 events of phase '?'" in told


def test_rows_are_in_order(tmp_path: Path) -> None:
    draw = random.Random(1)
    events = [{**LAUNCH, "ts": draw.randrange(9), "dur": draw.randrange(9)} for _ in range(200)]
    table = kineto.read(write(tmp_path, [{**KERNEL, "ts": 4, "dur": 3}, *events])).events
    rows = list(zip(table.start_ns.tolist(), (-table.duration_ns).tolist(), strict=True))
    assert rows == sorted(rows)
    (row,) = [row for row, kind in enumerate(table.kind.tolist()) if kind == Kind.KERNEL]
    assert (table.blocks[row], table.registers[row], table.correlation[row]) == (24, 96, 5)
    assert table.start_ns[row] == 4000


def test_what_events_say_beside(tmp_path: Path) -> None:
    copy = {
        **KERNEL,
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD (Pageable -> Device)",
        "args": {"bytes": 64},
    }
    back = {**copy, "name": "Memcpy DtoH (Device -> Pinned)"}
    reduce_args = {"Collective name": "allreduce", "Process Group Name": "0"}
    reduced = {**KERNEL, "name": "ncclDevKernel_AllReduce", "args": reduce_args}
    dims = {"Input Dims": [[8, 128], []], "Input type": ["float", "Scalar"]}
    operator = {**LAUNCH, "cat": "cpu_op", "name": "aten::mm", "args": dims}
    memory = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 995}
    memory["args"] = {"Bytes": -512, "Device Id": 0, "Device Type": 1}
    capture = kineto.read(write(tmp_path, [copy, back, reduced, operator, memory]))
    texts = {
        capture.name_of(row): capture.strings[text] if text != NONE else ""
        for row, text in enumerate(capture.events.text.tolist())
    }
    assert texts["Memcpy HtoD (Pageable -> Device)"] == "HtoD pageable"
    assert texts["Memcpy DtoH (Device -> Pinned)"] == "DtoH pinned"
    assert texts["ncclDevKernel_AllReduce"] == "allreduce 0"
    row = capture.events.kind.tolist().index(Kind.OPERATOR)
    assert json.loads(capture.strings[capture.events.shapes[row]]) == [[8, 128], []]
    assert json.loads(capture.strings[capture.events.dtypes[row]]) == ["float", "Scalar"]
    row = capture.events.kind.tolist().index(Kind.MEMORY)
    assert capture.events.moved_bytes[row] == -512
    assert capture.metadata.shapes_recorded
    assert capture.metadata.memory_recorded


def test_old_and_amd_words(tmp_path: Path) -> None:
    old = [{**KERNEL, "cat": "Kernel"}, {**LAUNCH, "cat": "Runtime"}, {**LAUNCH, "cat": "Operator"}]
    amd = [{**KERNEL, "name": "Cijk_Ailk_Bljk_HHS_BH"}, {**LAUNCH, "cat": "hip_runtime"}]
    capture = kineto.read(write(tmp_path, [*old, *amd]))
    assert kinds(capture) == {"KERNEL": 2, "CALL": 2, "OPERATOR": 1}


@pytest.mark.parametrize("indent", [None, 0, 1, 4])
@pytest.mark.parametrize("keys_first", [True, False])
def test_every_layout(
    tmp_path: Path, indent: int | None, keys_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BLOCK_BYTES", 3000)
    names = ['a"b', "c\\", "}, {", "[x]", '\\"},\n{"ph": "X"', "ü"]
    events = [{**KERNEL, "name": names[i % len(names)], "ts": i} for i in range(200)]
    keys = {"distributedInfo": {"rank": 1, "world_size": 2}, "note": '"traceEvents": ['}
    whole = {**keys, "traceEvents": events} if keys_first else {"traceEvents": events, **keys}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(whole, indent=indent, ensure_ascii=False), encoding="utf-8")
    capture = kineto.read(path)
    assert [capture.name_of(row) for row in range(200)] == [names[i % len(names)] for i in range(200)]
    assert capture.metadata.ranks == (1,)
    assert not capture.metadata.damage


def test_a_bare_list_and_compression(tmp_path: Path) -> None:
    text = json.dumps([KERNEL, LAUNCH]).encode()
    for name, data in (
        ("bare.json", text),
        ("packed", gzip.compress(text)),
        ("members.gz", gzip.compress(text[:90]) + gzip.compress(text[90:])),
        ("bom.json", b"\xef\xbb\xbf" + text),
        ("wide.json", text.decode().encode("utf-16")),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        capture = kineto.read(path)
        assert len(capture.events) == 2, name
        assert not capture.metadata.damage, name


def test_a_file_cut_off_tells_so(tmp_path: Path) -> None:
    text = write(tmp_path, [{**KERNEL, "ts": i} for i in range(100)]).read_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(text[: len(text) // 2])
    capture = kineto.read(path)
    assert 40 <= len(capture.events) <= 50
    assert "cut off in mid-event" in capture.metadata.damage[0]
    packed = gzip.compress(text)
    path.write_bytes(packed[:-200])
    assert "is cut off" in kineto.read(path).metadata.damage[0]
    path.write_bytes(packed + b"rubbish")
    capture = kineto.read(path)
    assert len(capture.events) == 100
    assert "7 bytes after the compressed data" in capture.metadata.damage[0]


def test_one_bad_event_costs_one_event(tmp_path: Path) -> None:
    text = write(tmp_path, [{**KERNEL, "ts": i} for i in range(50)]).read_text()
    path = tmp_path / "bad.json"
    path.write_text(text.replace('"ts": 20,', '"ts": ,'))
    capture = kineto.read(path)
    assert len(capture.events) == 49
    assert "no event that can be read" in capture.metadata.damage[0]


def test_odd_values(tmp_path: Path) -> None:
    """Control characters (pytorch#130622), numbers beyond 64 bits, NaN, negative and absurd durations."""
    events = [
        {**KERNEL, "name": "raw\x01name"},
        {**KERNEL, "args": {"correlation": 2**70, "stream": 7, "Comms Id": 2**64 + 1}},
        {**KERNEL, "args": {"shared memory": 2**40}},
        {**KERNEL, "dur": -5},
        {**KERNEL, "dur": 1e300},
        {**KERNEL, "ts": 1e300},
        {**KERNEL, "ts": "1003.5"},
        {**KERNEL, "args": None},
        {**KERNEL, "pid": None, "args": {}},
    ]
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"traceEvents": events}).replace("\\u0001", "\x01"))
    capture = kineto.read(path)
    assert len(capture.events) == 8
    assert "raw\x01name" in capture.strings
    assert capture.events.duration_ns.min() == 0
    told = " ".join(capture.metadata.damage)
    assert "1 events without a time" in told
    assert "2 events with a duration that cannot be" in told
    assert "do not fit" in told


def test_beginnings_and_ends_are_paired(tmp_path: Path) -> None:
    base = {"cat": "cpu_op", "pid": 1, "tid": 1}
    events = [
        {**base, "ph": "B", "name": "outer", "ts": 10},
        {**base, "ph": "B", "name": "inner", "ts": 12},
        {**base, "ph": "E", "ts": 15},
        {**base, "ph": "E", "ts": 20},
        {**base, "ph": "E", "ts": 21},
        {**base, "ph": "B", "name": "open", "ts": 30},
    ]
    capture = kineto.read(write(tmp_path, events))
    durations = {capture.name_of(row): int(ns) for row, ns in enumerate(capture.events.duration_ns)}
    assert durations == {"outer": 10_000, "inner": 3000}
    assert len(capture.metadata.damage) == 2


def test_overlapping_slices_are_kept(tmp_path: Path) -> None:
    capture = kineto.read(write(tmp_path, [KERNEL, {**KERNEL, "ts": 1020}]))
    assert capture.events.start_ns.tolist() == [0, 20_000]
    assert capture.events.duration_ns.tolist() == [50_000, 50_000]


def test_a_rank_by_the_name_is_said_to_be(tmp_path: Path) -> None:
    capture = kineto.read(write(tmp_path, [KERNEL], name="run-rank_12.json"))
    assert capture.metadata.ranks == (12,)
    assert "taken from the file's name" in capture.metadata.missing[0]
    capture = kineto.read(write(tmp_path, [LAUNCH]))
    assert capture.metadata.ranks == ()
    assert any("no kernel" in sentence for sentence in capture.metadata.missing)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"hello", "begins with"),
        (b"SQLite format 3\0rest", "SQLite"),
        (b"\x28\xb5\x2f\xfd....", "Zstandard"),
        (b'{"a": 1}', "without a list of events"),
        (b'{"a": 1', "cut off"),
        (b'{"traceEvents": [{"ph": "X", "ts": nope}]}', "no event that can be read"),
        (b'{"traceEvents": [' + b"[" * 10_000, "no event that can be read"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(BadCapture, match=said):
        kineto.read(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadCapture, match="cannot read"):
        kineto.read(tmp_path / "none.json")
    with pytest.raises(BadCapture, match="cannot read"):
        kineto.read(tmp_path)


def test_progress_and_the_collector(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = write(tmp_path, [KERNEL] * 100)
    kineto.read(path, progress=lambda done, size: told.append((done, size)))
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    assert gc.isenabled()


def mutated(text: bytes, draw: random.Random) -> bytes:
    """The text with one thing wrong."""
    at, other = sorted(draw.randrange(len(text)) for _ in range(2))
    return draw.choice(
        [
            text[:at],
            text[:at] + text[other:],
            text[:other] + text[at:],
            text[:at] + bytes([draw.randrange(256)]) + text[at + 1 :],
            text.replace(b"1000", draw.choice([b"1e999", b"-1", b"null", b'"x"', b"[]", b"9" * 30]), 1),
            text[:at] + draw.choice([b'"', b"{", b"}", b"]", b"\\", b"\0", b"\xff"]) + text[at:],
        ]
    )


def test_mutations_neither_crash_nor_lose_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(chunks, "_WINDOW", 1000)
    draw = random.Random(4)
    text = write(tmp_path, [KERNEL, LAUNCH] * 20, distributedInfo={"rank": 0}).read_bytes()
    path = tmp_path / "mutated.json"
    whole = len(kineto.read(write(tmp_path, [KERNEL, LAUNCH] * 20)).events)
    read = 0
    for _ in range(300):
        changed = mutated(text, draw)
        path.write_bytes(changed)
        try:
            capture = kineto.read(path)
        except FlatoutError:
            continue
        read += 1
        try:
            sound = bool(json.loads(changed))
        except ValueError:
            sound = False
        assert len(capture.events) >= whole or capture.metadata.damage or sound, changed
    assert read > 200


SHARED = os.environ.get("FLATOUT_SHARED", "")


@pytest.mark.skipif(not SHARED, reason="FLATOUT_SHARED names no folder of public captures")
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("v100x2_nccl_rank1", 19370), ("a100x16_rank0", 6080), ("a100x2_nccl_args", 2700),
        ("v100_float_ns", 4350), ("h100_qwen_infer", 1465), ("event_sync_multi_stream", 3), ("cpu_only", 0),
    ],
)  # fmt: skip
def test_public_traces(name: str, kernels: int) -> None:
    capture = kineto.read(Path(SHARED) / "data" / "captures" / "kineto" / f"{name}.json.gz")
    assert kinds(capture)["KERNEL"] == kernels
    assert not capture.metadata.damage
    assert capture.metadata.ranks or name.startswith("h100")


@pytest.mark.skipif(not SHARED, reason="FLATOUT_SHARED names no folder of public captures")
def test_report_15() -> None:
    capture = kineto.read(Path(SHARED) / "cases" / "reports" / "15-trace-damaged.json")
    assert len(capture.events) == 3
    assert "bytes: cut off in mid-event" in capture.metadata.damage[0]


def test_sound_events_are_decoded_by_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way is for what is odd: a field that the typed decoder refuses would cost ten times."""

    def odd(text: bytes) -> None:
        raise AssertionError(text)

    monkeypatch.setattr(kineto_events, "odd", odd)
    shapes = {"Input Dims": [[8, 128], []], "Input type": None, "Call stack": "a.py(1): f"}
    operator = {**LAUNCH, "cat": "cpu_op", "args": shapes, "pid": "process", "dur": 1.5}
    assert len(kineto.read(write(tmp_path, [KERNEL, LAUNCH, operator])).events) == 3
