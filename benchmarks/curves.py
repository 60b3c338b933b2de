"""Which loss curves does the guard take for the untouched program's, and which not?

    python benchmarks/curves.py [--only gpt,conv] [--steps 100] [--unstable] [--work DIR]

Eight small programs on a CPU, each trained for some steps as it is, and then as an honest plan would (its
weights disturbed by 1e-6 and by 1e-3, other random numbers, bf16, the fused optimiser) and as a faulty one
would (learning rate off by a tenth and by 2 %, dropout lost). ``--unstable``: the same at 4, 10, 20 and 40
times the learning rate, where rounding grows to any size. Only the losses are judged (guard/curves.py).

One JSON line a pair: ``refused_at``, the lengths (8 to 100 steps) at which it is refused, and ``note`` at
the longest. The last line sums up. Exit code 1 where an honest one was refused at any length.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from empty_plan import HERE
from searching import say

sys.path.insert(0, str(HERE.parent / "tests"))

from faults.catalogue import ACTS, PROGRAMS, Fault
from faults.guarding import House
from flatout.guard.curves import judge_losses
from flatout.plan import Choice, Plan
from flatout.runners import SessionEnded
from flatout.search.bench import Bench
from flatout.techniques import TECHNIQUES

OWN = HERE.parent / "tests" / "programs"
COMMANDS = {
    "gpt": [str(PROGRAMS / "gpt.py")],
    "gpt-medium": [str(PROGRAMS / "gpt.py"), "--size", "medium"],
    "conv": [str(PROGRAMS / "conv.py")],
    "modulated": [str(PROGRAMS / "modulated.py")],
    "experts": [str(OWN / "experts.py")],
    "nil_gradients": [str(OWN / "nil_gradients.py")],
    "dropout": [str(OWN / "dropout.py")],
    "naive_gpt": [str(HERE.parent / "examples" / "naive_gpt" / "train.py")],
}
WITH_DROPOUT = ("gpt", "gpt-medium", "dropout")
LENGTHS = (8, 12, 16, 20, 30, 40, 60, 80, 100)
UNSTABLE = (4.0, 10.0, 20.0, 40.0)
VARIED = HERE.parent / "tests" / "faults" / "variations"
RATE = "times_learning_rate"
VARIATIONS = [
    Fault(name=name, program="", right="") for name in (RATE, "disturbed", "other_draws", "dropout_lost")
]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """One way to train otherwise."""

    name: str
    honest: bool
    rate: float = 1.0
    choice: Choice | None = None
    redrawn: bool = False
    dropout: bool = False
    """Only where the program has any."""


HONEST = (
    Variation(
        name="disturbed by 1e-6",
        honest=True,
        choice=Choice(name="disturbed", settings={"share": 1e-6, "seed": 1}),
    ),
    Variation(
        name="disturbed by 1e-3",
        honest=True,
        choice=Choice(name="disturbed", settings={"share": 1e-3, "seed": 2}),
    ),
    Variation(
        name="other draws", honest=True, choice=Choice(name="other_draws"), redrawn=True, dropout=True
    ),
    Variation(name="bf16", honest=True, choice=Choice(name="bf16")),
    Variation(name="fused_optimizer", honest=True, choice=Choice(name="fused_optimizer")),
)
FAULTY = (
    Variation(name="learning rate + 10 %", honest=False, rate=1.1),
    Variation(name="learning rate - 10 %", honest=False, rate=0.9),
    Variation(name="learning rate + 2 %", honest=False, rate=1.02),
    Variation(name="dropout lost", honest=False, choice=Choice(name="dropout_lost"), dropout=True),
)


def trained(
    bench: Bench, variation: Variation | None, rate: float, steps: int
) -> list[tuple[int, float]] | str:
    """Losses, or why there are none."""
    choices = [variation.choice] if variation is not None and variation.choice is not None else []
    factor = rate * (variation.rate if variation is not None else 1.0)
    if factor != 1.0:
        choices.append(Choice(name=RATE, settings={"factor": factor}))
    if choices and choices[0].name in {technique.name for technique in TECHNIQUES}:
        technique = bench.technique(choices[0].name)
        assert bench.discovery is not None
        unfit = technique.unfit(bench.discovery, bench.host, bench.interpreter)
        if unfit:
            return unfit
        choices[0] = Choice(name=choices[0].name, settings=technique.settings(bench.discovery, bench.host))
    plan = bench.plan_of(choices) if choices else Plan()
    process = bench.start(f"curve:{plan.key}", plan, reference_role=None)
    try:
        process.advance(steps)
        outcome = process.peek()
    except SessionEnded as end:
        return end.outcome.reason or "it ended"
    if bench.discovery is None:
        bench.discovery = outcome.discovery
    process.close()
    return process.losses


def judged(program: str, bench: Bench, rates: tuple[float, ...], steps: int) -> list[dict[str, Any]]:
    """One line for each variation at each learning rate."""
    lines = []
    for rate in rates:
        base = trained(bench, None, rate, steps)
        if isinstance(base, str):
            lines.append({"program": program, "rate": rate, "variation": "untouched", "why": base})
            say(**lines[-1])
            continue
        for variation in HONEST if rate != 1.0 else (*HONEST, *FAULTY):
            if variation.dropout and program not in WITH_DROPOUT:
                continue
            losses = trained(bench, variation, rate, steps)
            line: dict[str, Any] = {"program": program, "rate": rate, "variation": variation.name}
            line["honest"] = variation.honest
            if isinstance(losses, str):
                line["why"] = losses
            else:
                of = {
                    length: judge_losses(
                        [one for one in losses if one[0] <= length],
                        [one for one in base if one[0] <= length],
                        redrawn=variation.redrawn,
                    )
                    for length in LENGTHS
                    if length <= steps
                }
                line["refused_at"] = [length for length, one in of.items() if one.passed is False]
                line["note"] = of[max(of)].note
            say(**line)
            lines.append(line)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="names of programs, with commas")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--unstable", action="store_true")
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(COMMANDS)
    work = arguments.work or Path(tempfile.mkdtemp(prefix="flatout-curves-"))
    lines: list[dict[str, Any]] = []
    acts = work / "acts"
    shutil.copytree(VARIED, acts, dirs_exist_ok=True)
    shutil.copy(ACTS / "dropout_lost.py", acts)
    try:
        for name in names:
            folder = work / name
            folder.mkdir(parents=True, exist_ok=True)
            with House(
                [sys.executable, *COMMANDS[name]],
                [*VARIATIONS, *TECHNIQUES],
                cwd=folder,
                out=work / f"{name}.out",
                acts_dir=acts,
            ) as house:
                first = trained(house.bench, None, 1.0, 12)  # learns what the program is
                assert not isinstance(first, str), first
                rates = UNSTABLE if arguments.unstable else (1.0,)
                lines += judged(name, house.bench, rates, arguments.steps)
    finally:
        if arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
    told = [line for line in lines if "refused_at" in line]
    refused = [
        f"{line['program']}: {line['variation']} at {line['rate']:g} times its learning rate"
        for line in told
        if line["honest"] and line["refused_at"]
    ]
    faults = [line for line in told if not line["honest"]]
    say(
        benchmark="curves",
        honest=len(told) - len(faults),
        honest_refused=refused,
        faults=len(faults),
        faults_refused_at_60={
            variation.name: sum(
                line["variation"] == variation.name and 60 in line["refused_at"] for line in faults
            )
            for variation in FAULTY
        },
        not_run=sum("why" in line for line in lines),
    )
    return 1 if refused or not told else 0


if __name__ == "__main__":
    sys.exit(main())
