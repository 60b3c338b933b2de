"""Measuring one process: warm-up until its steps are steady, then blocks; and seats that keep it going.

The first step after a hold is never counted (the runner leaves it out): the device has idled and the
loader has run ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flatout.plan import Plan
from flatout.runners import SessionEnded
from flatout.search.bench import SLOW_STEP_SECONDS, Bench, Process, came_to_its_end
from flatout.stats import block_steps, median, steady
from flatout.trial import Block, Outcome, State

WARMUP_LIMIT_SECONDS = 45.0
"""Beyond the first step: a program that is not steady by then never will be."""
SHORT_PROGRAM_STEPS = 120
"""A program that ends within so many steps is warmed up and measured sparingly."""
LEAST_COUNTED_STEPS = 4
"""Of one process: fewer say nothing about its speed."""
MOST_RESTARTS = 24
TURN_SECONDS = 0.4
SHORT_TURN_SECONDS = 0.15


def warm_up(bench: Bench, process: Process) -> None:
    """Steps until eight slices show no trend that matters (Mann-Kendall), or the limit is reached.

    SessionEnded when the program fails or ends meanwhile.
    """
    if not process.steps:
        process.advance(1)
    short = bench.program_steps is not None and bench.program_steps <= SHORT_PROGRAM_STEPS
    if short:
        assert bench.program_steps is not None
        for_warmth = max(2, bench.program_steps // 5) - process.steps
        if for_warmth > 0:
            process.advance(for_warmth)
    elif not _warm_slow(bench, process):
        began = bench.clock()
        slices: list[float] = []
        steps = 9
        while True:
            block = process.advance(steps)
            times = block.step_seconds
            if times:
                size = max(1, len(times) // 8)
                slices += [median(times[i : i + size]) for i in range(0, len(times) - size + 1, size)]
                # 0.6 s at least of fast programs
                steps = max(9, min(400, math.ceil(0.6 / max(median(times), 1e-6))))
            waited = bench.clock() - began
            if (waited >= 0.5 or len(slices) >= 24) and steady(slices, last=8):
                break
            if waited >= WARMUP_LIMIT_SECONDS:
                process.settled = False
                break
            bench.say(f"{process.plan.key}: warming up, {process.steps} steps")
    process.recompiles_warm = process.peek().recompiles


def _warm_slow(bench: Bench, process: Process) -> bool:
    """Two steps, and two more where they do not take very long. False where they are so short that this
    was no warm-up."""
    began = bench.clock()
    process.advance(2)
    step = (bench.clock() - began) / 2
    if step < SLOW_STEP_SECONDS:
        return False
    if step < 5 * SLOW_STEP_SECONDS:
        process.advance(2)
    return True


def steps_of_block(bench: Bench, slower: float, faster: float) -> int:
    """Steps of one block of a comparison, from the two step times in seconds.

    About 0.4 s of the slower and 0.2 s of the faster side, and at least 4 steps; fewer where a step takes
    seconds, or where the program itself is short. Where the speed wanders over longer than that, shorter
    ones: what wanders is mostly the machine, which then falls on both sides alike, and what is left of it
    in the ratios is merged (sequential.py).
    """
    turn = SHORT_TURN_SECONDS if wanders(bench) else TURN_SECONDS
    steps = block_steps(slower, target_seconds=turn)
    steps = max(
        steps, min(math.ceil(turn / 2 / max(faster, 1e-6)), math.ceil(6 * turn / max(slower, 1e-6)))
    )
    if slower > SLOW_STEP_SECONDS:
        steps = 2
    workers = _workers(bench) if bench.waiting else 0
    if workers > 1 and workers * slower <= 10 * turn:
        # whole bursts of batches, and the first step, which is not counted
        steps = workers * math.ceil((steps - 1) / workers) + 1
    if bench.program_steps is not None:
        rest = bench.program_steps - max(2, bench.program_steps // 5)
        steps = max(2, min(steps, rest // 2))
    return steps


def wanders(bench: Bench) -> bool:
    """Whether step times depend on each other over longer than a usual turn can even out. Not asked where
    the loader sets the pace: its bursts do."""
    if bench.waiting:
        return False
    return 3 * bench.correlation * bench.baseline_step_seconds > TURN_SECONDS


def settle_steps(bench: Bench) -> int:
    """Steps to throw away before a block: what loader workers prepared while the process held.

    Only where the loader matters; else the time is better spent on measuring. Where the runner stops the
    one that holds with all its workers that is one batch each: what a worker waited for, such as a read,
    is there when it goes on.
    """
    if not bench.waiting:
        return 0
    if bench.runner.stops_idle:
        return min(16, _workers(bench))
    assert bench.discovery is not None
    depths = [
        _number(loader.get("num_workers")) * max(1, _number(loader.get("prefetch_factor")))
        for loader in bench.discovery.loaders
    ]
    return min(16, max(depths, default=0))


def _workers(bench: Bench) -> int:
    assert bench.discovery is not None
    return max((_number(loader.get("num_workers")) for loader in bench.discovery.loaders), default=0)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class Beaten(Exception):
    """The process of a seat failed by itself; ``outcome`` says how. Its trial is in the ledger."""

    def __init__(self, seat: Seat, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.seat = seat
        self.outcome = outcome


@dataclass
class Seat:
    """A plan that has a warm process whenever one is needed: started again when the program ends first."""

    bench: Bench
    plan: Plan
    key: str
    process: Process | None = None
    reserve_seconds: float = 0.0
    restarts: int = 0

    @property
    def alive(self) -> bool:
        """It has a process that lives."""
        return self.process is not None and self.process.alive

    def warm(self) -> Process:
        """The process, started and warmed up if there is none. Beaten when that fails."""
        known = self.bench.program_steps
        while self.process is None or not self.process.alive:
            if self.process is not None:
                self.process.close()
            self.process = self.bench.start(self.key, self.plan, reserve_seconds=self.reserve_seconds)
            try:
                warm_up(self.bench, self.process)
            except SessionEnded as end:
                if not came_to_its_end(end.outcome):
                    raise Beaten(self, end.outcome) from end
                if known == self.bench.program_steps:
                    raise Beaten(self, _too_short(end.outcome)) from end
                known = self.bench.program_steps  # once more, warmed up sparingly
        return self.process

    def block(self, steps: int, comparison: str, settle: int = 0) -> Block:
        """One block with at least half of its steps counted, from a fresh process if need be.

        Beaten when the program fails, or ends too early however often it is started.
        """
        while True:
            process = self.warm()
            try:
                if settle:
                    process.advance(settle)
                block = process.advance(steps, comparison)
                if len(block.step_seconds) >= max(1, (steps - 1) // 2):
                    return block
            except SessionEnded as end:
                if not came_to_its_end(end.outcome):
                    raise Beaten(self, end.outcome) from end
            self._restarted()

    def walk(self, steps: int) -> None:
        """Steps that nobody looks at. Beaten as in ``block``."""
        process = self.warm()
        try:
            process.advance(steps)
        except SessionEnded as end:
            if not came_to_its_end(end.outcome):
                raise Beaten(self, end.outcome) from end
            self._restarted()

    def _restarted(self) -> None:
        """Count a start that the program's own end made needed; Beaten where that never stops."""
        if self.process is not None:
            self.process.close()
        self.restarts += 1
        if self.restarts > MOST_RESTARTS:
            steps = self.bench.program_steps or 0
            raise Beaten(self, _too_short(Outcome(state=State.FAILED, steps=steps)))

    def step_seconds(self) -> float:
        """Of the latest counted steps, or the baseline's where there are none yet."""
        counted = self.process.counted if self.process is not None else []
        return self.bench.pace(counted[-40:]) if counted else self.bench.baseline_step_seconds

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None


def align(a: Seat, b: Seat) -> None:
    """Bring two warm seats to the same step of the program, by steps or a new start, whichever is shorter.

    Their blocks then stay together, since both sides of a comparison take the same number of steps.
    """
    bench = a.bench
    leader, other = (a, b) if a.warm().steps >= b.warm().steps else (b, a)
    behind = leader.warm().steps - other.warm().steps
    if behind * other.step_seconds() > bench.start_seconds(leader.plan):
        leader.close()
        leader.warm()
        leader, other = (a, b) if a.warm().steps >= b.warm().steps else (b, a)
        behind = leader.warm().steps - other.warm().steps
    while behind > 0:
        bench.say(f"{other.plan.key}: {behind} steps to where {leader.plan.key} is")
        other.walk(min(behind, 500))
        behind = leader.warm().steps - other.warm().steps


def _too_short(outcome: Outcome) -> Outcome:
    return replace(
        outcome,
        state=State.FAILED,
        error="TooFewSteps",
        reason=f"the program ended after {outcome.steps} steps, before it could be measured",
    )
