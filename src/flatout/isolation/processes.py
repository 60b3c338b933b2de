"""Finding and ending a process and everything that it started, through /proc."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Process:
    """One live process as /proc shows it."""

    pid: int
    parent: int
    state: str
    """One letter of proc(5): R running, S sleeping, D in the kernel, Z ended but not yet reaped ..."""
    started: int
    """Clock ticks after boot; with the pid it names a process for ever."""


def _read(path: str) -> bytes:
    """Empty where the process has ended or is another user's."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def read_proc(pid: int, name: str) -> bytes:
    """``/proc/PID/NAME``; empty where the process has ended or may not be looked at."""
    return _read(f"/proc/{pid}/{name}")


def process(pid: int) -> Process | None:
    """None when there is none of that number."""
    # the name in brackets may hold anything, brackets included: split after the last one
    _, _, rest = _read(f"/proc/{pid}/stat").rpartition(b")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return Process(pid=pid, parent=int(fields[1]), state=fields[0].decode(), started=int(fields[19]))


def all_processes() -> list[Process]:
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [entry for entry in found if entry is not None]


def descendants(root: int) -> list[Process]:
    """Every process below ``root``, parents before children; ``root`` itself is left out."""
    children: dict[int, list[Process]] = {}
    for entry in all_processes():
        children.setdefault(entry.parent, []).append(entry)
    found: list[Process] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(0), [])
        found.extend(below)
        pending.extend(entry.pid for entry in below)
    return found


def command_line(pid: int) -> tuple[str, ...]:
    parts = _read(f"/proc/{pid}/cmdline").split(b"\0")
    return tuple(os.fsdecode(part) for part in parts[:-1])


def has_torch(pid: int) -> bool:
    """It has mapped torch's library into its memory."""
    return b"libtorch" in read_proc(pid, "maps")


def resident_bytes(pid: int) -> int:
    """Memory of one process in bytes, without the pages that it shares."""
    fields = _read(f"/proc/{pid}/statm").split()
    if len(fields) < 3:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def oom_kills() -> int:
    """Processes that the kernel has ended for want of memory since boot, on the whole machine."""
    for line in _read("/proc/vmstat").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


def reap() -> dict[int, int]:
    """Collect every child that has ended: pid -> wait status."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def end_all_below(root: int, *, politely_seconds: float = 0.0, patience_seconds: float = 10.0) -> list[int]:
    """End every descendant of ``root``; those still there after the patience are returned.

    Called in ``root`` itself, which adopts orphans: so whatever hides by forking comes back as a child.
    SIGTERM first when ``politely_seconds`` is not 0. Repeats, since a process may fork while it is ended.
    """
    if politely_seconds > 0:
        _signal(descendants(root), signal.SIGTERM)
        deadline = time.monotonic() + politely_seconds
        while time.monotonic() < deadline:
            reap()
            if not descendants(root):
                return []
            time.sleep(0.02)
    deadline = time.monotonic() + patience_seconds
    while True:
        left = descendants(root)
        _signal(left, signal.SIGKILL)
        reap()
        left = [entry for entry in descendants(root) if entry.state != "Z" or entry.parent == root]
        if not left or time.monotonic() > deadline:
            return [entry.pid for entry in left]
        time.sleep(0.01)


def _signal(targets: list[Process], number: int) -> None:
    for target in targets:
        now = process(target.pid)
        if now is None or now.started != target.started:
            continue  # ended meanwhile; its number may be somebody else's by now
        try:
            os.kill(target.pid, number)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EPERM):
                raise
    with contextlib.suppress(OSError):
        for target in targets:
            if number == signal.SIGKILL and target.state == "T":
                os.kill(target.pid, signal.SIGCONT)
