"""A runner that plays programs instead of starting them: for tests of the search and of resuming.

Everything follows from (seed, request key): step times with autocorrelated, drifting, heavy-tailed
noise and a small shift per process, gradients, failures, memory. Time is virtual (``clock``); with
``pace`` above 0 the real clock follows it, so that a kill can fall anywhere.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from flatout.host import Host, Interpreter
from flatout.plan import Plan
from flatout.runners import Request, SessionEnded
from flatout.runners.playback import Playback, Recording
from flatout.technique import Effect, Part, Technique
from flatout.trial import Block, Gradients, Outcome, Profile, State
from flatout.workload import Discovery, Unit

DISCOVERY = Discovery(
    step_unit="optimizer",
    anchor=0,
    backwards_per_step=1.0,
    device="cpu",
    units=(Unit(name="Model", class_name="Model", parameters=1000, called="call"),),
    optimizers=({"class_name": "AdamW", "fused": False, "sparse": False, "exact_class": True},),
    torch_version="2.13.0",
    trainable_parameters=1000,
)


@dataclass(frozen=True, kw_only=True)
class MockTechnique:
    """What one technique does to the played program, and its declaration."""

    factor: float = 1.0
    """Of the step's time."""
    effect: Effect = Effect.ROUNDING
    slot: str = ""
    gradients_db: float | None = 80.0
    """Agreement with the reference; None: equal to the bit."""
    redraws_db: float | None = None
    """Agreement while the program's randomness is on, where the technique draws other numbers."""
    missing: tuple[str, ...] = ()
    start_seconds: float = 0.0
    """Added to the start: compiling."""
    warm_start_seconds: float | None = None
    """The same of later processes, which find its caches warm; None: as the first."""
    memory_factor: float = 1.0
    refuses: str = ""
    """Reason that its act gives."""
    inactive: str = ""
    """What is missing from its evidence."""
    fails: str = ""
    """Name of a class in errors.py with which the process ends after a few steps."""
    unfit: str = ""
    loss_shift_per_step: float = 0.0
    nan_loss_from: int | None = None
    recompiles_per_step: float = 0.0
    settings: dict[str, object] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    excludes: dict[str, str] = field(default_factory=dict)
    eclipsed_by: tuple[str, ...] = ()
    expected: float = 1.0
    shortens: Part = Part.STEP
    variant_factor: float | None = None
    """Factor with ``dynamic=True`` among the settings, which also ends the recompiling."""


@dataclass(frozen=True, kw_only=True)
class MockProgram:
    """A program to play. Times in seconds."""

    step_seconds: float = 0.05
    start_seconds: float = 2.0
    techniques: dict[str, MockTechnique] = field(default_factory=dict)
    interactions: dict[frozenset[str], float] = field(default_factory=dict)
    """Further factor where all of the named techniques are in the plan."""
    noise: float = 0.01
    """Relative standard deviation of a step."""
    correlation: float = 0.5
    """Of one step's noise with the next's."""
    process_noise: float = 0.001
    """Relative standard deviation of a whole process."""
    slow_mode: float = 0.0
    """So much slower, relatively, is a process that chose other kernels at its start, silently."""
    slow_mode_chance: float = 0.5
    """That a process is such a one."""
    wander: float = 0.0
    """Relative standard deviation of a process's own speed as it changes slowly over time."""
    wander_seconds: float = 5.0
    """After which little of such a change is left."""
    drift: float = 0.02
    """Amplitude of a slow wave over time that every process sees alike."""
    drift_period_seconds: float = 40.0
    spike_chance: float = 0.01
    spike_factor: float = 3.0
    warmup_steps: int = 3
    warmup_factor: float = 4.0
    growth: float = 0.0
    """Of a step's time per step, relative to the first: sequences that get longer."""
    total_steps: int | None = None
    """The program ends by itself after so many."""
    fails: str = ""
    """Name of a class in errors.py with which the untouched program ends."""
    fails_at: int = 0
    child_error: str = ""
    again_db: float | None = None
    """Agreement of two unchanged runs; None: equal to the bit."""
    peak_bytes: int = 1 << 30
    device_bytes: int = 1 << 40
    discovery: Discovery = DISCOVERY
    profile: Profile | None = None
    recording: Recording | None = None
    """Noise of real processes, played in place of all of the above from ``noise`` to ``spike_factor``."""
    loader_wait_seconds: float = 0.0
    loss_noise: float = 0.02
    nan_loss_from: int | None = None

    def catalogue(self) -> tuple[Technique, ...]:
        """Declarations of its techniques, in their order here."""
        return tuple(cast(Technique, MockDeclaration(name, mock)) for name, mock in self.techniques.items())


class MockDeclaration:
    """A technique's declaration, made from how it is played."""

    def __init__(self, name: str, mock: MockTechnique) -> None:
        self.name = name
        self.title = name.replace("_", " ")
        self.effect = mock.effect
        self.claimed = "as much as you like"
        self.slot = mock.slot or name
        self.after = mock.after
        self.excludes = mock.excludes
        self.eclipsed_by = mock.eclipsed_by
        self.expected = mock.expected
        self.shortens = mock.shortens
        self.accepts = {key: type(value) for key, value in mock.settings.items()} | {"dynamic": bool}
        self._mock = mock

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        return self._mock.unfit or None

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        return dict(self._mock.settings)

    def alternatives(self, discovery: Discovery, *, recompiles: int) -> tuple[dict[str, object], ...]:
        return ({"dynamic": True},) if recompiles and self._mock.variant_factor is not None else ()

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        return None if evidence.get("ran") else str(evidence.get("missing", "no evidence"))

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        return f"{self.name}()"


class MockRunner:
    """See the module."""

    guards = False
    guard_folder: Path | None = None
    stops_idle = False

    def __init__(self, program: MockProgram, *, seed: int = 0, pace: float = 0.0) -> None:
        self.program = program
        self.seed = seed
        self.pace = pace
        self.now = 0.0
        self.live: list[MockSession] = []
        self.requests: list[Request] = []
        self.warm: set[str] = set()
        """Techniques whose caches are warm."""
        self.before: Callable[[str, MockSession], None] | None = None
        """Called with what is about to happen: a test may raise from it, such as KeyboardInterrupt."""

    def clock(self) -> float:
        """Virtual seconds, to be handed to the search."""
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.pace:
            time.sleep(seconds * self.pace)

    def start(self, request: Request, tell: Callable[[str], None] = lambda _: None) -> MockSession:
        self.requests.append(request)
        session = MockSession(self, request)
        self.live.append(session)
        tell("started")
        return session


class MockSession:
    """One played process."""

    def __init__(self, runner: MockRunner, request: Request) -> None:
        self._runner = runner
        self._request = request
        self._random = random.Random(f"{runner.seed}/{request.key}")
        self._began = runner.now
        self._steps = 0
        self._noise = 0.0
        program = runner.program
        self._wander = self._random.gauss(0.0, program.wander) if program.wander else 0.0
        self._process = math.exp(self._random.gauss(0.0, program.process_noise))
        if program.slow_mode and self._random.random() < program.slow_mode_chance:
            self._process *= 1.0 + program.slow_mode
        self._played = Playback(program.recording, self._random) if program.recording is not None else None
        self._counted: list[float] = []
        self._losses: list[tuple[int, float]] = []
        self._first_step_at = 0.0
        self._ended: Outcome | None = None
        self._techniques = {choice.name: program.techniques[choice.name] for choice in request.plan.choices}

    @property
    def discovery(self) -> Discovery | None:
        if self._request.discovery is not None:
            return self._request.discovery
        return self._runner.program.discovery if self._steps >= 3 else None

    def advance(self, steps: int) -> Block:
        self._alive("advance")
        first = self._steps
        times: list[float] = []
        losses: list[tuple[int, float]] = []
        began = self._runner.now
        for index in range(steps):
            total = self._runner.program.total_steps
            if total is not None and self._steps >= total:
                break
            self._step_may_fail()
            seconds = self._step_seconds()
            self._runner.pass_time(seconds)
            if index:
                times.append(seconds)
            losses.append((self._steps, self._loss(self._steps)))
            self._steps += 1
        self._counted += times
        self._losses += losses
        taken = self._steps - first
        if self._steps == self._runner.program.total_steps:
            # as with a real program: its last steps are still told, and then it is gone
            self._ended = self._outcome(
                State.COMPLETED, f"the program ended by itself after {self._steps} steps"
            )
            self._leave()
            if not taken:
                raise SessionEnded(self._ended)
        return Block(
            first_step=first,
            step_seconds=tuple(times),
            losses=tuple(losses),
            loader_wait_seconds=self._runner.program.loader_wait_seconds * taken,
            wall_seconds=self._runner.now - began,
            steps=taken,
        )

    def profile(self) -> Profile | None:
        self._alive("profile")
        self._steps += 1
        self._runner.pass_time(self._runner.program.step_seconds)
        return self._runner.program.profile

    def peek(self) -> Outcome:
        self._alive("peek")
        return self._outcome(State.COMPLETED, "")

    def stop(self) -> Outcome:
        if self._ended is None:
            self._before("stop")
            self._ended = self._outcome(State.COMPLETED, "")
            self._leave()
        return self._ended

    def kill(self) -> None:
        if self._ended is None:
            self._ended = self._outcome(State.FAILED, "killed")
        self._leave()

    # inside

    def _before(self, what: str) -> None:
        if self._runner.before is not None:
            self._runner.before(what, self)

    def _alive(self, what: str) -> None:
        if self._ended is not None:
            raise SessionEnded(self._ended)
        self._before(what)

    def _leave(self) -> None:
        if self in self._runner.live:
            self._runner.live.remove(self)

    def _end(self, state: State, reason: str, error: str = "") -> None:
        self._ended = self._outcome(state, reason, error)
        self._leave()
        raise SessionEnded(self._ended)

    def _peak_bytes(self) -> int:
        factor = math.prod(technique.memory_factor for technique in self._techniques.values())
        return int(self._runner.program.peak_bytes * factor)

    def _step_may_fail(self) -> None:
        program = self._runner.program
        if self._steps == 0:
            extra = sum(self._extra_start(name) for name in self._techniques)
            # it has been on its way since it was started
            self._runner.pass_time(max(0.0, self._began + program.start_seconds + extra - self._runner.now))
            self._first_step_at = self._runner.now
        if program.fails and self._steps >= program.fails_at:
            self._end(State.FAILED, f"the program failed with {program.fails}", program.fails)
        if sum(session._peak_bytes() for session in self._runner.live) > program.device_bytes:
            self._end(State.FAILED, "out of memory", "OutOfMemory")
        for name, technique in self._techniques.items():
            if technique.refuses:
                self._end(State.FAILED, f"{name}: {technique.refuses}", "TechniqueInactive")
            if technique.fails and self._steps >= 4:
                self._end(State.FAILED, f"{name} ended the program", technique.fails)

    def _extra_start(self, name: str) -> float:
        technique = self._techniques[name]
        if technique.warm_start_seconds is not None and name in self._runner.warm:
            return technique.warm_start_seconds
        self._runner.warm.add(name)
        return technique.start_seconds

    def _step_seconds(self) -> float:
        program = self._runner.program
        self._noise = program.correlation * self._noise + self._random.gauss(
            0.0, program.noise * math.sqrt(1.0 - program.correlation**2)
        )
        factor = 1.0
        for choice in self._request.plan.choices:
            technique = self._techniques[choice.name]
            dynamic = choice.settings.get("dynamic") and technique.variant_factor is not None
            factor *= cast(float, technique.variant_factor) if dynamic else technique.factor
        names = set(self._techniques)
        for together, further in program.interactions.items():
            if together <= names:
                factor *= further
        if self._played is not None:
            seconds = program.step_seconds * factor * next(self._played)
            return seconds * (program.warmup_factor if self._steps < program.warmup_steps else 1.0)
        wave = math.sin(2 * math.pi * self._runner.now / program.drift_period_seconds)
        if program.wander:
            kept = math.exp(-program.step_seconds * factor / program.wander_seconds)
            self._wander = kept * self._wander + self._random.gauss(
                0.0, program.wander * math.sqrt(1.0 - kept * kept)
            )
        seconds = program.step_seconds * factor * self._process * math.exp(self._noise + self._wander)
        seconds *= (1.0 + program.drift * wave) * (1.0 + program.growth * self._steps)
        if self._random.random() < program.spike_chance:
            seconds *= program.spike_factor
        if self._steps < program.warmup_steps:
            seconds *= program.warmup_factor
        return seconds

    def _loss(self, step: int) -> float:
        program = self._runner.program
        if program.nan_loss_from is not None and step >= program.nan_loss_from:
            return math.nan
        drawn = random.Random(f"{self._request.seed}/{step}")
        loss = 4.0 * math.exp(-step / 400.0) + drawn.gauss(0.0, program.loss_noise)
        if program.again_db is not None:
            loss += self._random.gauss(0.0, program.loss_noise)
        for technique in self._techniques.values():
            loss += technique.loss_shift_per_step * step
            if technique.nan_loss_from is not None and step >= technique.nan_loss_from:
                return math.nan
        return loss

    def _gradients(self) -> Gradients | None:
        if self._request.reference_role != "compare" or not self._steps:
            return None
        levels = [self._runner.program.again_db]
        missing: tuple[str, ...] = ()
        for technique in self._techniques.values():
            redraws = technique.redraws_db is not None and not self._request.randomness_off
            levels.append(technique.redraws_db if redraws else technique.gradients_db)
            missing += technique.missing
        known = [level for level in levels if level is not None]
        loss = self._loss(0)
        if not known:
            return Gradients(compared=4, equal=not missing, missing=missing, loss=loss, reference_loss=loss)
        level = min(known)
        return Gradients(
            compared=4,
            equal=False,
            worst_db=level - 6.0,
            worst_parameter="layers.0.weight",
            median_db=level + 1.0,
            overall_db=level,
            cosine=math.sqrt(max(0.0, 1.0 - 10 ** (-level / 10.0))),
            loss=loss,
            reference_loss=loss,
            missing=missing,
        )

    def _outcome(self, state: State, reason: str, error: str = "") -> Outcome:
        program = self._runner.program
        evidence: dict[str, dict[str, Any]] = {
            name: {"ran": False, "missing": technique.inactive} if technique.inactive else {"ran": True}
            for name, technique in self._techniques.items()
        }
        recompiling = sum(
            self._techniques[choice.name].recompiles_per_step
            for choice in self._request.plan.choices
            if not choice.settings.get("dynamic")
        )
        outcome = Outcome(
            state=state,
            reason=reason,
            error=error,
            child_error=program.child_error if error else "",
            steps=self._steps,
            step_seconds=tuple(self._counted),
            losses=tuple(self._losses),
            startup_seconds=max(0.0, self._first_step_at - self._began),
            warmup_seconds=max(0.0, self._first_step_at - self._began),
            loader_wait_seconds_per_step=program.loader_wait_seconds,
            peak_bytes=self._peak_bytes(),
            recompiles=int(recompiling * self._steps),
            discovery=self.discovery,
            gradients=self._gradients(),
            active=evidence,
            isolation="none: played",
        )
        return replace(outcome, profile=program.profile if not self._request.plan else None)
