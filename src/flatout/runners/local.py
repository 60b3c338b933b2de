"""Real programs on this machine: one isolated process tree per session.

A session's folder ``trials/NNNN-KEY`` holds what protocol.py says (spec.json, control, hello-*.json,
rank-*.jsonl) and the program's stdout.txt and stderr.txt. Compile caches and reference gradients lie
beside the trials and live on; everything else that the program writes is thrown away.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from flatout.agent.protocol import PROFILE, RUN, STOP, Control, Spec, pth_line
from flatout.errors import DiskFull, IsolationError
from flatout.host import Interpreter
from flatout.isolation import Way, available, processes, scratch
from flatout.isolation.choose import covered_places
from flatout.isolation.client import Supervised
from flatout.isolation.supervise import Request as Start
from flatout.runners import Request, SessionEnded, endings
from flatout.runners.ranks import Ranks
from flatout.trial import Block, Outcome, Profile, State
from flatout.workload import Discovery, Workload

AGENT_FOLDER = Path(__file__).resolve().parents[1] / "agent"
BOOTSTRAP = AGENT_FOLDER / "bootstrap.py"
SITECUSTOMIZE = AGENT_FOLDER / "sitecustomize_dir"

WRITE_LIMIT_BYTES = 16 << 30
_STOP_SECONDS = 20.0
_SAMPLE_SECONDS = 1.0
_DISCOVERY_STEPS = 12
_POLL_SECONDS = (0.0005, 0.02)
"""Shortest and longest pause between two looks at the control block."""


def cache_environment(cache: Path) -> dict[str, str]:
    """Where the compilers keep what they made, so that a later process need not make it again."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}


def agent_environment(environment: dict[str, str], spec_path: Path) -> dict[str, str]:
    """The way in by ``sitecustomize``: first on PYTHONPATH, before whatever was there."""
    old = environment.get("PYTHONPATH")
    path = f"{SITECUSTOMIZE}{os.pathsep}{old}" if old else str(SITECUSTOMIZE)
    return {**environment, "PYTHONPATH": path, "FLATOUT_SPEC": str(spec_path)}


def _say_nothing(_line: str) -> None:
    """The default listener."""


class LocalRunner:
    """Starts sessions of one workload. Use as a context manager: leaving it ends all of them."""

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
    ) -> None:
        self.workload = workload
        self.interpreter = interpreter
        self.out_dir = Path(os.path.realpath(out_dir))
        self.write_limit_bytes = write_limit_bytes
        self.has_gpu = has_gpu
        self.trials = self.out_dir / "trials"
        self.cache = self.out_dir / "cache"
        self.reference = self.out_dir / "reference"
        try:
            for folder in (self.trials, self.cache, self.reference):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskFull(
                f"{self.out_dir} cannot be written: {error.strerror}", hint="Choose another --out."
            ) from error
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
        atexit.register(self.close)

    @property
    def way(self) -> Way:
        """How trials are isolated. May become a weaker one when the first start shows that it must."""
        return self._ways[0]

    def start(self, request: Request, tell: Callable[[str], None] = _say_nothing) -> LocalSession:
        """A session whose program is starting. Raises IsolationError when no way can be set up.

        Whatever is wrong with the program itself is raised by the session's methods, as SessionEnded.
        """
        while True:
            folder = self._folder(request.key)
            session = LocalSession(self, request, folder, self.way, tell)
            self._sessions.append(session)  # before it lives: an interrupt may come at any moment
            try:
                session.launch()
            except IsolationError as error:
                session.kill()
                if len(self._ways) < 2:
                    raise
                weaker = self._ways.pop(0)
                self._ways[0].why_not[weaker.name] = error.message
                tell(f"isolation by {weaker.name} does not hold: {error.message}; using {self.way.name}")
                continue
            return session

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

    def _folder(self, key: str) -> Path:
        numbers = [int(path.name[:4]) for path in self.trials.iterdir() if path.name[:4].isdigit()]
        name = re.sub(r"[^A-Za-z0-9.+=_-]+", "-", key)[:60].strip("-")
        folder = self.trials / f"{max(numbers, default=0) + 1:04d}-{name}"
        try:
            folder.mkdir()
        except OSError as error:
            raise DiskFull(
                f"{folder} cannot be made: {error.strerror}", hint="Free space, or choose another --out."
            ) from error
        return folder


class LocalSession:
    """One live program. See runners.Session."""

    def __init__(
        self, runner: LocalRunner, request: Request, folder: Path, way: Way, tell: Callable[[str], None]
    ) -> None:
        self._runner = runner
        self._request = request
        self._way = way
        self._tell = tell
        self.folder = folder
        self.ranks = Ranks(folder)
        self._supervised: Supervised | None = None
        self._control: Control | None = None
        self._ended: Outcome | None = None
        self._granted = 0
        self._reported = 0
        """Steps that ``advance`` has returned."""
        self._warm_steps = 0
        self._started = 0.0
        self._first_step_at: float | None = None
        self._first_counted_at: float | None = None
        self._host_peak_bytes = 0
        self._sampled = 0.0
        self._progress_at = 0.0
        self._progress: tuple[int, ...] = ()
        self._oom_kills = processes.oom_kills()
        self._notes: list[str] = []

    # -- starting

    def launch(self) -> None:
        """Write the spec and start the program. Raises IsolationError when the way does not hold."""
        spec_path = self.folder / "spec.json"
        redirect_dir = str(self.folder / "redirected") if self._way.name == "redirect" else None
        if redirect_dir:
            Path(redirect_dir).mkdir()
        try:
            spec_path.write_text(self._spec(redirect_dir).to_json(), encoding="utf-8")
            self._control = Control(str(self.folder / "control"), create=True)
        except OSError as error:
            raise DiskFull(
                f"{self.folder} cannot be written: {error.strerror}",
                hint="Free space, or choose another --out.",
            ) from error
        refusal = self._cannot_enter()
        if refusal is not None:
            self._ended = refusal
            return
        self._started = self._progress_at = time.monotonic()
        self._supervised = Supervised(self._start(spec_path, redirect_dir))
        answer = self._supervised.wait_until_started()
        ready = self._supervised.said("ready")
        self._notes += ready["notes"] if ready else []
        if answer["what"] == "cannot_execute":
            command = self._runner.workload.command[0]
            self._ended = Outcome(
                state=State.FAILED,
                error="CommandNotFound",
                reason=f"{command} cannot be executed in {answer['cwd']}: {answer['reason']}",
                isolation=self._way.name,
            )
            self._supervised.kill()
            return
        self._tell("started")

    def _spec(self, redirect_dir: str | None) -> Spec:
        request = self._request
        known = request.discovery
        return Spec(
            trial_dir=str(self.folder),
            mode="trial",
            techniques=[
                {"name": choice.name, "settings": dict(choice.settings)} for choice in request.plan.choices
            ],
            seed=request.seed,
            step_unit=known.step_unit if known else None,
            anchor=known.anchor if known else None,
            units=[dataclasses.asdict(unit) for unit in known.units] if known else None,
            reference_path=str(self._reference_path()) if request.reference_role else None,
            reference_role=request.reference_role,
            randomness_off=request.randomness_off,
            redirect_dir=redirect_dir,
        )

    def _reference_path(self) -> Path:
        """With the program's randomness off the first step has other gradients: a file of their own."""
        name = "gradients-still.pt" if self._request.randomness_off else "gradients.pt"
        return self._runner.reference / name

    def _start(self, spec_path: Path, redirect_dir: str | None) -> Start:
        runner = self._runner
        workload = runner.workload
        environment = {**workload.environment, **cache_environment(runner.cache)}
        environment["FLATOUT_SPEC"] = str(spec_path)
        by_pth = self._way.name == "overlay"
        sites = [os.path.realpath(path) for path in runner.interpreter.site_packages if Path(path).is_dir()]
        if not by_pth or not sites:
            environment = agent_environment(environment, spec_path)
        cwd = os.path.realpath(workload.cwd)
        return Start(
            command=list(workload.command),
            cwd=cwd,
            environment=environment,
            stdout=str(self.folder / "stdout.txt"),
            stderr=str(self.folder / "stderr.txt"),
            way=self._way.name,
            scratch_base=self._way.scratch_base,
            in_memory=self._way.in_memory,
            whole=self._way.whole,
            pid_namespace=self._way.pid_namespace,
            pass_through=[str(self.folder), str(runner.cache), str(runner.reference)],
            hide=[str(runner.out_dir / "scratch")],
            cover=covered_places(cwd, environment),
            site_packages=sites[:1],
            pth_text=pth_line(str(BOOTSTRAP), str(spec_path)) if by_pth else "",
            redirect_dir=redirect_dir,
            leave_out=[str(runner.out_dir)],
            write_limit_bytes=runner.write_limit_bytes,
            time_limit_seconds=self._request.time_limit_seconds,
        )

    def _cannot_enter(self) -> Outcome | None:
        """The end before the start, where the interpreter's flags keep the agent out."""
        flags = self._runner.interpreter.flags
        blocking = [
            flag for flag in flags if flag == "-S" or (flag in ("-I", "-E") and self._way.name != "overlay")
        ]
        if not blocking:
            return None
        why = self._way.why_not.get("overlay", "--isolation asks for another one")
        reason = f"the program is started with `python {' '.join(blocking)}`, which keeps the agent out"
        if "-S" not in blocking:
            reason += f"; only isolation by overlay gets it in all the same, and here {why}"
        return Outcome(
            state=State.FAILED,
            error="AgentDidNotEnter",
            reason=f"{reason}. Start it without",
            isolation=self._way.name,
        )

    # -- what a Session offers

    @property
    def discovery(self) -> Discovery | None:
        self.ranks.read()
        return self.ranks.discovery() or self._request.discovery

    def advance(self, steps: int) -> Block:
        self._alive()
        first = self._reported + 1
        self._granted += steps
        self._control_block.granted = self._granted
        self._wait_until(self._granted)
        return self._take(first, self._granted)

    def profile(self) -> Profile | None:
        self._alive()
        self._control_block.command = PROFILE
        self._granted += 1
        self._control_block.granted = self._granted
        self._wait_until(self._granted)
        self._control_block.command = RUN
        self._take(self._granted, self._granted)
        self.ranks.read()
        return self.ranks.profile()

    def peek(self) -> Outcome:
        self._alive()
        self.ranks.read()
        return self._outcome(State.COMPLETED)

    def stop(self) -> Outcome:
        if self._ended is None:
            self._control_block.command = STOP
            deadline = time.monotonic() + _STOP_SECONDS
            while time.monotonic() < deadline and not self._program_over():
                self._look(0.02)
                told = {log.rank for log in self.ranks.logs.values() if log.of("end")}
                if told and len(told) >= self.ranks.world_size:
                    break
            self._finish(State.COMPLETED, "")
        assert self._ended is not None
        return self._ended

    def kill(self) -> None:
        if self._supervised is not None:
            self._supervised.kill()
        if self._ended is None:
            self._ended = self._outcome(State.FAILED, "killed")
        self._release()

    # -- waiting

    @property
    def _control_block(self) -> Control:
        assert self._control is not None
        return self._control

    @property
    def _process(self) -> Supervised:
        assert self._supervised is not None
        return self._supervised

    def _alive(self) -> None:
        if self._ended is not None:
            raise SessionEnded(self._ended)

    def _taken(self) -> tuple[int, ...]:
        """Steps of every rank known of, from the control block."""
        return tuple(self._control_block.steps_of(rank) for rank in range(self.ranks.world_size))

    def _wait_until(self, step: int) -> None:
        """Until every rank has taken ``step`` steps. Raises SessionEnded when that will not happen.

        A program that ends after some of the steps is left to ``_take``.
        """
        pause, longest = _POLL_SECONDS
        self._progress_at = time.monotonic()
        while True:
            taken = self._taken()
            if self._first_step_at is None and max(taken) > 0:
                self._first_step_at = time.monotonic()
            if min(taken) >= step:
                # the ranks' lines are written before their words
                self.ranks.read()
                if min(self._taken()) >= step:
                    return
            if taken != self._progress:
                self._progress, self._progress_at = taken, time.monotonic()
            self._look(pause)
            if self._program_over() or self.ranks.first("end") is not None:
                self._conclude_own_end()
                return
            limit = self._request.step_limit_seconds
            if time.monotonic() - self._progress_at > limit:
                self._conclude_hang(limit)
            pause = min(pause * 1.3, longest)

    def _look(self, seconds: float) -> None:
        """Wait a little; hear the supervisor, the ranks and the memory."""
        self._process.poll(seconds)
        now = time.monotonic()
        if now - self._sampled > _SAMPLE_SECONDS:
            self._sampled = now
            self.ranks.read()
            resident = sum(
                processes.resident_bytes(p.pid) for p in processes.descendants(self._process.pid)
            )
            self._host_peak_bytes = max(self._host_peak_bytes, resident)
            if self.ranks.first("refused") is not None or list(self.folder.glob("error-*.json")):
                self._process.poll(0.2)

    def _program_over(self) -> bool:
        process = self._process
        return process.closed or any(process.said(what) for what in ("exited", "ending", "done"))

    def _take(self, first: int, last: int) -> Block:
        self.ranks.read()
        last = min(last, max(self.ranks.steps, self._reported) if self._ended is not None else last)
        block = self.ranks.block(first, last)
        self._reported = max(self._reported, last)
        if self._first_counted_at is None and block.step_seconds:
            self._first_counted_at = time.monotonic() - sum(block.step_seconds)
            self._warm_steps = first
        return block

    # -- ends

    def _conclude_own_end(self) -> None:
        """The program is over before the steps were taken: say why, or return for what it still gave."""
        process = self._process
        # ranks end one after the other, and the launcher after them
        process.wait_for("exited", "ending", "done", seconds=10.0)
        if process.said("exited") and not process.said("ending"):
            process.wait_for("ending", "thrown_away", "done", seconds=10.0)
        self.ranks.read()
        refused = self.ranks.first("refused")
        exited, ending = process.said("exited"), process.said("ending")
        code = exited["code"] if exited else None
        steps = self.ranks.steps
        if refused is not None:
            self._fail("TechniqueInactive", f"{refused['technique']} cannot act: {refused['reason']}")
        broken = self._agent_error()
        if broken:
            self._fail("AgentError", broken)
        if ending is not None and ending["why"] == "writes":
            self._fail(
                "WroteTooMuch",
                f"it wrote {ending['bytes'] / 2**30:.1f} GiB, and a trial may write "
                f"{self._runner.write_limit_bytes / 2**30:.1f} GiB; let it write less",
            )
        if ending is not None and ending["why"] == "time":
            self._conclude_time(self._request.time_limit_seconds)
        if exited is not None and (code or exited["signal"]):
            self._conclude_crash(code, exited["signal"])
        if (
            ending is not None
            and ending["why"] == "left behind"
            and self._left_is_the_training(ending["left"])
        ):
            names = "; ".join(f"pid {left[0]}: {' '.join(left[1:])}" for left in ending["left"][:3])
            self._fail(
                "DetachedProgram",
                f"its first process left with exit code {code} while its work went on in the background "
                f"({names}). Run it in the foreground: without `&`, nohup, setsid or its daemon option",
            )
        if exited is None and ending is None:
            refusal = process.said("refused")
            self._fail(
                "IsolationError",
                f"its supervisor is gone: {refusal['reason'] if refusal else 'it was ended'}",
            )
        if steps == 0:
            self._conclude_no_steps(f"it ended with exit code {code}")
        self._finish(State.COMPLETED, f"the program ended by itself after {steps} steps")
        if steps <= self._reported:
            self._alive()

    def _conclude_crash(self, code: int | None, number: int | None) -> None:
        ending = endings.crash(
            code=code,
            number=number,
            stderr=self._tail("stderr.txt"),
            stdout=self._tail("stdout.txt"),
            oom_killed=processes.oom_kills() > self._oom_kills,
            has_gpu=self._runner.has_gpu,
            isolation=self._way.name,
            agent_folder=str(AGENT_FOLDER),
        )
        self._fail(ending.error, ending.reason, child_error=ending.child_error)

    def _conclude_hang(self, limit: float) -> None:
        if max(self._taken()) == 0:
            self._conclude_no_steps(f"it ran on for {limit:.0f} s")
        self._fail("Hung", f"no step within {limit:.0f} s after step {max(self._taken())}; {self._where()}")

    def _conclude_time(self, limit: float) -> None:
        steps = max(self._taken())
        if steps == 0:
            self._conclude_no_steps(f"it ran on for {limit:.0f} s")
        self._fail(
            "TooFewSteps", f"the time allowed for one process, {limit:.0f} s, ended after {steps} steps"
        )

    def _conclude_no_steps(self, how: str) -> None:
        """Never a step: the agent was not there, or the program does not train."""
        hellos = list(self.folder.glob("hello-*.json"))
        if hellos:
            self._fail(
                "NeverStepped",
                f"{how} without one training step: torch was imported, but no optimiser "
                "step and no backward was seen. Is this the command that trains? Perhaps an option "
                "such as --do_train is missing",
            )
        mapped = self._without_agent()
        if mapped:
            self._fail(
                "AgentDidNotEnter",
                f"{how}, and a process that has torch loaded never let the agent in ({mapped}); "
                "it runs another Python than the one expected, "
                f"{self._runner.interpreter.executable}, or starts it with -S",
            )
        self._fail(
            "NeverStepped", f"{how} without one training step: torch was never imported. {self._where()}"
        )

    def _without_agent(self) -> str:
        """A live process of the program that maps torch's library, or an empty text."""
        for entry in processes.descendants(self._process.pid):
            if b"libtorch" in processes.read_proc(entry.pid, "maps"):
                return f"pid {entry.pid}: {' '.join(processes.command_line(entry.pid)[:4])}"
        return ""

    def _where(self) -> str:
        """What its processes are doing, for a person who wonders why nothing happens."""
        rows = []
        for entry in processes.descendants(self._process.pid):
            command = processes.command_line(entry.pid)
            if command and "flatout.isolation.supervise" not in " ".join(command):
                place = processes.read_proc(entry.pid, "wchan").decode().strip("0")
                waiting = f"waiting in {place}" if place else "waiting"
                doing = {"R": "computing", "D": "waiting for a disk or device"}.get(entry.state, waiting)
                rows.append(f"{' '.join(command)[:80]}: {doing}")
        last = (
            self._tail("stdout.txt").strip().splitlines()[-1:]
            or self._tail("stderr.txt").strip().splitlines()[-1:]
        )
        told = f"its last line was {last[0][:200]!r}" if last else "it printed nothing"
        return "; ".join([told, *rows[:4]])

    def _left_is_the_training(self, left: list[list[Any]]) -> bool:
        """Processes that outlive the first one train, or nothing has trained at all."""
        helloed = {path.stem.removeprefix("hello-") for path in self.folder.glob("hello-*.json")}
        return self.ranks.steps == 0 or any(str(row[0]) in helloed for row in left)

    def _agent_error(self) -> str:
        for path in sorted(self.folder.glob("error-*.json")):
            with contextlib.suppress(OSError, ValueError):
                event = json.loads(path.read_text(encoding="utf-8"))
                return f"the agent failed in the program at {event.get('where')}: {event.get('error')}"
        return ""

    def _tail(self, name: str) -> str:
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - endings.TAIL_BYTES))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def _fail(self, error: str, reason: str, *, child_error: str = "") -> None:
        """End everything; always raises SessionEnded."""
        if not child_error and error in (
            "NeverStepped",
            "Hung",
            "AgentDidNotEnter",
            "TechniqueInactive",
            "AgentError",
        ):
            child_error = endings.last_error(self._tail("stderr.txt"))
        self._finish(State.FAILED, reason, error=error, child_error=child_error)
        self._alive()

    def _finish(self, state: State, reason: str, *, error: str = "", child_error: str = "") -> None:
        process = self._process
        process.end()
        self.ranks.read()
        outcome = self._outcome(state, reason, error)
        exited, thrown = process.said("exited"), process.said("thrown_away")
        if thrown is not None:
            outcome = dataclasses.replace(
                outcome,
                thrown_away=tuple((str(path), int(size)) for path, size in thrown["largest"]),
                thrown_away_count=thrown["count"],
                thrown_away_bytes=thrown["bytes"],
            )
        code = exited["code"] if exited else None
        if exited and exited["signal"]:
            code = 128 + int(exited["signal"])
        self._ended = dataclasses.replace(outcome, child_error=child_error, exit_code=code)
        self._release()

    def _release(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self in self._runner._sessions:
            self._runner._sessions.remove(self)

    # -- what it has shown

    def _outcome(self, state: State, reason: str = "", error: str = "") -> Outcome:
        ranks = self.ranks
        steps = max([ranks.steps, self._reported, *(self._taken() if self._control is not None else ())])
        everything = ranks.block(1, steps)
        # discovery works in the first steps only, and is no cost of a step
        later = ranks.block(min(max(1, steps), _DISCOVERY_STEPS + 1), steps)
        counted = ranks.block(max(1, self._warm_steps), steps).step_seconds
        started = self._started
        return Outcome(
            state=state,
            reason=reason,
            error=error,
            steps=steps,
            step_seconds=counted,
            losses=everything.losses,
            startup_seconds=(self._first_step_at - started) if self._first_step_at else 0.0,
            warmup_seconds=(self._first_counted_at - started) if self._first_counted_at else 0.0,
            agent_seconds_per_step=later.agent_seconds / max(1, later.steps),
            loader_wait_seconds_per_step=everything.loader_wait_seconds / max(1, steps),
            peak_bytes=ranks.most("peak_bytes"),
            host_peak_bytes=self._host_peak_bytes,
            recompiles=ranks.total("recompiles"),
            graph_breaks=ranks.total("graph_breaks"),
            discovery=ranks.discovery() or self._request.discovery,
            gradients=ranks.gradients(),
            profile=ranks.profile(),
            active=ranks.evidence(),
            isolation=self._way.name,
            notes=(*self._notes, *(str(event["note"]) for event in ranks.all("note"))),
        )
