"""Stopping a program that holds, so that it takes nothing from the one that is measured meanwhile.

A process that holds at the end of a step is still alive beside its main thread: loader workers and the
program's own threads prefetch, and idle OpenMP threads spin for a while. That takes cores from the other
one, and lets the held one run faster afterwards than it ever does alone. So the training processes and
all below them are stopped by SIGSTOP until their next turn, and stand then exactly where they stood.

Launchers above them go on: torchrun counts its own heartbeats, and a shell with job control would take
a stopped child for an ended one.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from flatout.isolation import processes
from flatout.isolation.processes import Process

PATIENCE_SECONDS = 30.0
"""One that waits for its step so long in its turn has the others go on: it may wait for them."""
SOON_SECONDS = 2.0
"""A step that comes so soon after that was waiting for them."""


class Still:
    """The stopped processes of one session."""

    def __init__(self) -> None:
        self._known: dict[int, Process] = {}
        """Process id in the program's own namespace -> the same process as seen from here."""
        self._stopped: list[Process] = []
        self.possible = True
        """False once a process could not be stopped: it is another user's."""

    def __bool__(self) -> bool:
        return bool(self._stopped)

    def stop(self, supervisor: int, own_pids: set[int]) -> bool:
        """Stop the processes ``own_pids`` below ``supervisor`` and all that they started.

        False, and nothing is stopped, where one of them is not found or may not be stopped.
        """
        if not self.possible or not own_pids:
            return False
        if not own_pids <= self._known.keys():
            self._known = {
                number: entry
                for entry in processes.descendants(supervisor)
                if (number := _own_pid(entry.pid)) in own_pids
            }
            if not own_pids <= self._known.keys():
                return False
        # a stopped parent starts nothing more, so parents first
        pending = [self._known[pid] for pid in sorted(own_pids)]
        seen: set[int] = set()
        while pending:
            entry = pending.pop(0)
            if entry.pid in seen:
                continue
            seen.add(entry.pid)
            if not self._stop_one(entry):
                self.go_on()
                self.possible = False
                return False
            pending += _children(entry.pid)
        return True

    def _stop_one(self, entry: Process) -> bool:
        now = processes.process(entry.pid)
        if now is None or now.started != entry.started or now.state == "Z":
            return True  # ended meanwhile
        if now.state in "Tt":
            return True  # by itself or by somebody else: not ours to let go on
        try:
            os.kill(entry.pid, signal.SIGSTOP)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        self._stopped.append(now)
        return True

    def go_on(self) -> None:
        """Let them go on, children before their parents. Safe to call twice."""
        while self._stopped:
            entry = self._stopped.pop()
            now = processes.process(entry.pid)
            if now is not None and now.started == entry.started:
                with contextlib.suppress(OSError):
                    os.kill(entry.pid, signal.SIGCONT)


def _own_pid(pid: int) -> int:
    """The number of a process in its innermost namespace."""
    for line in processes.read_proc(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def _children(pid: int) -> list[Process]:
    """Direct children, by the kernel's own list where it keeps one."""
    found: list[Process] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return found
    listed = False
    for thread in threads:
        listed = listed or (thread / "children").exists()
        for number in processes.read_proc(pid, f"task/{thread.name}/children").split():
            entry = processes.process(int(number))
            if entry is not None:
                found.append(entry)
    if not listed:
        found = [entry for entry in processes.all_processes() if entry.parent == pid]
    return found
