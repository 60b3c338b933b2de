"""Runs a real program with the agent in it, driven by the test itself instead of a runner."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import flatout.agent
from flatout.agent.protocol import PROFILE, RUN, SPEC_VARIABLE, STOP, Control, Spec
from flatout.runners.ranks import RankLog

AGENT = Path(flatout.agent.__file__).parent
PROGRAMS = Path(__file__).parents[1] / "programs"
PYTHON = os.environ.get("FLATOUT_TEST_PYTHON", sys.executable)
"""The interpreter that the programs run under; another one tries an older or newer torch."""
PATIENCE_SECONDS = 120.0


class Driven:
    """One program under the agent. ``with`` it, so that nothing of it is left running."""

    def __init__(self, folder: Path, command: list[str], **spec: Any) -> None:
        self.trial_dir = folder / "trial"
        self.trial_dir.mkdir(parents=True, exist_ok=True)
        self.spec = Spec(trial_dir=str(self.trial_dir), **spec)
        (self.trial_dir / "spec.json").write_text(self.spec.to_json())
        self.control = Control(str(self.trial_dir / "control"), create=True)
        self.command = command
        self.folder = folder
        self.environment = {
            **os.environ,
            SPEC_VARIABLE: str(self.trial_dir / "spec.json"),
            "PYTHONPATH": str(AGENT / "sitecustomize_dir"),
            "OMP_NUM_THREADS": "1",
        }
        self.process: subprocess.Popen[str] | None = None
        self.out = self.err = ""

    def __enter__(self) -> Driven:
        with (self.folder / "out.txt").open("w") as out, (self.folder / "err.txt").open("w") as err:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def advance(self, steps: int, rank: int = 0) -> dict[str, Any]:
        """Grant ``steps`` more and wait until they are taken; the last block."""
        wanted = self.control.granted + steps  # one rank may still be on its way to the last grant
        self.control.granted = wanted
        self._wait(lambda: self.control.steps_of(rank) >= wanted)
        return self.of("block", rank)[-1]

    def profile(self) -> dict[str, Any]:
        self.control.command = PROFILE
        wanted = self.control.granted + 1
        self.control.granted = wanted
        self._wait(lambda: self.control.steps_of(0) >= wanted)
        self.control.command = RUN
        return self.of("profile")[-1]

    def stop(self) -> int:
        """Say STOP, and wait for the end."""
        self.control.command = STOP
        return self.wait()

    def run_to_end(self) -> int:
        self.control.granted = 1 << 62
        return self.wait()

    def wait(self) -> int:
        assert self.process is not None
        code = self.process.wait(PATIENCE_SECONDS)
        self.read_output()
        return code

    def read_output(self) -> None:
        self.out = (self.folder / "out.txt").read_text()
        self.err = (self.folder / "err.txt").read_text()

    def events(self, rank: int | str = 0) -> list[dict[str, Any]]:
        log = RankLog(self.trial_dir / f"rank-{rank}.jsonl", rank=0)
        log.read()
        return log.events

    def of(self, kind: str, rank: int | str = 0) -> list[dict[str, Any]]:
        return [event for event in self.events(rank) if event["event"] == kind]

    def losses(self) -> list[list[Any]]:
        return [pair for block in self.of("block") for pair in block["losses"]]

    def _wait(self, done: Any) -> None:
        assert self.process is not None
        limit = time.monotonic() + PATIENCE_SECONDS
        while not done():
            if self.process.poll() is not None:
                self.read_output()
                raise AssertionError(
                    f"ended with {self.process.returncode}: {self.err[-3000:]}\n{self.events()}"
                )
            if time.monotonic() > limit:
                self.read_output()
                raise AssertionError(f"no step: {self.err[-3000:]}\n{self.events()}")
            time.sleep(0.002)


def untouched(folder: Path, command: list[str]) -> str:
    """The same command without the agent: what it prints."""
    environment = {k: v for k, v in os.environ.items() if k not in (SPEC_VARIABLE, "PYTHONPATH")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    return done.stdout


def program(name: str, *arguments: str) -> list[str]:
    return [PYTHON, str(PROGRAMS / name), *arguments]


def late(command: list[str]) -> list[str]:
    """The same, torch's compiler imported only where it is used: for what has nothing to do with it."""
    return [command[0], str(PROGRAMS / "late_compiler.py"), *command[1:]]
