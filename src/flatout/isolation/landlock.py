"""Second way of isolation: a copy of the working folder, and Landlock forbids writing anywhere else.

Landlock (Linux 5.13) needs no right at all. Files stay readable everywhere; a write outside the copy,
the trial's own folder and a few devices fails with EACCES, in native code and in children, too. The
home folder's caches are shown as a shadow: real folders with links to the real files, so that an
offline model is found and a new lock file can be made beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from flatout.isolation import linux
from flatout.isolation.mounts import is_below

FICLONE = 0x40049409
"""ioctl of btrfs, XFS and bcachefs: share the blocks of another file until one of the two is written."""

MOST_COPY_BYTES = 4 << 30
LARGEST_COPIED_FILE_BYTES = 64 << 20
"""A larger one is data or weights, mostly read: a link to it, which cannot be written through."""
MOST_COPY_FILES = 200_000
MOST_SHADOW_LINKS = 50_000

_CACHE_VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "TRANSFORMERS_CACHE",
    "TORCH_HOME",
    "XDG_CACHE_HOME",
)


class CannotCopy(Exception):
    """Why the working folder cannot be copied."""


Stamp = tuple[int, int, int]
"""Size, modification time in nanoseconds, inode: what tells a changed file."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What was laid in a folder: relative path -> stamp. Compared with the folder afterwards."""

    stamps: dict[str, Stamp]
    bytes: int


def _stamp(path: str) -> Stamp:
    status = os.stat(path, follow_symlinks=False)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _link_target(link: str, root: str) -> str:
    text = os.readlink(link)
    leads_to = os.path.normpath(os.path.join(os.path.dirname(link), text))
    return text if os.path.isabs(text) or is_below(leads_to, root) else leads_to


def _is_environment(folder: str) -> bool:
    """A Python environment: large, read only by a training program, so linked and not copied."""
    return os.path.exists(f"{folder}/pyvenv.cfg") or os.path.isdir(f"{folder}/conda-meta")


def _clone_or_copy(source: str, target: str, size: int) -> int:
    """Bytes that were copied: none where blocks are shared or a large file is linked."""
    copied = 0
    with open(source, "rb") as old, open(target, "xb") as new:
        try:
            fcntl.ioctl(new.fileno(), FICLONE, old.fileno())
        except OSError:
            if size <= LARGEST_COPIED_FILE_BYTES:
                shutil.copyfileobj(old, new, 1 << 20)
                copied = size
            else:
                os.unlink(target)
                os.symlink(source, target)
                return 0
    shutil.copystat(source, target)
    return copied


def copy_tree(
    source: str, target: str, *, leave_out: tuple[str, ...] = (), most_bytes: int = MOST_COPY_BYTES
) -> Copied:
    """Copy a working folder, links as links, and environments, ``.git`` and large files as links to
    the real ones.

    A relative link that leaves the folder is made absolute, to lead where it led. Raises CannotCopy when
    the folder cannot be read, or when it holds more than ``most_bytes``.
    """
    stamps: dict[str, Stamp] = {}
    total = 0
    pending = [""]
    Path(target).mkdir(exist_ok=True)
    while pending:
        relative = pending.pop()
        folder = os.path.join(source, relative)
        for entry in _entries(folder):
            inner = os.path.join(relative, entry.name)
            place = os.path.join(target, inner)
            if entry.path in leave_out:
                continue
            try:
                if entry.is_symlink():
                    os.symlink(_link_target(entry.path, source), place)
                    stamps[inner] = _stamp(place)
                elif entry.is_dir():
                    if entry.name == ".git" or _is_environment(entry.path):
                        os.symlink(entry.path, place)
                        stamps[inner] = _stamp(place)
                    else:
                        os.mkdir(place)
                        pending.append(inner)
                elif stat.S_ISREG(entry.stat().st_mode):
                    total += _clone_or_copy(entry.path, place, entry.stat().st_size)
                    if total > most_bytes or len(stamps) > MOST_COPY_FILES:
                        raise CannotCopy(
                            f"the working folder {source} holds more than {most_bytes >> 20:,} MiB or "
                            f"{MOST_COPY_FILES:,} files, too much to copy for every trial"
                        )
                    stamps[inner] = _stamp(place)
            except OSError as error:
                raise CannotCopy(f"{entry.path} cannot be copied: {error.strerror}") from error
    return Copied(stamps=stamps, bytes=total)


def shadow_tree(source: str, target: str) -> dict[str, Stamp]:
    """Real folders, and a link to each file of ``source``; stops at MOST_SHADOW_LINKS."""
    stamps: dict[str, Stamp] = {}
    pending = [""]
    Path(target).mkdir(parents=True, exist_ok=True)
    while pending and len(stamps) < MOST_SHADOW_LINKS:
        relative = pending.pop(0)
        with contextlib.suppress(OSError):
            for entry in _entries(os.path.join(source, relative)):
                inner = os.path.join(relative, entry.name)
                place = os.path.join(target, inner)
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(place)
                    pending.append(inner)
                    continue
                os.symlink(os.readlink(entry.path) if entry.is_symlink() else entry.path, place)
                stamps[inner] = _stamp(place)
    return stamps


def shadow_caches(
    environment: dict[str, str], folder: str
) -> tuple[dict[str, str], dict[str, dict[str, Stamp]]]:
    """Shadows of the cache folders in use: (variables to set, shadow folder -> what was laid there)."""
    home = environment.get("HOME", "")
    wanted = {name: environment[name] for name in _CACHE_VARIABLES if environment.get(name)}
    if home and "XDG_CACHE_HOME" not in wanted:
        wanted["XDG_CACHE_HOME"] = f"{home}/.cache"
    variables: dict[str, str] = {
        "MPLCONFIGDIR": f"{folder}/matplotlib",
        "NUMBA_CACHE_DIR": f"{folder}/numba",
    }
    laid: dict[str, dict[str, Stamp]] = {}
    for name, real in wanted.items():
        shadow = f"{folder}/{name.lower()}"
        laid[shadow] = shadow_tree(real, shadow)
        variables[name] = shadow
    return variables, laid


def handled_accesses(abi: int) -> int:
    """Every way of changing a file that this kernel's Landlock knows."""
    accesses = (
        linux.WRITE_FILE | linux.REMOVE_DIR | linux.REMOVE_FILE | linux.MAKE_CHAR | linux.MAKE_DIR
        | linux.MAKE_REG | linux.MAKE_SOCK | linux.MAKE_FIFO | linux.MAKE_BLOCK | linux.MAKE_SYM
    )  # fmt: skip
    if abi >= 2:
        accesses |= linux.REFER
    if abi >= 3:
        accesses |= linux.TRUNCATE
    return accesses


def restrict_writes(writable: tuple[str, ...]) -> None:
    """Allow this process and its children to write below ``writable``, to devices, and nowhere else.

    /dev holds the GPU's device files and /dev/shm the shared memory of DataLoader workers and NCCL;
    /proc only files of the kernel's that adjust a process.
    """
    handled = handled_accesses(linux.landlock_abi())
    rules = [(path, handled) for path in writable]
    rules += [
        (path, linux.WRITE_FILE | linux.TRUNCATE) for path in ("/dev", "/proc") if os.path.isdir(path)
    ]
    if os.path.isdir("/dev/shm"):
        rules.append(("/dev/shm", handled))
    linux.landlock_restrict(handled, rules)
