"""Finding and ending processes through /proc."""

from __future__ import annotations

import os
import subprocess
import sys

from flatout.isolation import processes

from .house import marked_processes, wait_for


def test_descendants_are_found_and_named() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 97.31 & wait"]) as shell:
        try:
            assert wait_for(lambda: len(processes.descendants(shell.pid)) == 1)
            (sleeping,) = processes.descendants(shell.pid)
            assert wait_for(lambda: processes.command_line(sleeping.pid) == ("sleep", "97.31"))
            assert sleeping.parent == shell.pid
            assert processes.process(os.getpid()) is not None
            assert processes.resident_bytes(os.getpid()) > 1 << 20
        finally:
            for entry in processes.descendants(shell.pid):
                os.kill(entry.pid, 9)


def test_a_number_without_a_process_is_none() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert processes.process(gone.pid) is None
    assert processes.command_line(gone.pid) == ()
    assert processes.resident_bytes(gone.pid) == 0


def test_daemons_of_an_adopting_process_are_ended() -> None:
    """Double fork, new session, SIGTERM ignored: found all the same, since orphans come back to us."""
    code = """
import os, subprocess, sys, time
from flatout.isolation import linux, processes
linux.adopt_orphans()
subprocess.run(["sh", "-c", "(trap '' TERM HUP; setsid sh -c 'trap \\"\\" TERM; sleep 98.42; true' &) &"])
deadline = time.monotonic() + 10
while time.monotonic() < deadline and not any(
    "98.42" in word for p in processes.descendants(os.getpid()) for word in processes.command_line(p.pid)
): time.sleep(0.01)
print(len(processes.descendants(os.getpid())) > 0)
print(processes.end_all_below(os.getpid(), politely_seconds=0.2))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n")[:2] == ["True", "[]"]
    assert marked_processes("98.42") == []
