"""flatout's end of the pipe to a supervisor (supervise.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from flatout.errors import IsolationError
from flatout.isolation.request import Request

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_START = (
    f"import sys; sys.path.insert(0, {_PACKAGE_PARENT!r}); "
    "from flatout.isolation.supervise import main; main()"
)


class Supervised:
    """One supervisor process and what it has said so far.

    ``-I`` and an environment of its own keep whatever the user's environment says about Python (a
    PYTHONPATH, a PYTHONSTARTUP, another site) out of the supervisor. The program's environment travels
    through the pipe: it may hold secrets, and is never written to a file.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._answers: list[dict[str, Any]] = []
        self._rest = b""
        self.closed = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            cwd="/",
            start_new_session=True,  # a Ctrl-C in the terminal is flatout's to handle
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in = self._process.stdin
        self._out = self._process.stdout
        try:
            self._in.write(json.dumps(dataclasses.asdict(request)).encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            self.closed = True

    @property
    def pid(self) -> int:
        """Of the supervisor: the program and all that it starts are its descendants."""
        return self._process.pid

    def poll(self, seconds: float = 0.0) -> None:
        """Take in what has been said, waiting at most ``seconds`` for something."""
        if self.closed:
            return
        if select.select([self._out], [], [], seconds)[0]:
            data = os.read(self._out.fileno(), 1 << 20)
            self.closed = not data
            self._rest += data
            *lines, self._rest = self._rest.split(b"\n")
            self._answers += [json.loads(line) for line in lines if line]

    def said(self, what: str) -> dict[str, Any] | None:
        """The first answer of this kind, if it has come."""
        return next((answer for answer in self._answers if answer["what"] == what), None)

    def wait_for(self, *kinds: str, seconds: float) -> dict[str, Any] | None:
        """The first answer of one of these kinds; None when none came in time or the supervisor is gone."""
        deadline = time.monotonic() + seconds
        while True:
            for kind in kinds:
                answer = self.said(kind)
                if answer is not None:
                    return answer
            left = deadline - time.monotonic()
            if left <= 0 or self.closed:
                return None
            self.poll(min(left, 0.5))

    def wait_until_started(self, seconds: float = 120.0) -> dict[str, Any]:
        """``started`` or ``cannot_execute``. Raises IsolationError when the isolation cannot be set up."""
        answer = self.wait_for("started", "cannot_execute", "refused", seconds=seconds)
        if answer is None or answer["what"] == "refused":
            reason = answer["reason"] if answer else f"no answer within {seconds:.0f} s"
            self.kill()
            raise IsolationError(f"the isolation ({self.request.way}) could not be set up: {reason}")
        return answer

    def end(self, seconds: float = 60.0) -> None:
        """Ask for an orderly end and wait: the writes are listed, everything is ended and removed."""
        with contextlib.suppress(OSError, ValueError):
            self._in.write(b"end\n")
            self._in.flush()
        self.wait_for("done", seconds=seconds)
        self.kill()

    def kill(self) -> None:
        """End everything now. Closing the pipe is enough for a supervisor that lives; also twice."""
        with contextlib.suppress(OSError, ValueError):
            self._in.close()
        if self._process.poll() is None:
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGKILL)
                self._process.wait()
        with contextlib.suppress(OSError, ValueError):
            self._out.close()
        self.closed = True
