"""The bench: what every part of a search shares.

Runner, ledger, clock and budget, what the baseline showed, and the processes that live. A ``Process``
is one of them from its start to its record in the ledger; whatever ends a search calls ``kill_all``.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flatout.codec import to_plain
from flatout.errors import FlatoutError
from flatout.guard.whole import Reference
from flatout.host import Host, Interpreter
from flatout.ledger import Ledger
from flatout.pace import pace, wait_of
from flatout.plan import Choice, Plan
from flatout.room import gpu_room_bytes, host_room_bytes
from flatout.runners import GuardTrial, Request, Runner, Session, SessionEnded
from flatout.search.ahead import Ahead
from flatout.search.bounds import Bound, bound_of
from flatout.search.options import SearchOptions
from flatout.search.progress import Phase, Progress
from flatout.search.record import nth
from flatout.surroundings import Reading, Usual, Watcher
from flatout.technique import Technique
from flatout.techniques.order import conflict, in_order
from flatout.trial import Block, Gradients, Outcome, Profile, State, Trial, Verdict
from flatout.workload import Discovery

LOSSES_KEPT = 2000
"""Losses stored with a trial; the guard looks at the first hundred."""
CONTEXT_BYTES = 1 << 30
"""Of GPU memory that a process takes beyond its tensors: context, kernels, library workspaces."""
HELD_SECONDS = 1.2
"""NVML tells the use of up to the last second."""
HELD_USE_PERCENT = 5
SLOW_STEP_SECONDS = 2.0
"""From there on two or three steps must do where others take many."""
WARM_UP_STEPS, SLOW_WARM_UP_STEPS = 12, 4
"""Estimates."""
FIRST_STEP_SECONDS = 30.0
"""The untouched program may take so long to its first step, however small the budget."""
LEAST_STEP_SECONDS = 5.0
TELLING_START_SECONDS = 5.0
"""Processes that start together hold each other up by some seconds."""
ASSUMED_START_SECONDS = {"compile": 45.0}
"""Beyond the baseline's start, until it has been measured once."""
WARM_SHARE = 0.4
"""Of what it added to a first process: of a later one with the same graph, which finds the caches warm,
until that has been measured."""


class Process:
    """One live process of the program under a plan. Ends with exactly one trial in the ledger."""

    def __init__(self, bench: Bench, request: Request, session: Session) -> None:
        self._bench = bench
        self._session = session
        self._began = bench.clock()
        self._started = bench.unix_time()
        self.key = request.key
        self.plan = request.plan
        self.steps = 0
        self.counted: list[float] = []
        self.losses: list[tuple[int, float]] = []
        self.settled = True
        """False when its warm-up never came to rest."""
        self.recompiles_warm = 0
        """Recompiles counted when its warm-up was over."""
        self.guard = request.guard
        self.timed = request.guard is None
        """Its steps are looked at for their time."""
        self.alive = True
        self.failed = ""
        """Class in errors.py with which it has ended."""
        self.recorded = False
        self._own_end: Outcome | None = None
        """Set where the program ended between two calls; its trial is then written by record or close."""

    @property
    def discovery(self) -> Discovery | None:
        return self._session.discovery

    def advance(self, steps: int, comparison: str = "") -> Block:
        """More steps. The raw block goes to the ledger first when it is part of a comparison.

        SessionEnded when the process is gone; its trial is then written already.
        """
        if self.timed:
            self._bench.ahead.arrive(self)
        try:
            block = self._session.advance(steps)
        except SessionEnded as end:
            self._left(end.outcome)
            raise
        if block.steps == 0:
            outcome = self._session.stop()
            self._left(outcome)
            raise SessionEnded(outcome)
        self.steps += block.steps
        self.counted += block.step_seconds
        self.losses += block.losses
        if comparison:
            self._bench.ledger.add_block(
                self._bench.search, trial=self.key, comparison=comparison, block=replace(block, losses=())
            )
        return block

    def profile(self) -> Profile | None:
        try:
            profile = self._session.profile()
            self.steps += 1
            return profile
        except SessionEnded as end:
            self._left(end.outcome)
            raise

    def peek(self) -> Outcome:
        """What it has shown so far; everything, where the program has just come to its own end."""
        if self._own_end is not None:
            return self._own_end
        try:
            return self._session.peek()
        except SessionEnded as end:
            if not came_to_its_end(end.outcome):
                self._left(end.outcome)
                raise
            self.alive = False
            self._own_end = end.outcome
            self._bench.program_ended(self.steps, end.outcome)
            return end.outcome

    def completed(self) -> Outcome:
        """What it has shown so far, as that of a trial which did what it was started for."""
        outcome = self.peek()
        return replace(
            outcome,
            state=State.COMPLETED,
            step_seconds=outcome.step_seconds or tuple(self.counted),
            losses=outcome.losses or tuple(self.losses),
        )

    def shown(self) -> Outcome:
        """What it has shown of its needs; of the untouched program, while it is on its way to its first
        step."""
        if not self.steps and self._bench.baseline is not None:
            return self._bench.baseline
        try:
            return self.peek()
        except SessionEnded as end:
            return end.outcome

    def record(self, outcome: Outcome) -> Trial:
        """Write its trial while it still lives: what it was started for is known."""
        trial = self._trial(outcome)
        self._bench.add_trial(trial)
        self.recorded = True
        return trial

    def close(self) -> None:
        """End it in an orderly way and write its trial, if that is not done. Safe to call twice."""
        outcome = self._stopped()
        if outcome is not None:
            self._left(outcome)

    def fail(self, reason: str, error: str) -> None:
        """End it and write it down as failed for a reason that only the search sees."""
        outcome = self._stopped()
        if outcome is not None:
            self._left(replace(outcome, state=State.FAILED, reason=reason, error=error))

    def _stopped(self) -> Outcome | None:
        """What it has shown, ended in an orderly way; None where that is written down already."""
        if self._own_end is not None:
            outcome, self._own_end = self._own_end, None
            return outcome
        if not self.alive:
            return None
        try:
            return self._session.stop()
        except SessionEnded as end:
            return end.outcome

    def kill(self) -> None:
        """End it now; nothing is written."""
        self._session.kill()
        self.alive = False

    def _left(self, outcome: Outcome) -> None:
        if self.failed:
            return  # told before, when it failed ahead of its turn
        self.alive = False
        if outcome.state is State.FAILED:
            self.failed = outcome.error or "failed"
        self._bench.live = [process for process in self._bench.live if process is not self]
        if outcome.state is State.COMPLETED and outcome.reason and outcome.steps:
            self._bench.program_ended(self.steps, outcome)
        if self.recorded:
            brief = replace(outcome, step_seconds=(), losses=(), profile=None, discovery=None)
            self._bench.note("ended", {"key": self.key, "outcome": to_plain(brief)})
        else:
            self._bench.add_trial(self._trial(outcome))
            self.recorded = True

    def _trial(self, outcome: Outcome) -> Trial:
        return Trial(
            key=self.key,
            plan=self.plan,
            outcome=replace(outcome, losses=outcome.losses[:LOSSES_KEPT]),
            started=self._started,
            seconds=self._bench.clock() - self._began,
        )


def came_to_its_end(outcome: Outcome) -> bool:
    """The program ended by itself, without an error."""
    return outcome.state is State.COMPLETED and not outcome.error


class Bench:
    """See the module."""

    def __init__(
        self,
        *,
        runner: Runner,
        ledger: Ledger,
        search: int,
        host: Host,
        interpreter: Interpreter,
        options: SearchOptions,
        catalogue: Sequence[Technique],
        tell: Callable[[Progress], None],
        clock: Callable[[], float],
        unix_time: Callable[[], float],
        watcher: Callable[[Host, str, int], Watcher] | None = None,
    ) -> None:
        self.runner = runner
        self.ledger = ledger
        self.search = search
        self.host = host
        self.interpreter = interpreter
        self.options = options
        self.catalogue = {technique.name: technique for technique in in_order(catalogue)}
        """In order of application."""
        self.clock = clock
        self.unix_time = unix_time
        self._tell = tell
        self._began = clock()
        self._spent_before = ledger.spent_seconds(search)
        self.reserved_seconds = 0.0
        """Of the budget, kept for what comes after the search itself (--quality)."""
        self.trials = ledger.trials(search)
        self.verdicts = ledger.verdicts(search)
        self._notes = {(event.kind, str(event.data)) for event in ledger.events(search)}
        self._started_keys = set(self.trials)
        self._verdict_calls: dict[str, int] = {}
        self._watcher = watcher
        self._watch: Watcher | None = None
        self.usual: Usual | None = None
        """What is ordinary around the untouched program's own turns; None: not known."""
        self.live: list[Process] = []
        self.ahead = Ahead(self)
        # before any process of the search lives: what others leave of the memory
        self._host_room = host_room_bytes() or host.memory_bytes
        self._gpu_room = (gpu_room_bytes(host.gpus[0].uuid) if host.gpus else None) or sys.maxsize

        self.phase = Phase.BASELINE
        self.best = Plan()
        self.best_ratio: float | None = None
        self.decided: set[str] = set()
        self.total = 0

        self.discovery: Discovery | None = None
        self.baseline: Outcome | None = None
        self.baseline_losses: Sequence[tuple[int, float]] = ()
        self.baseline_step_seconds = 0.0
        self.waiting = False
        """The untouched program waits for its loader: see flatout.pace."""
        self.block_medians: list[float] = []
        """Of the untouched program, in seconds: what candidates are screened against."""
        self.correlation = 1.0
        """Autocorrelation time of its steps, in steps."""
        self.guard_reference: Reference | None = None
        """What the untouched program's guard trials told (search/guarding.py)."""
        self.floor: Gradients | None = None
        """Agreement of two unchanged runs."""
        self.again_losses: Sequence[tuple[int, float]] = ()
        self.process_noise = 0.0
        """How far apart two unchanged processes were, as a logarithm."""
        self.resident = True
        """Two processes may live side by side."""
        self.aligned = False
        """Both sides of a comparison take the same steps of the program, since its step times change as it
        goes on."""
        self.program_steps: int | None = None
        """Steps after which the program ends by itself, once seen."""
        self.extra_start_seconds: dict[str, float] = {}

    # time

    def elapsed(self) -> float:
        """Seconds of search, earlier sittings included."""
        return self._spent_before + self.clock() - self._began

    def left(self) -> float:
        return self.options.budget_seconds - self.elapsed() - self.reserved_seconds

    def pace(self, times: Sequence[float]) -> float:
        """Seconds of one step, from counted ones."""
        assert self.baseline is not None
        wait = self.baseline.loader_wait_seconds_per_step if self.waiting else None
        return pace(times, wait_seconds=wait)

    def pace_of(self, block: Block) -> float:
        """Seconds of one step in a turn."""
        return pace(block.step_seconds, wait_seconds=wait_of(block) if self.waiting else None)

    def start_seconds(self, plan: Plan) -> float:
        """Estimate of a process's time until it is warm."""
        assert self.baseline is not None
        extra = sum(self._extra_start_of(name, plan) for name in plan.names)
        step = self.baseline_step_seconds
        steps = WARM_UP_STEPS if step < SLOW_STEP_SECONDS else SLOW_WARM_UP_STEPS
        return self.baseline.startup_seconds + extra + steps * step

    def extra_start(self, name: str) -> float:
        """Seconds that a technique adds to the start, measured or assumed."""
        return self.extra_start_seconds.get(name, ASSUMED_START_SECONDS.get(name, 0.0))

    def learn_start(self, name: str, outcome: Outcome) -> None:
        """From the first process with a technique: later ones find the caches warm."""
        if self.baseline is None or not outcome.startup_seconds or name in self.extra_start_seconds:
            return
        extra = outcome.startup_seconds - self.baseline.startup_seconds
        self.extra_start_seconds[name] = extra if extra >= TELLING_START_SECONDS else 0.0

    def _extra_start_of(self, name: str, plan: Plan) -> float:
        """The same for a plan whose graph may have been compiled before."""
        extra = self.extra_start(name)
        if name not in ASSUMED_START_SECONDS or self.baseline is None:
            return extra
        graph = self._graph(name, plan)
        starts = [
            max(0.0, trial.outcome.startup_seconds - self.baseline.startup_seconds)
            for trial in self.trials.values()
            if trial.outcome.startup_seconds and self._graph(name, trial.plan) == graph
        ]
        if len(starts) > 1:
            return min(extra, max(starts[1:]))
        return WARM_SHARE * extra if starts else extra

    def _graph(self, name: str, plan: Plan) -> frozenset[str]:
        """What a compiler makes its graph of: itself and what is applied before it. Empty without it."""
        if name not in plan.names:
            return frozenset()
        seen = {name, *self.technique(name).after}
        return frozenset(str(choice) for choice in plan.choices if choice.name in seen)

    # surroundings

    def reading(self) -> Reading | None:
        """What surrounds the programs now: to be taken around every turn. None where nothing watches, or
        while the device is not known yet."""
        if self._watch is None:
            if self._watcher is None or self.discovery is None:
                return None
            self._watch = self._watcher(self.host, self.discovery.device, self.discovery.world_size)
        return self._watch.read()

    def note_held_use(self) -> None:
        """How busy the GPU is while every process of ours holds still: what somebody else does there."""
        reading = self.reading()
        if reading is None or not reading.gpus or self.ledger.events(self.search, "held"):
            return
        assert self._watch is not None
        time.sleep(HELD_SECONDS)
        use = self._watch.gpu_use()
        self.note("held", {"use_percent": use})
        if use is not None and use >= HELD_USE_PERCENT:
            text = f"the GPU is {use} % busy while none of this search's processes runs: others use it"
            self.say(text, milestone=True)

    # telling

    def say(self, text: str, *, milestone: bool = False) -> None:
        self._tell(
            Progress(
                phase=self.phase,
                text=text,
                milestone=milestone,
                best=self.best,
                best_ratio=self.best_ratio,
                baseline_step_seconds=self.baseline_step_seconds or None,
                elapsed_seconds=self.elapsed(),
                budget_seconds=self.options.budget_seconds,
                done=len(self.decided),
                total=self.total,
            )
        )

    # writing down

    def note(self, kind: str, data: dict[str, Any]) -> None:
        """An event, written once however often the search passes here after a resume."""
        known = (kind, str(data))
        if known not in self._notes:
            self._notes.add(known)
            self.ledger.add_event(self.search, kind, data, at=self.elapsed())

    def add_trial(self, trial: Trial) -> None:
        self.ledger.add_trial(self.search, trial, at=self.elapsed())
        self.trials[trial.key] = trial

    def skip(self, key: str, plan: Plan, reason: str) -> None:
        """A trial that is not started, with its reason."""
        if key not in self.trials:
            outcome = Outcome(state=State.SKIPPED, reason=reason)
            self.add_trial(Trial(key=key, plan=plan, outcome=outcome, started=self.unix_time()))

    def add_verdict(self, verdict: Verdict) -> Verdict:
        self.ledger.add_verdict(self.search, verdict, at=self.elapsed())
        self.verdicts[verdict.key] = verdict
        return verdict

    def verdict_key(self, key: str) -> str:
        """By how often it was asked for; the same calls give the same keys after a resume."""
        count = self._verdict_calls[key] = self._verdict_calls.get(key, 0) + 1
        return nth(key, count)

    # processes

    def start(
        self,
        key: str,
        plan: Plan,
        *,
        reference_role: str | None = "compare",
        randomness_off: bool = False,
        guard: GuardTrial | None = None,
        seed: int | None = None,
        reserve_seconds: float = 0.0,
    ) -> Process:
        """A new process; it has taken no step yet. ``reserve_seconds`` of the budget stay untouched: the
        first step ends when the rest is used up (a compile that takes for ever)."""
        usual = reference_role == "compare" and not randomness_off and seed is None
        if guard is not None or usual:
            process = self.ahead.take(key, plan, guard)
            if process is not None:
                return process
        names = (nth(key, number) for number in itertools.count(1))
        unique = next(name for name in names if name not in self._started_keys)
        self._started_keys.add(unique)
        floor = FIRST_STEP_SECONDS if self.baseline is None else LEAST_STEP_SECONDS
        left = max(floor, self.left() - reserve_seconds)
        request = Request(
            key=unique,
            plan=plan,
            seed=self.options.trial_seed if seed is None else seed,
            discovery=self.discovery,
            reference_role=reference_role,
            randomness_off=randomness_off,
            guard=guard,
            time_limit_seconds=max(60.0, self.left() + 60.0),
            step_limit_seconds=min(self.options.step_limit_seconds, left),
        )
        self.note("started", {"key": unique, "plan": plan.key})
        self.say(f"starting {plan.key}")
        session = self.runner.start(request, lambda text: self.say(f"{plan.key}: {text}"))
        process = Process(self, request, session)
        self.live.append(process)
        return process

    def kill_all(self) -> None:
        """End every process now. Safe at any time."""
        for process in self.live:
            try:
                process.kill()
            except Exception as error:  # the others must be ended all the same
                self._not_ended(process.key, error)
        self.live = []

    def clear(self) -> None:
        """End every process in an orderly way: none takes memory any more. What is needed starts again."""
        self.ahead.keep_only()
        for process in [process for process in self.live if process.alive]:
            process.close()

    def close(self) -> None:
        """End every process and let go of what watches their surroundings. Safe to call twice."""
        self.kill_all()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _not_ended(self, key: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(FlatoutError):  # the ledger itself may be what failed
            self.note("not_ended", {"key": key, "error": text})
        self.say(f"the process of {key} could not be ended: {text}", milestone=True)

    def program_ended(self, steps: int, outcome: Outcome) -> None:
        """The program came to its own end."""
        seen = max(steps, outcome.steps)
        self.program_steps = seen if self.program_steps is None else min(seen, self.program_steps)

    def alternate(self, reason: str) -> None:
        """From now on fresh processes alternate; for that they do not live side by side."""
        self.resident = False
        self.note("apart", {"reason": reason})
        self.say(f"{reason}: starting them in turns instead", milestone=True)

    def holds(self, *plans: Outcome) -> bool:
        """Whether processes that take turns with these outcomes' memory may live side by side."""
        return self.resident and self.fits(*plans)

    def fits(self, *plans: Outcome) -> bool:
        """Whether processes with these outcomes' memory fit side by side; True where it is not known."""
        assert self.discovery is not None
        if self.discovery.device.startswith("cuda") and self.host.gpus:
            peaks = [plan.peak_bytes for plan in plans]
            # the caching allocator reserves more than it hands out
            need = sum(int(1.1 * peak) + CONTEXT_BYTES for peak in peaks)
            if all(peaks) and need > min(self.host.gpus[0].memory_bytes, self._gpu_room):
                return False
        peaks = [plan.host_peak_bytes for plan in plans]
        if all(peaks) and self.host.memory_bytes:
            return sum(peaks) <= 0.8 * min(self.host.memory_bytes, self._host_room)
        return True

    def technique(self, name: str) -> Technique:
        return self.catalogue[name]

    def bound(self, name: str, step_seconds: float) -> Bound | None:
        """The most that a technique can gain on top of a plan whose step takes ``step_seconds``."""
        if self.baseline is None:
            return None
        return bound_of(
            self.technique(name),
            baseline=self.baseline,
            host=self.host,
            usual_seconds=self.baseline_step_seconds,
            step_seconds=step_seconds,
        )

    def plan_of(self, choices: Sequence[Choice]) -> Plan:
        """A plan in the catalogue's order of application."""
        order = {name: index for index, name in enumerate(self.catalogue)}
        return Plan(choices=tuple(sorted(choices, key=lambda choice: order[choice.name])))

    def with_choice(self, plan: Plan, choice: Choice) -> Plan:
        """``plan`` with ``choice``, which takes the place of whatever excludes it."""
        mine = self.technique(choice.name)
        others = [
            other
            for other in plan.choices
            if other.name != choice.name and conflict(mine, self.technique(other.name)) is None
        ]
        return self.plan_of([*others, choice])

    def without(self, plan: Plan, name: str) -> Plan:
        return Plan(choices=tuple(choice for choice in plan.choices if choice.name != name))
