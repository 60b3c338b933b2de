"""What a program in an overlay goes on sharing with the machine: sockets, and what is staged in memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_SHARED_MEMORY_NAMES = ("torch_", "sem.", "psm_", "nccl", "cuda", "__KMP", "mp-", "pym", "wnsm_")
"""Names of other programs' shared memory in /dev/shm, which is nobody's file."""

_MOST_SOCKETS = 512
_MPS_FOLDER = "/tmp/nvidia-mps"
"""Where NVIDIA's multi-process service has its pipes, unless CUDA_MPS_PIPE_DIRECTORY says otherwise."""


def meeting_places() -> dict[str, int]:
    """Path -> descriptor of every socket in the filesystem that somebody holds, and of MPS's folder.

    A socket is found by its inode, and in an overlay it has another one: whoever connects to it is
    refused. So those of the display, the log, D-Bus, an SSH agent and NVIDIA's daemons are bound through.
    """
    places: dict[str, int] = {}
    candidates = [_MPS_FOLDER, *_bound_sockets()]
    for path in candidates[:_MOST_SOCKETS]:
        try:
            mode = os.stat(path, follow_symlinks=False).st_mode
            if stat.S_ISSOCK(mode) or (path == _MPS_FOLDER and stat.S_ISDIR(mode)):
                places[os.path.realpath(path)] = os.open(path, os.O_PATH)
        except OSError:
            continue
    return places


def _bound_sockets() -> list[str]:
    try:
        text = Path("/proc/net/unix").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    rows = (line.split(None, 7) for line in text.splitlines()[1:])
    return sorted({row[7] for row in rows if len(row) > 7 and row[7].startswith("/")})


def staged_in_shared_memory() -> dict[str, int]:
    """What a person has staged in /dev/shm (data sets, mostly), to show it in the fresh one."""
    entries: dict[str, int] = {}
    try:
        names = sorted(os.listdir("/dev/shm"))
    except OSError:
        return entries
    for name in names:
        path = f"/dev/shm/{name}"
        if name.startswith(_SHARED_MEMORY_NAMES) or len(entries) >= 64 or os.path.islink(path):
            continue
        if os.path.isdir(path) or os.path.isfile(path):
            try:
                entries[name] = os.open(path, os.O_PATH)
            except OSError:
                continue
    return entries
