"""The real job under a plan: ``flatout run``.

Nothing is isolated: the program's writes, its standard input and output and its exit code are its own.
Only the agent is there. It comes in by PYTHONPATH where the command starts its Python directly; where
a launch script may set PYTHONPATH itself, or Python runs with ``-I`` or ``-E``, by a mount namespace in
which one ``.pth`` file more is seen (isolation/entrance.py). PYTHONPATH is preferred since it also
reaches what a job starts through another interpreter, and leaves sudo and containers working; where
neither can work the job is not started.

The program has a process group of its own, and the terminal when flatout has it: Ctrl-C reaches it
once, straight from the terminal; a signal sent to flatout is passed on once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flatout.agent.protocol import Spec
from flatout.errors import CommandNotFound, TechniqueInactive
from flatout.host import Interpreter
from flatout.isolation import entrance, linux, processes
from flatout.planfile import PlanFile
from flatout.runners.entrances import agent_environment, cache_environment, pth_text
from flatout.runners.ranks import Ranks
from flatout.workload import Workload
from flatout.writing import cannot_write

NEVER_ENTERED_SECONDS = 60.0
"""A process that has had torch in its memory for so long without a word of the agent will never get it."""
_LOOK_SECONDS = 0.25
_WATCHED_SECONDS = 900.0
_GRACE_SECONDS = 10.0
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def run_job(
    workload: Workload,
    interpreter: Interpreter,
    planfile: PlanFile,
    *,
    degrade: bool,
    out_dir: Path,
    tell: Callable[[str], None],
    never_entered_seconds: float = NEVER_ENTERED_SECONDS,
) -> int:
    """Run the program under the plan; its exit code, 128 + N where signal N ended it.

    Raises TechniqueInactive when a technique cannot act or the agent never enters, unless ``degrade``;
    CommandNotFound when the program cannot be executed.
    """
    folder = _folder(Path(os.path.realpath(out_dir)) / "runs")
    spec_path = folder / "spec.json"
    spec_path.write_text(_spec(planfile, folder, degrade).to_json(), encoding="utf-8")
    environment = dict(workload.environment)
    if planfile.cache_dir and os.access(planfile.cache_dir, os.W_OK):
        for name, value in cache_environment(Path(planfile.cache_dir)).items():
            environment.setdefault(name, value)
    job = _Job(
        workload=workload,
        planfile=planfile,
        folder=folder,
        degrade=degrade,
        tell=tell,
        never_entered_seconds=never_entered_seconds,
    )
    way_in = _way_in(interpreter, folder, spec_path)
    if way_in is None:
        flags = " ".join(flag for flag in interpreter.flags)
        job.stop_or_tell(
            f"Python is started with {flags}, which keeps the agent out, and no namespace is permitted"
        )
        way_in = _Way()
    if not way_in.site_packages:
        environment = agent_environment(environment, spec_path)
    return job.run(environment, way_in)


class _Way:
    """How the agent comes in: by PYTHONPATH, or by a namespace that changes ``site_packages``."""

    def __init__(self, site_packages: str = "", pth_folder: str = "", user_namespace: bool = False) -> None:
        self.site_packages = site_packages
        self.pth_folder = pth_folder
        self.user_namespace = user_namespace


def _way_in(interpreter: Interpreter, folder: Path, spec_path: Path) -> _Way | None:
    """None: neither way can work."""
    closed = any(flag in interpreter.flags for flag in ("-I", "-E"))
    if interpreter.direct and not closed:
        return _Way()
    if linux.supported():
        pth_folder = folder / "pth"
        pth_folder.mkdir()
        pth = pth_folder / "flatout_agent.pth"
        pth.write_text(pth_text(spec_path), encoding="utf-8")
        for path in filter(os.path.isdir, interpreter.site_packages):
            site = os.path.realpath(path)
            for user_namespace in (False, True) if os.geteuid() == 0 else (True,):
                if entrance.works(str(pth_folder), site, user_namespace=user_namespace):
                    return _Way(site, str(pth_folder), user_namespace)
    return None if closed else _Way()


def _folder(runs: Path) -> Path:
    """A new folder for what flatout and the agent say to each other; a temporary one where the plan lies
    in a place that only others may write."""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        numbers = [int(path.name) for path in runs.iterdir() if path.name.isdigit()]
        folder = runs / f"{max(numbers, default=0) + 1:04d}"
        folder.mkdir()
        return folder
    except OSError:
        try:
            return Path(tempfile.mkdtemp(prefix="flatout-run-"))
        except OSError as error:
            hint = "Free space, or set TMPDIR to a folder that can be written."
            places = f"neither {runs} nor the temporary folder"
            raise cannot_write(f"what a run tells ({places})", error, hint) from error


def _spec(planfile: PlanFile, folder: Path, degrade: bool) -> Spec:
    known = planfile.discovery
    return Spec(
        trial_dir=str(folder),
        mode="run",
        techniques=[{"name": c.name, "settings": dict(c.settings)} for c in planfile.plan.choices],
        step_unit=known.step_unit,
        anchor=known.anchor,
        units=[asdict(unit) for unit in known.units],
        degrade=degrade,
    )


class _Job:
    """The program while it runs."""

    def __init__(
        self,
        *,
        workload: Workload,
        planfile: PlanFile,
        folder: Path,
        degrade: bool,
        tell: Callable[[str], None],
        never_entered_seconds: float,
    ) -> None:
        self.workload = workload
        self.planfile = planfile
        self.folder = folder
        self.degrade = degrade
        self.tell = tell
        self.never_entered_seconds = never_entered_seconds
        self.ranks = Ranks(folder)
        self.process: subprocess.Popen[bytes] | None = None
        self.terminal: int | None = None
        """Standard input, when it is a terminal whose foreground is ours to give."""
        self._told: dict[int, int] = {}
        """Rank -> events heard."""
        self._without: dict[int, float] = {}
        """Process with torch and without the agent -> when it was first seen."""
        self._gave_up_looking = False
        self._looked_at = 0.0

    def stop_or_tell(self, reason: str) -> None:
        """End the job with TechniqueInactive, or say that it goes on without the plan."""
        if not self.planfile.plan:
            self.tell(f"the plan is empty, and nothing is lost: {reason}")
        elif self.degrade:
            self.tell(f"going on without the plan (--degrade): {reason}")
        else:
            self.end()
            raise TechniqueInactive(
                f"the plan cannot be applied: {reason}",
                hint="Use --degrade to run the program all the same, or search again: flatout train.",
            )

    def run(self, environment: dict[str, str], way_in: _Way) -> int:
        passed_on = {*_PASSED_ON, signal.SIGCHLD}
        before = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)}
        if linux.supported():
            linux.adopt_orphans()
        self._find_terminal()
        try:
            self.process = self._start(environment, way_in, before)
            return self._watch(passed_on)
        finally:
            self._take_terminal_back()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # -- starting

    def _start(
        self, environment: dict[str, str], way_in: _Way, mask: set[signal.Signals]
    ) -> subprocess.Popen[bytes]:
        terminal = self.terminal

        def between_fork_and_exec() -> None:
            os.setpgid(0, 0)
            if terminal is not None:
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # we are in the background until this call
                os.tcsetpgrp(terminal, os.getpid())
                signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            if way_in.site_packages:
                entrance.let_in(
                    way_in.pth_folder, way_in.site_packages, user_namespace=way_in.user_namespace
                )
            if linux.supported():
                # a job must not go on unwatched when flatout is killed; SIGTERM lets it save
                linux.die_with_parent(signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        sys.stdout.flush()
        sys.stderr.flush()
        command = self.workload.command
        try:
            return subprocess.Popen(
                list(command),
                cwd=self.workload.cwd,
                env=environment,
                preexec_fn=between_fork_and_exec,  # noqa: PLW1509 - no threads yet
            )
        except FileNotFoundError as error:
            raise CommandNotFound(
                f"{command[0]} is not found", hint="Check the spelling and PATH."
            ) from error
        except OSError as error:
            raise CommandNotFound(f"{command[0]} cannot be executed: {error.strerror}") from error

    def _find_terminal(self) -> None:
        with contextlib.suppress(OSError):
            if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp():
                self.terminal = 0

    def _take_terminal_back(self) -> None:
        if self.terminal is None:
            return
        old = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self.terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, old)

    # -- while it runs

    def _watch(self, passed_on: set[signal.Signals]) -> int:
        assert self.process is not None
        started = time.monotonic()
        while True:
            self._pass_on(passed_on)
            try:
                pid, status = os.waitpid(self.process.pid, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                pid, status = self.process.pid, 0
            if pid and os.WIFSTOPPED(status):
                self._stop_with_it()
            elif pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                return self._ended(self.process.returncode)
            self._reap_orphans()
            self._look(time.monotonic() - started)

    def _reap_orphans(self) -> None:
        """What the program's own children left behind has become ours, and ends with us or before."""
        assert self.process is not None
        with contextlib.suppress(ChildProcessError):
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid == self.process.pid:
                    return
                os.waitpid(ended.si_pid, 0)

    def _pass_on(self, passed_on: set[signal.Signals]) -> None:
        """Wait a moment for a signal. Ctrl-C in the terminal goes to the program and does not come here."""
        assert self.process is not None
        info = signal.sigtimedwait(passed_on, _LOOK_SECONDS)
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        with contextlib.suppress(ProcessLookupError):
            if info.si_signo == signal.SIGINT:
                os.killpg(self.process.pid, signal.SIGINT)  # as a terminal's Ctrl-C: to the whole group
            else:
                os.kill(self.process.pid, info.si_signo)

    def _stop_with_it(self) -> None:
        """Ctrl-Z stopped the program: stop as well, so that the shell notices; go on together."""
        assert self.process is not None
        self._take_terminal_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        if self.terminal is not None:
            with contextlib.suppress(OSError):
                if os.tcgetpgrp(self.terminal) == os.getpgrp():
                    os.tcsetpgrp(self.terminal, self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)

    def _look(self, age_seconds: float) -> None:
        """Hear the agent, and look for training processes that it is not in."""
        self._hear()
        entered = bool(self.ranks.logs)
        if entered or self._gave_up_looking or age_seconds > _WATCHED_SECONDS or not linux.supported():
            return
        if time.monotonic() - self._looked_at < 1.0:
            return
        self._looked_at = time.monotonic()
        for pid in self._processes_without_agent():
            since = self._without.setdefault(pid, time.monotonic())
            if time.monotonic() - since > self.never_entered_seconds:
                self._gave_up_looking = True
                command = " ".join(processes.command_line(pid)[:4])
                self.stop_or_tell(
                    f"a process has torch loaded (pid {pid}: {command}), and the agent never entered it: "
                    "it is another Python than the plan's, or it is started with -S, -I or -E"
                )

    def _processes_without_agent(self) -> list[int]:
        """Those that map torch without a hello. Children forked from one that said it are its workers."""
        hello = {
            int(path.stem.removeprefix("hello-"))
            for path in self.folder.glob("hello-*.json")
            if path.stem.removeprefix("hello-").isdigit()
        }
        known: dict[int, tuple[str, ...]] = {pid: processes.command_line(pid) for pid in hello}
        found = []
        for entry in processes.descendants(os.getpid()):
            command = processes.command_line(entry.pid)
            if entry.pid in hello or known.get(entry.parent) == command:
                known[entry.pid] = command
            elif processes.has_torch(entry.pid):
                found.append(entry.pid)
        return found

    def _hear(self) -> None:
        self.ranks.read()
        for rank, log in sorted(self.ranks.logs.items()):
            told = self._told.get(rank, 0)
            self._told[rank] = len(log.events)
            for event in log.events[told:]:
                self._hear_one(event)

    def _hear_one(self, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if kind == "refused":
            text = f"{event['technique']} cannot act in this program: {event['reason']}"
            if self.degrade:
                self.tell(f"going on without {event['technique']} (--degrade): {event['reason']}")
            else:
                self.end()
                raise TechniqueInactive(
                    text, hint="Use --degrade to go on without it, or search again: flatout train."
                )
        elif kind == "applied":
            self.tell(f"{event['technique']} is applied")
        elif kind == "active" and not event.get("active"):
            self.tell(f"{event['technique']} shows no evidence that it ran")
        elif kind == "watch":
            self.tell(f"step {event.get('step')}: {event.get('what')}: {event.get('detail')}")
        elif kind == "error":
            self.tell(f"the agent failed at {event.get('where')}: {event.get('error')}")

    # -- ends

    def _ended(self, code: int) -> int:
        self._hear()
        if self.planfile.plan and not self.ranks.logs and code == 0:
            self.tell(
                "the program has ended and never took a step under the plan: it ran as without flatout"
            )
        return code if code >= 0 else 128 - code

    def end(self) -> None:
        """End the program and everything that it started: SIGTERM, then SIGKILL."""
        if self.process is not None:
            self._take_terminal_back()
            left = processes.end_all_below(os.getpid(), politely_seconds=_GRACE_SECONDS)
            if left:
                self.tell(f"these processes could not be ended: {left}")
            self.process.returncode = self.process.returncode if self.process.returncode is not None else -9
