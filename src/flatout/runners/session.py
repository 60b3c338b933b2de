"""One live program on this machine.

A session's folder ``trials/NNNN-KEY`` holds what protocol.py says (spec.json, control, hello-*.json,
rank-*.jsonl) and the program's stdout.txt and stderr.txt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.agent.protocol import PROFILE, RUN, STOP, Control, Spec
from flatout.isolation import processes
from flatout.isolation.choose import covered_places
from flatout.isolation.client import Supervised
from flatout.isolation.request import Request as Start
from flatout.runners import Request, SessionEnded, conclusions, endings
from flatout.runners.conclusions import Seen
from flatout.runners.endings import Ending
from flatout.runners.entrances import AGENT_FOLDER, agent_environment, cache_environment, pth_text
from flatout.runners.ranks import Ranks
from flatout.runners.still import PATIENCE_SECONDS, SOON_SECONDS, Still
from flatout.trial import Block, Outcome, Profile, State
from flatout.workload import Discovery
from flatout.writing import cannot_write

if TYPE_CHECKING:
    from flatout.runners.local import LocalRunner

_STOP_SECONDS = 20.0
_SAMPLE_SECONDS = 1.0
_DISCOVERY_STEPS = 12
_POLL_SECONDS = (0.0005, 0.02)
"""Shortest and longest pause between two looks at the control block."""


class LocalSession:
    """One live program. See runners.Session."""

    def __init__(self, runner: LocalRunner, request: Request, tell: Callable[[str], None]) -> None:
        self._runner = runner
        self._request = request
        self._way = runner.way
        self._tell = tell
        self.folder = Path()
        self.ranks = Ranks(self.folder)
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
        self._still = Still()
        self._seconds_a_step = 0.0
        """Of the latest steps waited for, as seen from here: when to look for the next ones."""

    # -- starting

    def launch(self) -> None:
        """Write the spec and start the program in a folder of its own, in the runner's present way.

        Raises IsolationError when the way does not hold; may then be called again.
        """
        self._way = self._runner.way
        self.folder = self._runner.new_folder(self._request.key)
        self.ranks = Ranks(self.folder)
        spec_path = self.folder / "spec.json"
        redirect_dir = str(self.folder / "redirected") if self._way.name == "redirect" else None
        if redirect_dir:
            Path(redirect_dir).mkdir()
        try:
            spec_path.write_text(self._spec(redirect_dir).to_json(), encoding="utf-8")
            self._control = Control(str(self.folder / "control"), create=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        refusal = self._cannot_enter()
        if refusal is not None:
            self._ended = refusal
            return
        self._started = self._progress_at = time.monotonic()
        self._first_step_at = None
        self._progress = ()
        self._still = Still()
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
            guard=self._guard(),
            late_path=self._late_path(),
            redirect_dir=redirect_dir,
            acts_dir=str(self._runner.acts_dir) if self._runner.acts_dir else None,
        )

    def _reference_path(self) -> Path:
        """With the program's randomness off the first step has other gradients: a file of their own."""
        name = "gradients-still.pt" if self._request.randomness_off else "gradients.pt"
        return self._runner.reference / name

    def _guard(self) -> dict[str, object] | None:
        guard = self._request.guard
        if guard is None:
            return None
        return {**dataclasses.asdict(guard), "folder": str(self._runner.guard_folder)}

    def _late_path(self) -> str | None:
        """The untouched program that is timed writes its weights down when it has been measured."""
        request = self._request
        if request.reference_role != "save" or request.randomness_off:
            return None
        return str(self._runner.guard_folder / "late.pt")

    def _start(self, spec_path: Path, redirect_dir: str | None) -> Start:
        runner = self._runner
        workload = runner.workload
        environment = {**workload.environment, **cache_environment(runner.cache)}
        environment["FLATOUT_SPEC"] = str(spec_path)
        if self._request.guard is not None and self._request.guard.role in ("truth", "control"):
            environment.update(TORCH_COMPILE_DISABLE="1", TORCHDYNAMO_DISABLE="1")
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
            pth_text=pth_text(spec_path) if by_pth else "",
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
        self._grant(steps)
        self._wait_until(self._granted)
        return self._take(first, self._granted)

    def profile(self) -> Profile | None:
        self._alive()
        self._control_block.command = PROFILE
        self._grant(1)
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
            with self._runner.turns:
                self._control_block.command = STOP
                self._still.go_on()
            deadline = time.monotonic() + _STOP_SECONDS
            while time.monotonic() < deadline and not self._program_over():
                self._look(0.02)
                told = {log.rank for log in self.ranks.logs.values() if log.of("end")}
                if told and len(told) >= self.ranks.world_size:
                    break
            self._finish(State.COMPLETED)
        assert self._ended is not None
        return self._ended

    def kill(self) -> None:
        if self._supervised is not None:
            self._supervised.kill()
        if self._ended is None:
            self._ended = self._outcome(State.FAILED, Ending(error="", reason="killed"))
        self._release()

    # -- turns

    def _grant(self, steps: int) -> None:
        """More steps for this program; every other one of the runner's is stopped meanwhile."""
        with self._runner.turns:
            self._runner.turn_of(self)
            control = self._control_block
            control.still = bool(self._still)
            self._granted += steps
            control.granted = self._granted
            self._still.go_on()

    def keep_still(self) -> bool:
        """Stop the program where it holds, if it does; it goes on at its next grant. False where that is
        not possible."""
        if self._ended is not None or self._control is None or self._still or not self._granted:
            return True
        if self._control.command == STOP:
            return True  # on its way out
        taken = self._taken()
        holding = {int(event["pid"]) for event in self.ranks.all("holds")}
        if min(taken) >= self._granted and len(holding) >= len(taken):
            self._still.stop(self._process.pid, holding)
        return self._still.possible

    def go_on_holding(self) -> None:
        """Let a stopped program live on where it holds."""
        self._still.go_on()

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
        shortest, longest = _POLL_SECONDS
        pause = shortest
        began = self._progress_at = time.monotonic()
        steps = step - min(self._taken())
        due = began + steps * self._seconds_a_step
        let_go_at: float | None = None
        if self._first_step_at is None and max(self._taken()) > 0:
            self._first_step_at = began - self._seconds_since_written()
        while True:
            taken = self._taken()
            if self._first_step_at is None and max(taken) > 0:
                self._first_step_at = time.monotonic()
            if taken != self._progress:
                self._progress, self._progress_at = taken, time.monotonic()
                if let_go_at is not None and self._progress_at - let_go_at < SOON_SECONDS:
                    self._runner.never_stop(self._tell)
            if min(taken) >= step:
                # the ranks' lines are written before their words
                self.ranks.read()
                if min(self._taken()) >= step:
                    self._seconds_a_step = (time.monotonic() - began) / max(1, steps)
                    return
            self._look(pause)
            if self._program_over() or self.ranks.first("end") is not None:
                if not self._own_end():
                    return
                self._progress_at = time.monotonic()
            patience = max(PATIENCE_SECONDS, 3 * self._seconds_a_step)
            if let_go_at is None and time.monotonic() - self._progress_at > patience:
                let_go_at = time.monotonic()
                self._runner.let_others_go_on(self)
            limit = self._request.step_limit_seconds
            if time.monotonic() - self._progress_at > limit:
                self._fail(conclusions.hang(self._seen(max(self._taken())), limit))
            # closely about when it is due: what it prefetches before it is seen to hold is little then
            left = due - time.monotonic()
            pause = min(longest, max(shortest, left / 3) if left > 0 else pause * 1.3)

    def _seconds_since_written(self) -> float:
        """How long ago a program that nobody waited for came to its first hold, by what it then wrote."""
        try:
            return max(0.0, time.time() - (self.folder / "rank-0.jsonl").stat().st_mtime)
        except OSError:
            return 0.0

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

    def _own_end(self) -> bool:
        """The program is over before the steps were taken. True when it was started again in a weaker way.

        Raises SessionEnded, unless steps that it still took are to be returned first.
        """
        process = self._process
        # ranks end one after the other, and the launcher after them
        process.wait_for("exited", "ending", "done", seconds=10.0)
        if process.said("exited") and not process.said("ending"):
            process.wait_for("ending", "thrown_away", "done", seconds=10.0)
        self.ranks.read()
        seen = self._seen(self.ranks.steps)
        ending = conclusions.own_end(seen)
        if ending.error:
            if conclusions.held_back_by_landlock(seen, ending) and self._again_in_a_weaker_way(ending):
                return True
            self._fail(ending)
        self._finish(State.COMPLETED, ending)
        if seen.steps <= self._reported:
            self._alive()
        return False

    def _again_in_a_weaker_way(self, ending: Ending) -> bool:
        """Landlock forbade a write that the program cannot do without: redirect such writes instead."""
        reason = (
            f"it keeps the program from writing outside its folder ({endings.headline(ending.child_error)})"
        )
        if not self._runner.weaken(self._way, reason, self._tell):
            return False
        self._process.end()
        self._close_control()
        self.launch()
        if self._ended is not None:
            return False
        self._control_block.granted = self._granted
        return True

    def _notes_without_training(self) -> list[str]:
        """Notes of processes that ended without having trained: they have no event file."""
        notes: list[str] = []
        for path in sorted(self.folder.glob("hello-*.json")):
            try:
                notes += [
                    str(note) for note in json.loads(path.read_text(encoding="utf-8")).get("notes", ())
                ]
            except (OSError, ValueError):  # half written by a process that was killed
                continue
        return notes

    def _seen(self, steps: int) -> Seen:
        process, runner = self._process, self._runner
        refusal = process.said("refused")
        hellos = self.folder.glob("hello-*.json")
        return Seen(
            isolation=self._way.name,
            steps=steps,
            exited=process.said("exited"),
            ending=process.said("ending"),
            supervisor_refused=str(refusal["reason"]) if refusal else "",
            refused=self.ranks.first("refused"),
            agent_error=self._agent_error(),
            helloed=frozenset(path.stem.removeprefix("hello-") for path in hellos),
            without_agent=self._without_agent(),
            doing=self._doing(),
            interpreter=runner.interpreter.executable,
            stderr=self._tail("stderr.txt"),
            stdout=self._tail("stdout.txt"),
            oom_killed=processes.oom_kills() > self._oom_kills,
            has_gpu=runner.has_gpu,
            agent_folder=str(AGENT_FOLDER),
            write_limit_bytes=runner.write_limit_bytes,
            time_limit_seconds=self._request.time_limit_seconds,
            plan=self._request.plan.key if self._request.plan else "",
            known_to_train=self._request.discovery is not None,
        )

    def _without_agent(self) -> str:
        """A live process of the program that maps torch's library, or an empty text."""
        for entry in processes.descendants(self._process.pid):
            if processes.has_torch(entry.pid):
                return f"pid {entry.pid}: {' '.join(processes.command_line(entry.pid)[:4])}"
        return ""

    def _doing(self) -> str:
        """What it printed last and what its processes do, for a person who wonders why nothing happens."""
        last = self._tail("stdout.txt").split("\n") + self._tail("stderr.txt").split("\n")
        printed = [line.strip() for line in last if line.strip()]
        rows = [f"its last line was {printed[-1][:200]!r}" if printed else "it printed nothing"]
        for entry in processes.descendants(self._process.pid):
            command = " ".join(processes.command_line(entry.pid))
            if command and "flatout.isolation.supervise" not in command:
                place = processes.read_proc(entry.pid, "wchan").decode().strip("0")
                waiting = f"waiting in {place}" if place else "waiting"
                doing = {"R": "computing", "D": "waiting for a disk or device"}.get(entry.state, waiting)
                rows.append(f"{command[:80]}: {doing}")
        return "; ".join(rows[:5])

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

    def _fail(self, ending: Ending) -> None:
        """End everything; always raises SessionEnded."""
        self._finish(State.FAILED, ending)
        self._alive()

    def _finish(self, state: State, ending: Ending | None = None) -> None:
        """End the program in an orderly way, and everything that it started; keep what it has shown."""
        process = self._process
        process.end()
        self.ranks.read()
        outcome = self._outcome(state, ending)
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
        self._ended = dataclasses.replace(outcome, exit_code=code)
        self._release()

    def _release(self) -> None:
        self._close_control()
        self._runner.forget(self)

    def _close_control(self) -> None:
        with self._runner.turns:
            if self._control is not None:
                self._control.close()
                self._control = None

    # -- what it has shown

    def _outcome(self, state: State, ending: Ending | None = None) -> Outcome:
        ranks = self.ranks
        steps = max([ranks.steps, self._reported, *(self._taken() if self._control is not None else ())])
        everything = ranks.block(1, steps)
        # discovery works in the first steps only, and is no cost of a step
        later = ranks.block(min(max(1, steps), _DISCOVERY_STEPS + 1), steps)
        counted = ranks.block(max(1, self._warm_steps), steps).step_seconds
        started = self._started
        return Outcome(
            state=state,
            reason=ending.reason if ending else "",
            error=ending.error if ending else "",
            child_error=ending.child_error if ending else "",
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
            guarding=tuple(ranks.all("guarding")),
            profile=ranks.profile(),
            active=ranks.evidence(),
            isolation=self._way.name,
            notes=(
                *self._notes,
                *(str(event["note"]) for event in ranks.all("note")),
                *self._notes_without_training(),
            ),
        )
