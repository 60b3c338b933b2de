"""Running ``python -m flatout`` as a person does, and looking at what it left behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.isolation import available
from flatout.plan import Plan
from flatout.runners import Request, SessionEnded
from flatout.runners.local import LocalRunner
from flatout.runners.seen import find_interpreter
from flatout.workload import Discovery, Workload

PROGRAMS = Path(__file__).parents[1] / "programs"
MARK = "FLATOUT_TEST_MARK"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One ended command of flatout."""

    exit_code: int
    stdout: str
    stderr: str
    out_dir: Path
    seconds: float

    @property
    def text(self) -> str:
        return self.stdout + self.stderr

    @property
    def report(self) -> dict[str, Any]:
        """report.json; fails the test with what was printed where there is none."""
        path = self.out_dir / "report.json"
        assert path.exists(), f"no report.json; exit code {self.exit_code}\n{self.text}"
        return json.loads(path.read_text())

    def trial_outputs(self) -> str:
        """What the program itself printed, over all trials."""
        found = sorted(self.out_dir.glob("trials/*/std*.txt"))
        return "\n".join(path.read_text(errors="replace") for path in found)


class House:
    """A folder with a program, a home and an out folder, and flatout's commands run there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.home = root / "home"
        self.out = root / "out"
        for folder in (self.work, self.home):
            folder.mkdir(parents=True)
        self.mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": "120",
            "PYTHON": sys.executable,
            MARK: self.mark,
        }
        self.environment.pop("PYTHONPATH", None)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "flatout", *words]

    def flatout(
        self, *words: str, timeout: float = 240, stdin: str | None = None, **environment: str
    ) -> Ended:
        """Run one command of flatout to its end, in the working folder."""
        start = time.monotonic()
        done = subprocess.run(
            self.command(*words),
            cwd=self.work,
            env={**self.environment, **environment},
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        seconds = time.monotonic() - start
        return Ended(
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            out_dir=self.out,
            seconds=seconds,
        )

    def train(
        self, *command: str, options: tuple[str, ...] = (), timeout: float = 240, **environment: str
    ) -> Ended:
        """``flatout train`` on a command, out folder outside the working one."""
        words = ("train", "--out", str(self.out), *options, "--", *command)
        return self.flatout(*words, timeout=timeout, **environment)

    def discover(self, *command: str, steps: int = 24, **environment: str) -> tuple[Discovery, str]:
        """What the agent finds out about one untouched process; (discovery, what the program printed)."""
        workload = Workload(
            command=command, cwd=str(self.work), environment={**self.environment, **environment}
        )
        interpreter = find_interpreter(workload, out_dir=self.out, isolation="auto")
        with LocalRunner(
            workload=workload, interpreter=interpreter, out_dir=self.out, has_gpu=False
        ) as runner:
            session = runner.start(Request(key="baseline", plan=Plan(), time_limit_seconds=150))
            try:
                session.advance(steps)
                session.profile()
                outcome = session.stop()
            except SessionEnded as ended:
                outcome = ended.outcome
        printed = "\n".join(path.read_text(errors="replace") for path in self.out.glob("trials/*/stdout*"))
        assert outcome.discovery is not None, f"{outcome.error} {outcome.reason}\n{outcome.child_error}"
        return outcome.discovery, printed

    def strongest_isolation(self) -> str:
        """``overlay``, ``landlock`` or ``redirect``: what a search here would use."""
        ways = available(cwd=str(self.work), out_dir=self.out, home=str(self.home))
        return ways[0].name

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start flatout in a process group of its own, to be interrupted."""
        return subprocess.Popen(
            self.command(*words),
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def leftover(self, wait_seconds: float = 10.0) -> list[str]:
        """Command lines of processes that still carry this house's mark, given a moment to end."""
        deadline = time.monotonic() + wait_seconds
        while (found := self.marked()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return list(found.values())

    def marked(self) -> dict[int, str]:
        """Process id -> command line of every live process that carries this house's mark."""
        needle = f"{MARK}={self.mark}".encode()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if needle in (process / "environ").read_bytes().split(b"\0"):
                    line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if line:  # a zombie has none
                        found[int(process.name)] = line
            except (OSError, ValueError):
                continue
        return found

    def kill_marked(self) -> None:
        """End what a failed test left."""
        for process in self.marked():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def ledger_is_whole(self) -> bool:
        """The ledger can be opened and SQLite finds no fault in it."""
        connection = sqlite3.connect(self.out / "ledger.sqlite")
        try:
            (answer,) = connection.execute("pragma integrity_check").fetchone()
        finally:
            connection.close()
        return answer == "ok"


def tree_hash(*roots: Path) -> str:
    """Names, kinds, modes, modification times and contents of everything below ``roots``."""
    digest = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*")):
            status = path.lstat()
            digest.update(f"{path}\0{status.st_mode}\0".encode())
            if path.is_symlink():
                digest.update(str(path.readlink()).encode())
            elif path.is_file():
                digest.update(str(status.st_mtime_ns).encode() + path.read_bytes())
            digest.update(b"\n")
    return digest.hexdigest()


def wait_for(condition: Any, seconds: float, what: str) -> None:
    """Poll until ``condition()`` is true; AssertionError naming ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} seconds for {what}"
        time.sleep(0.1)


def shared_folder() -> Path | None:
    """The folder of shared cases, or None: FLATOUT_SHARED, else ``shared`` next to the checkout."""
    named = os.environ.get("FLATOUT_SHARED")
    folder = Path(named) if named else Path(__file__).parents[3] / "shared"
    return folder if (folder / "cases" / "reports").is_dir() else None
