"""Scratch folders come, are kept while somebody holds them, and go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.isolation import scratch


def test_a_folder_in_use_stays_and_a_left_one_goes(tmp_path: Path) -> None:
    used, lock = scratch.make(str(tmp_path))
    left, other = scratch.make(str(tmp_path))
    (Path(left) / "upper0" / "deep").mkdir(parents=True)
    (Path(left) / "upper0" / "deep" / "file").write_text("x")
    os.close(other)
    assert scratch.clean(str(tmp_path)) == 1
    assert Path(used).is_dir() and not Path(left).exists()
    os.close(lock)
    assert scratch.clean(str(tmp_path)) == 1
    assert not Path(used).exists()


def test_what_is_not_ours_is_never_removed(tmp_path: Path) -> None:
    stranger = tmp_path / f"{scratch.PREFIX}of-somebody-else"
    stranger.mkdir()
    (stranger / "lock").write_text("a file of a person's that happens to be called so")
    no_lock = tmp_path / f"{scratch.PREFIX}without-lock"
    no_lock.mkdir()
    linked = tmp_path / f"{scratch.PREFIX}link"
    linked.symlink_to(stranger)
    assert scratch.clean(str(tmp_path)) == 0
    assert stranger.is_dir() and no_lock.is_dir() and linked.is_symlink()


def test_a_lock_that_may_not_be_opened_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, left by a container with other numbers for users."""
    real = os.open

    def forbidden(path, *more, **names):  # type: ignore[no-untyped-def]
        if str(path).endswith(".lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *more, **names)

    monkeypatch.setattr(scratch.os, "open", forbidden)
    assert scratch.clean(str(tmp_path)) == 0
    with pytest.raises(PermissionError):
        scratch.make(str(tmp_path))


def test_folders_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    code = (
        "from flatout.isolation import scratch; "
        f"print(scratch.make({str(tmp_path)!r})[0], flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin and child.stdout
    folder = Path(child.stdout.readline().strip())
    assert scratch.clean(str(tmp_path)) == 0 and folder.is_dir()
    child.kill()
    child.wait()
    assert scratch.clean(str(tmp_path)) == 1 and not folder.exists()
    child.stdin.close()
    child.stdout.close()


def test_a_closed_folder_inside_is_removed(tmp_path: Path) -> None:
    folder, lock = scratch.make(str(tmp_path))
    closed = Path(folder) / "work0" / "work"
    closed.mkdir(parents=True)
    (closed / "inside").write_text("x")
    closed.chmod(0)
    scratch.remove(folder)
    os.close(lock)
    assert not Path(folder).exists()


def test_place_asked_for_is_taken(tmp_path: Path) -> None:
    place = scratch.choose_place(str(tmp_path / "here"), tmp_path / "out")
    assert place.base == str(tmp_path / "here") or place.in_memory


def test_no_place_on_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.isolation.mounts import parse_mountinfo

    table = parse_mountinfo("1 0 0:1 / / rw - overlay overlay rw\n")
    monkeypatch.setattr(scratch, "visible_mounts", lambda: table)
    place = scratch.choose_place(None, tmp_path)
    assert place.in_memory and "overlay" in place.reason
