"""A second look at a large capture: equal to the first, and never at another file's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from flatout.capture import COLUMNS, Capture
from flatout.readers import cache, kineto


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "_WORTH_BYTES", 0)
    monkeypatch.setattr(cache, "_ENDS_BYTES", 16)
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{i % 3}é", "pid": 0, "tid": 7, "ts": i, "dur": 1}
        for i in range(50)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "cuda_runtime_version": 12040}))
    return path


class Reader:
    """Counts how often the file is truly read."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder, self.reads = path, folder, 0

    def __call__(self) -> Capture:
        def read() -> Capture:
            self.reads += 1
            return kineto.read(self.path)

        return cache.cached(self.path, read, folder=self.folder)


def same(one: Capture, other: Capture) -> bool:
    columns = all(
        np.array_equal(getattr(one.events, name), getattr(other.events, name)) for name in COLUMNS
    )
    return columns and (one.strings, one.lanes, one.metadata) == (
        other.strings,
        other.lanes,
        other.metadata,
    )


def test_the_second_look_is_equal(trace: Path, tmp_path: Path) -> None:
    look = Reader(trace, tmp_path / "kept")
    first, second = look(), look()
    assert look.reads == 1
    assert same(first, second)
    assert second.metadata.versions == {"cuda": "12040"}


def test_a_changed_file_is_read_again(trace: Path, tmp_path: Path) -> None:
    look = Reader(trace, tmp_path / "kept")
    look()
    text = trace.read_text()
    trace.write_text(text.replace("12040", "12080"))
    assert look().metadata.versions == {"cuda": "12080"}
    times = trace.stat()
    trace.write_text("{" + text[1:-1] + " ")  # same size and time, another end
    os.utime(trace, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert look().metadata.damage == ()
    assert look.reads == 3


@pytest.mark.parametrize("damage", ["cut", "rubbish", "empty", "index", "column"])
def test_a_damaged_entry_is_read_again_and_mended(trace: Path, tmp_path: Path, damage: str) -> None:
    look = Reader(trace, tmp_path / "kept")
    first = look()
    (entry,) = look.folder.glob("*.npz")
    whole = entry.read_bytes()
    with np.load(entry) as kept:
        tables = dict(kept)
    if damage == "index":
        tables["name"] = tables["name"] + 1000
        np.savez(entry, **tables)
    elif damage == "column":
        tables["start_ns"] = tables["start_ns"][:-1]
        np.savez(entry, **tables)
    else:
        entry.write_bytes(
            {"cut": whole[: len(whole) // 2], "rubbish": b"PK\3\4" * 99, "empty": b""}[damage]
        )
    assert same(first, look())
    assert look.reads == 2
    assert same(first, look())
    assert look.reads == 2


def test_a_folder_that_cannot_be_written(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    look = Reader(trace, tmp_path / "file" / "kept")
    assert same(look(), look())
    assert look.reads == 2


def test_small_files_and_files_that_are_not_there(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WORTH_BYTES", 1 << 20)
    look = Reader(trace, tmp_path / "kept")
    look()
    assert not look.folder.exists()
    with pytest.raises(Exception, match="cannot read"):
        Reader(tmp_path / "none", look.folder)()


def test_old_entries_make_room(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Reader(trace, tmp_path / "kept")
    look()
    (entry,) = look.folder.glob("*.npz")
    os.utime(entry, (1, 1))
    (look.folder / ".half.999999999.part").write_bytes(b"x")
    monkeypatch.setattr(cache, "LARGEST_BYTES", entry.stat().st_size + 100)
    trace.write_text(trace.read_text() + " ")
    look()
    (kept,) = look.folder.iterdir()
    assert kept != entry


def test_where_entries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert cache.cache_folder() == Path("/some/where/flatout/captures")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/of")
    assert cache.cache_folder() == Path("/home/of/.cache/flatout/captures")
