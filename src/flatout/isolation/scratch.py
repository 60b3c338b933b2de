"""Scratch folders: where thrown-away writes lie while a trial lives.

A scratch folder holds a file ``lock`` that its supervisor keeps locked (flock) for life. A folder
whose lock can be taken belongs to nobody any more and is removed at the next start: also after
kill -9, and never a folder in use or one that is not ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flatout.isolation.mounts import NOT_AN_UPPER, mount_of, visible_mounts

PREFIX = "flatout-scratch-"
_MARK = "flatout scratch folder: removed by the next flatout when nobody holds its lock\n"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where scratch folders are made."""

    base: str
    in_memory: bool
    """Only a tmpfs mounted in the namespace can hold upper layers."""
    reason: str = ""
    """Why it is not on a disk."""


def choose_place(asked: str | None, out_dir: Path) -> Place:
    """The first folder whose filesystem can hold upper layers: the one asked for, the output folder,
    /var/tmp, /tmp, the home folder; else memory.

    By type only, which costs nothing: whether the kernel truly agrees is tried by choose.py.
    """
    mounts = visible_mounts()
    # a user without an entry in passwd (as in many containers) has no home folder: "~" stays as it is
    usual = [out_dir.absolute() / "scratch", Path("/var/tmp"), Path("/tmp"), Path(os.path.expanduser("~"))]
    candidates = [Path(asked)] if asked else [path for path in usual if path.is_absolute()]
    refused = []
    for base in candidates:
        try:
            base.mkdir(parents=True, exist_ok=True)
            kind = mount_of(os.path.realpath(base), mounts).kind
        except OSError as error:
            refused.append(f"{base}: {error.strerror}")
            continue
        if kind in NOT_AN_UPPER:
            refused.append(f"{base} is on {kind}")
        elif not os.access(base, os.W_OK):
            refused.append(f"{base} is not writable")
        else:
            return Place(base=os.path.realpath(base), in_memory=False)
    usable = next((base for base in candidates if os.access(base, os.W_OK)), Path(tempfile.gettempdir()))
    return Place(base=os.path.realpath(usable), in_memory=True, reason="; ".join(refused))


@contextlib.contextmanager
def _locked_base(base: str) -> Iterator[None]:
    """One flatout at a time makes or removes folders here, so none is seen before its lock is held."""
    path = Path(base) / f".{PREFIX}{os.getuid()}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def make(base: str) -> tuple[str, int]:
    """A new folder with its lock held: (path, descriptor). The lock lives while the descriptor is open
    in any process."""
    Path(base).mkdir(parents=True, exist_ok=True)
    with _locked_base(base):
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        descriptor = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, _MARK.encode())
    return folder, descriptor


def remove(folder: str) -> None:
    """Delete a scratch folder; overlayfs leaves a work folder of mode 000 in it, and programs may, too."""
    pending = [folder]
    while pending:
        path = pending.pop()
        with contextlib.suppress(OSError):
            if os.stat(path, follow_symlinks=False).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, stat.S_IRWXU)
            with os.scandir(path) as entries:
                pending.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    shutil.rmtree(folder, ignore_errors=True)


def clean(base: str) -> int:
    """Remove the folders of runs that were killed; how many there were. None where another user's lock, or
    a folder that may not be written, is in the way: they are removed another time."""
    removed = 0
    if not os.path.isdir(base):
        return 0
    with contextlib.suppress(PermissionError):
        removed = _remove_free(base)
    return removed


def _remove_free(base: str) -> int:
    removed = 0
    with _locked_base(base):
        with os.scandir(base) as entries:
            found = list(entries)
        for entry in found:
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            if entry.stat(follow_symlinks=False).st_uid != os.getuid() or not _free(entry.path):
                continue
            remove(entry.path)
            removed += 1
    return removed


def _free(folder: str) -> bool:
    """It has our mark and nobody holds its lock."""
    try:
        descriptor = os.open(f"{folder}/lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.read(descriptor, len(_MARK)) in (_MARK.encode(), b"")
    except OSError:
        return False
    finally:
        os.close(descriptor)
