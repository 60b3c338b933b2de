"""Counting and naming what was written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout.isolation import landlock
from flatout.isolation.landlock import copy_tree
from flatout.isolation.thrown import Write, bytes_on_disk, summarise, written_in_folder


def test_all_are_counted_and_the_largest_named() -> None:
    writes = [Write(path=f"/f{size}", bytes=size) for size in range(1, 501)]
    summary = summarise([*writes, Write(path="/gone", bytes=0, deleted=True)], listed=3)
    assert summary.largest == (("/f500", 500), ("/f499", 499), ("/f498", 498))
    assert (summary.count, summary.bytes) == (501, 500 * 501 // 2)


def test_deletions_are_named_before_empty_files() -> None:
    writes = [Write(path="/empty", bytes=0), Write(path="/gone", bytes=0, deleted=True)]
    assert summarise(writes).largest == (("/gone (deleted)", 0), ("/empty", 0))


def test_new_changed_and_deleted_files_of_a_copy(tmp_path: Path) -> None:
    real, copy = tmp_path / "real", tmp_path / "copy"
    (real / "sub").mkdir(parents=True)
    for name in ("same", "changed", "gone", "sub/deep"):
        (real / name).write_text(name)
    copied = copy_tree(str(real), str(copy))
    (copy / "changed").write_text("changed!")
    (copy / "gone").unlink()
    (copy / "sub" / "new").write_text("12345")
    found = {
        (write.path, write.bytes, write.deleted)
        for write in written_in_folder(str(copy), "/w", copied.stamps)
    }
    assert found == {("/w/changed", 8, False), ("/w/gone", 0, True), ("/w/sub/new", 5, False)}


def test_large_files_environments_and_outer_links_are_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, copy = tmp_path / "real", tmp_path / "elsewhere" / "copy"
    (real / "venv").mkdir(parents=True)
    (real / "venv" / "pyvenv.cfg").write_text("")
    (real / "large").write_bytes(b"x" * 2000)
    (real / "inner").symlink_to("large")
    (real / "outer").symlink_to("../data")
    (tmp_path / "data").write_text("beside it")
    copy.parent.mkdir()
    monkeypatch.setattr(landlock, "LARGEST_COPIED_FILE_BYTES", 1000)
    copied = copy_tree(str(real), str(copy))
    assert (copy / "large").read_bytes() == b"x" * 2000
    assert (copy / "inner").readlink() == Path("large")
    assert (copy / "outer").read_text() == "beside it"
    assert (copy / "venv").readlink() == real / "venv"
    assert copied.bytes == 0
    assert list(written_in_folder(str(copy), "/w", copied.stamps)) == []


def test_space_is_measured_in_blocks_not_in_lengths(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        os.truncate(file.fileno(), 1 << 30)
    (tmp_path / "full").write_bytes(os.urandom(1 << 20))
    assert 1 << 20 <= bytes_on_disk(str(tmp_path)) < 1 << 24


def test_a_mirror_of_redirected_writes_shows_real_paths(tmp_path: Path) -> None:
    (tmp_path / "home" / "ann").mkdir(parents=True)
    (tmp_path / "home" / "ann" / "last.pt").write_bytes(b"123")
    (tmp_path / "home" / "ann" / "old.pt.flatout-gone").touch()
    found = {(write.path, write.bytes, write.deleted) for write in written_in_folder(str(tmp_path), "/")}
    assert found == {("/home/ann/last.pt", 3, False), ("/home/ann/old.pt", 0, True)}


def test_two_layers_may_tell_of_the_same_write() -> None:
    told = summarise([Write(path="/a", bytes=1), Write(path="/a", bytes=1)], listed=1)
    assert (told.largest, told.count) == ((("/a", 1),), 2)
