"""Traces of torch.profiler (Kineto's Chrome JSON, plain or compressed) as a Capture.

Events are decoded chunk by chunk into typed structs and at once into columns, so that memory holds the
columns and one chunk. Arrows (``ph`` s, f, t) are skipped: correlation ids say the same.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatout.capture import NONE, Capture, Device, Kind, Metadata
from flatout.errors import BadCapture
from flatout.readers import kineto_events
from flatout.readers.chunks import Chunks
from flatout.readers.kineto_events import Decoder, as_integer, as_object
from flatout.readers.kineto_table import Table
from flatout.readers.stream import Stream

_YEAR_2001_NS = 10**18
_RANK = re.compile(r"rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)


def read(path: Path, *, progress: Callable[[int, int], None] | None = None) -> Capture:
    """The trace in this file; ``progress`` is told bytes read and in all.

    What of it is damaged is left out and told in ``metadata.damage``. BadCapture where it is no trace, or
    nothing in it can be read.
    """
    stream = Stream(path, progress)
    chunks = Chunks(stream, Decoder(), kineto_events.odd)
    table = Table()
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
    return _capture(table, path.name, keys, (*stream.damage, *chunks.losses.sentences(), *unread))


def _capture(table: Table, file: str, keys: Mapping[str, Any], damage: tuple[str, ...]) -> Capture:
    events, origin_ns = table.events()
    info = as_object(keys.get("distributedInfo"))
    rank, missing = _rank(info, file)
    seen = {Kind(int(kind)) for kind in np.unique(events.kind)}
    if Kind.KERNEL not in seen:
        missing.append("no kernel of a GPU was recorded: what a GPU did, if there was one, cannot be told")
    if Kind.CALL not in seen and Kind.KERNEL in seen:
        missing.append(
            "no call of the CUDA or HIP runtime was recorded: what launched a kernel cannot be told"
        )
    missing += [f"{number} {what} in the file are not read" for what, number in table.unread.items()]
    strings = table.strings()
    return Capture(
        events=events,
        strings=strings,
        lanes=table.lanes(rank),
        metadata=Metadata(
            tools=("kineto",),
            files=(file,),
            origin_ns=origin_ns,
            epoch_ns=_epoch_ns(keys, origin_ns) if len(events) else None,
            ranks=(rank,) if rank >= 0 else (),
            world_size=max(as_integer(info.get("world_size"), 0), 0),
            backend=info["backend"] if isinstance(info.get("backend"), str) else "",
            devices=_devices(keys),
            versions=_versions(keys, info),
            damage=(*damage, *table.damage()),
            missing=tuple(missing),
            shapes_recorded=bool((events.shapes != NONE).any()),
            stacks_recorded=Kind.PYTHON in seen or any("\n" in word or ".py(" in word for word in strings),
            memory_recorded=Kind.MEMORY in seen,
        ),
    )


def _keys(outside: bytes) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(The keys around the events, a sentence where they could not be read)."""
    text = outside.decode(errors="replace").strip()
    if text.startswith("["):
        return {}, ()
    for ending in ("", "]}", "}"):  # of a file that was cut off
        try:
            return as_object(json.loads(text + ending, strict=False)), ()
        except (ValueError, RecursionError):
            continue
    return {}, ("the keys around the events (rank, devices, versions) could not be read",)


def _rank(info: Mapping[str, Any], file: str) -> tuple[int, list[str]]:
    """(The rank, NONE where it is not told; what is missing)."""
    rank = as_integer(info.get("rank"), NONE)
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
    base = as_integer(keys.get("baseTimeNanoseconds"), NONE)
    if base > 0:
        return base + origin_ns
    return origin_ns if origin_ns > _YEAR_2001_NS else None


def _devices(keys: Mapping[str, Any]) -> tuple[Device, ...]:
    given = keys.get("deviceProperties")
    return tuple(
        Device(
            number=as_integer(one.get("id"), number),
            name=one["name"] if isinstance(one.get("name"), str) else "",
            multiprocessors=as_integer(one.get("numSms"), 0),
            memory_bytes=as_integer(one.get("totalGlobalMem"), 0),
            compute_capability=(
                as_integer(one.get("computeMajor"), 0),
                as_integer(one.get("computeMinor"), 0),
            ),
            threads_per_multiprocessor=as_integer(one.get("maxThreadsPerMultiprocessor"), 0),
            registers_per_multiprocessor=as_integer(one.get("regsPerMultiprocessor"), 0),
            shared_bytes_per_multiprocessor=as_integer(one.get("sharedMemPerMultiprocessor"), 0),
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
