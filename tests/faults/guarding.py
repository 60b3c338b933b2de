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
from flatout.guard.whole import text_of
from flatout.ledger import Ledger
from flatout.plan import Choice, Plan
from flatout.runners.local import LocalRunner
from flatout.runners.seen import find_interpreter
from flatout.search.bench import Bench
from flatout.search.guarding import guard_plan, make_reference
from flatout.search.judge import fault_of
from flatout.search.options import SearchOptions
from flatout.stats import median
from flatout.technique import Technique
from flatout.techniques import TECHNIQUES
from flatout.trial import GuardReport, State
from flatout.workload import Workload

from .catalogue import ACTS, FAULTS, PROGRAMS, Fault

TIMED_STEPS = 60
"""Of the untouched program: what stands for a search's timing, and ends in the later checkpoint."""
INACTIVE = "TechniqueInactive"
LATE_COMPILER = Path(__file__).parents[1] / "programs" / "late_compiler.py"
"""Nearly halves what a short process takes; real sizes go without."""


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """What the guard said of one plan."""

    passed: bool | None
    """None: it could not judge."""
    reason: str
    seconds: float
    unfit: bool = False
    """It could not be applied there."""
    report: GuardReport | None = None


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
        """The untouched program: what it is, and what it and its truth tell at the guarded steps."""
        if self._ready:
            return
        bench = self.bench
        process = bench.start("baseline", Plan(), reference_role="save")
        process.advance(self.timed_steps)
        outcome = replace(process.peek(), state=State.COMPLETED)
        assert outcome.discovery is not None, "its steps were not understood"
        bench.discovery, bench.baseline = outcome.discovery, outcome
        bench.baseline_step_seconds = median(process.counted)
        process.record(outcome)
        process.close()  # it writes down the weights of the late point
        self.reference = make_reference(bench)
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
        report = guard_plan(bench, plan)
        assert report is not None, "this runner has no guard"
        trial = bench.trials.get(f"guard:{plan.key}")
        if trial is None or trial.outcome.state is State.FAILED:
            reason = trial.outcome.reason if trial else "; ".join(report.unchecked)
            return told(None, reason, unfit=trial is not None and trial.outcome.error == INACTIVE)
        fault = fault_of(bench, plan, trial.outcome)
        if fault is not None:
            return told(None, fault.reason, unfit=True)
        return replace(told(report.passed, text_of(report)), report=report)


def is_right(fault: Fault, guarded: Guarded) -> bool:
    """Refused, and what is named first is the true reason."""
    faults = guarded.report.faults if guarded.report is not None else ()
    return bool(faults) and re.search(fault.right, faults[0]) is not None


def house_of(
    program: str,
    root: Path,
    *,
    arguments: tuple[str, ...] = (),
    device: str = "cpu",
    size: str = "small",
    timed_steps: int = TIMED_STEPS,
) -> House:
    """A house of one of the faults' programs, with the faults that go with it and the honest techniques."""
    name = "-".join([program, *(word.strip("-") for word in arguments)])
    work = root / name
    work.mkdir(parents=True, exist_ok=True)
    words = ["--device", device, "--size", size, *arguments]
    late = [str(LATE_COMPILER)] if size == "small" else []
    return House(
        [sys.executable, *late, str(PROGRAMS / f"{program}.py"), *words],
        [*(f for f in FAULTS if (f.program, f.arguments) == (program, arguments)), *TECHNIQUES],
        cwd=work,
        out=root / f"{name}.out",
        acts_dir=ACTS,
        timed_steps=timed_steps,
    )


def houses() -> list[tuple[str, tuple[str, ...]]]:
    """(program, arguments) of all faults, each once."""
    return list(dict.fromkeys((fault.program, fault.arguments) for fault in FAULTS))
