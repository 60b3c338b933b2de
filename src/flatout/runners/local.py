"""Real programs on this machine: one isolated process tree per session (session.py).

Compile caches and reference gradients lie beside the trials and live on; everything else that a
program writes is thrown away.
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from flatout.errors import IsolationError
from flatout.host import Interpreter
from flatout.isolation import Way, available, scratch
from flatout.runners import Request
from flatout.runners.session import LocalSession
from flatout.workload import Workload
from flatout.writing import cannot_write

WRITE_LIMIT_BYTES = 16 << 30


def _say_nothing(_line: str) -> None:
    """The default listener."""


class LocalRunner:
    """Starts sessions of one workload. Use as a context manager: leaving it ends all of them."""

    guards = True

    def __init__(
        self,
        *,
        workload: Workload,
        interpreter: Interpreter,
        out_dir: Path,
        isolation: str = "auto",
        scratch_dir: str | None = None,
        write_limit_bytes: int = WRITE_LIMIT_BYTES,
        has_gpu: bool = True,
        acts_dir: Path | None = None,
    ) -> None:
        """``acts_dir``: of tests and benchmarks alone, a folder with acts of their own techniques."""
        self.workload = workload
        self.interpreter = interpreter
        self.out_dir = Path(os.path.realpath(out_dir))
        self.write_limit_bytes = write_limit_bytes
        self.has_gpu = has_gpu
        self.acts_dir = Path(os.path.realpath(acts_dir)) if acts_dir else None
        self.trials = self.out_dir / "trials"
        self.cache = self.out_dir / "cache"
        self.reference = self.out_dir / "reference"
        self.guard_folder = self.reference / "guard"
        try:
            for folder in (self.trials, self.cache, self.reference, self.guard_folder):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.out_dir, error) from error
        self._ways = available(
            cwd=os.path.realpath(workload.cwd),
            out_dir=self.out_dir,
            scratch=scratch_dir,
            home=workload.environment.get("HOME"),
            asked=isolation,
        )
        for base in {way.scratch_base for way in self._ways}:
            scratch.clean(base)
        for left in self.trials.glob("*/redirected"):
            scratch.remove(str(left))
        self._sessions: list[LocalSession] = []
        self._may_stop = True
        self.turns = threading.RLock()
        """Held while it is settled who takes steps and who is stopped: threads may drive sessions."""
        atexit.register(self.close)

    @property
    def way(self) -> Way:
        """How trials are isolated. May become a weaker one when the first start shows that it must."""
        return self._ways[0]

    def start(self, request: Request, tell: Callable[[str], None] = _say_nothing) -> LocalSession:
        """A session whose program is starting. Raises IsolationError when no way can be set up.

        Whatever is wrong with the program itself is raised by the session's methods, as SessionEnded.
        """
        session = LocalSession(self, request, tell)
        self._sessions.append(session)  # before it lives: an interrupt may come at any moment
        while True:
            try:
                session.launch()
                return session
            except IsolationError as error:
                if not self.weaken(self.way, error.message, tell):
                    session.kill()
                    raise

    def weaken(self, way: Way, reason: str, tell: Callable[[str], None]) -> bool:
        """Give up ``way`` for this runner, if there is a weaker one. Live sessions stay as they are."""
        if way not in self._ways:
            return True  # another session has found out already
        if self._ways[-1] == way:
            return False
        self._ways.remove(way)
        for weaker in self._ways:
            weaker.why_not[way.name] = reason
        tell(f"isolation by {way.name} does not hold: {reason}; using {self.way.name}")
        return True

    @property
    def stops_idle(self) -> bool:
        return self._may_stop

    def turn_of(self, session: LocalSession) -> None:
        """Before ``session`` takes steps: every other one that holds is stopped."""
        for other in list(self._sessions):
            if other is not session and self._may_stop:
                self._may_stop = other.keep_still()

    def let_others_go_on(self, session: LocalSession) -> None:
        """``session`` may be waiting for something that another one holds, such as the lock of a file."""
        with self.turns:
            for other in self._sessions:
                if other is not session:
                    other.go_on_holding()

    def never_stop(self, tell: Callable[[str], None]) -> None:
        """Two of the program's processes wait for each other when one is stopped: they only hold from now
        on."""
        if self._may_stop:
            self._may_stop = False
            tell("it went on as soon as the other, stopped till then, did: none is stopped from now on")

    def forget(self, session: LocalSession) -> None:
        """It has ended, and there is nothing left to end."""
        if session in self._sessions:
            self._sessions.remove(session)

    def close(self) -> None:
        """End every session now. Safe to call twice."""
        for session in list(self._sessions):
            session.kill()
        atexit.unregister(self.close)

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def new_folder(self, key: str) -> Path:
        """``trials/NNNN-KEY``, made. Raises DiskFull, or UsageError where it may not be."""
        numbers = [int(path.name[:4]) for path in self.trials.iterdir() if path.name[:4].isdigit()]
        name = re.sub(r"[^A-Za-z0-9.+=_-]+", "-", key)[:60].strip("-")
        folder = self.trials / f"{max(numbers, default=0) + 1:04d}-{name}"
        try:
            folder.mkdir()
        except OSError as error:
            raise cannot_write(folder, error) from error
        return folder
