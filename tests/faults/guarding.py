"""The guard alone, on one program and one plan after another: no search, and nothing is timed."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flatout import __version__
from flatout.detect import detect_host
from flatout.ledger import Ledger
from flatout.plan import Choice, Plan
from flatout.runners import SessionEnded
from flatout.runners.local import LocalRunner
from flatout.runners.seen import find_interpreter
from flatout.search.bench import Bench
from flatout.search.judge import fault_of, fault_of_end, judge_plan
from flatout.search.options import SearchOptions
from flatout.search.standing import Standing
from flatout.stats import median
from flatout.technique import Technique
from flatout.trial import State
from flatout.workload import Workload

from .catalogue import ACTS, FAULTS, PROGRAMS, Fault

TIMED_STEPS = 60
"""Of the untouched program: what stands for a search's timing, and ends in the later checkpoint."""
LOSS_STEPS = 30
"""Of every other process: enough for a curve."""


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """What the guard said of one plan."""

    passed: bool | None
    """None: it could not judge."""
    reason: str
    seconds: float
    unfit: bool = False
    """It could not be applied there."""


class House:
    """One untouched program, run once, and plans held against it."""

    def __init__(
        self,
        command: Sequence[str],
        catalogue: Iterable[Technique],
        *,
        cwd: Path,
        out: Path,
        acts_dir: Path | None = None,
        environment: dict[str, str] | None = None,
        timed_steps: int = TIMED_STEPS,
        budget_seconds: float = 3600.0,
    ) -> None:
        surroundings = {**os.environ, **(environment or {})}
        workload = Workload(command=tuple(command), cwd=str(cwd), environment=surroundings)
        out.mkdir(parents=True, exist_ok=True)
        interpreter = find_interpreter(workload, out_dir=out, isolation="auto")
        host = detect_host()
        self.timed_steps = timed_steps
        self.runner = LocalRunner(
            workload=workload,
            interpreter=interpreter,
            out_dir=out,
            has_gpu=bool(host.gpus),
            acts_dir=acts_dir,
        )
        self.ledger = Ledger(out / "ledger.sqlite")
        options = SearchOptions(budget_seconds=budget_seconds)
        self.bench = Bench(
            runner=self.runner,
            ledger=self.ledger,
            search=self.ledger.start_search(
                fingerprint="guard alone",
                workload=workload,
                host=host,
                interpreter=interpreter,
                options=options,
                version=__version__,
            ),
            host=host,
            interpreter=interpreter,
            options=options,
            catalogue=list(catalogue),
            tell=lambda progress: None,
            clock=time.monotonic,
            unix_time=time.time,
        )
        self._ready = False

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.kill_all()
        self.runner.close()
        self.ledger.close()

    def prepare(self) -> None:
        """The untouched program: what it is, its losses, and how far a second run of it agrees."""
        if self._ready:
            return
        bench = self.bench
        process = bench.start("baseline", Plan(), reference_role="save")
        process.advance(self.timed_steps)
        outcome = replace(process.peek(), state=State.COMPLETED, losses=tuple(process.losses))
        assert outcome.discovery is not None, "its steps were not understood"
        bench.discovery, bench.baseline = outcome.discovery, outcome
        bench.baseline_losses = outcome.losses
        bench.baseline_step_seconds = median(process.counted)
        process.record(outcome)
        process.close()
        again = bench.start("again", Plan())
        again.advance(LOSS_STEPS)
        shown = again.peek()
        bench.floor, bench.again_losses = shown.gradients, tuple(again.losses)
        again.record(shown)
        again.close()
        self._ready = True

    def guard(self, *names: str) -> Guarded:
        """What the guard says of a plan of these techniques, with their own settings."""
        self.prepare()
        bench = self.bench
        began = time.monotonic()

        def told(passed: bool | None, reason: str, *, unfit: bool = False) -> Guarded:
            seconds = time.monotonic() - began
            return Guarded(passed=passed, reason=reason, seconds=seconds, unfit=unfit)

        assert bench.discovery is not None
        choices = []
        for name in names:
            technique = bench.technique(name)
            unfit = technique.unfit(bench.discovery, bench.host, bench.interpreter)
            if unfit:
                return told(None, unfit, unfit=True)
            choices.append(Choice(name=name, settings=technique.settings(bench.discovery, bench.host)))
        plan = bench.plan_of(choices)
        process = bench.start(f"guarded:{plan.key}", plan)
        try:
            process.advance(LOSS_STEPS)
            outcome = process.peek()
        except SessionEnded as end:
            fault = fault_of_end(end.outcome)
            return told(None, fault.reason, unfit=fault.standing is Standing.REFUSED)
        process.record(outcome)
        process.close()
        fault = fault_of(bench, plan, outcome)
        if fault is not None:
            return told(None, fault.reason, unfit=True)
        judged = judge_plan(bench, plan, outcome, process.losses)
        return told(judged.passed, judged.note)


def is_right(fault: Fault, guarded: Guarded) -> bool:
    """Refused, and for the reason that is the true one."""
    return guarded.passed is False and re.search(fault.right, guarded.reason) is not None


def house_of(program: str, root: Path, *, device: str = "cpu", size: str = "small") -> House:
    """A house of one of the faults' programs, with all the faults that go with it."""
    work = root / program
    work.mkdir(parents=True, exist_ok=True)
    return House(
        [sys.executable, str(PROGRAMS / f"{program}.py"), "--device", device, "--size", size],
        [fault for fault in FAULTS if fault.program == program],
        cwd=work,
        out=root / f"{program}.out",
        acts_dir=ACTS,
    )
