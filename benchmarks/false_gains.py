"""Does a search claim a gain where there is none? Placebos: the baseline under fifteen other names.

    python benchmarks/false_gains.py [--searches 100] [--placebos 15] [--budget 30m] [--seed 0]
        [--noise tests/fixtures/noise]
    python benchmarks/false_gains.py --real 5 [--placebos 15] [--budget 2m] [--cwd DIR] -- python train.py

The first form plays searches on noise recorded from real processes, file by file in turn: whole processes
are drawn, with their own level, their wandering and their outliers (runners/playback.py). The second runs
whole searches of a real command with placebo techniques whose acts do nothing, on whatever device it takes.

Prints one JSON line a search that claimed something (all of them with ``--real``), and one that sums up:
``claimed`` counts searches that ended with a plan, ``better`` comparisons called better, ``worse`` those
called worse; bar: at most 1 search in 100 claims anything, none of 5 real ones. Exit code 1 above it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playing import NOISE, START_SECONDS, play, recordings
from searching import say

ACT = '''"""Does nothing."""

from .base import Act as _Base


class Act(_Base):
    name = "{name}"

    def evidence(self):
        return {{"planted": True}}
'''


@dataclass(frozen=True, kw_only=True)
class Placebo:
    """A technique that changes nothing."""

    name: str
    effect: Any
    shortens: Any
    title: str = "placebo"
    claimed: str = ""
    slot: str = ""
    after: tuple[str, ...] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)
    eclipsed_by: tuple[str, ...] = ()
    expected: float = 1.1
    accepts: Mapping[str, type] = field(default_factory=dict)

    def unfit(self, discovery: Any, host: Any, interpreter: Any) -> str | None:
        return None

    def settings(self, discovery: Any, host: Any) -> dict[str, object]:
        return {}

    def active(self, evidence: dict[str, object], discovery: Any) -> str | None:
        return None if evidence.get("planted") else "it was not planted"

    def by_hand(self, plan: Any, discovery: Any) -> str:
        return ""


def played_search(folder: Path, recording: Any, *, placebos: int, seed: int, budget_seconds: float) -> Any:
    """The report of one search over a played program."""
    from flatout.runners.mock import MockProgram, MockRunner, MockTechnique
    from flatout.search.options import SearchOptions

    program = MockProgram(
        step_seconds=recording.step_seconds,
        start_seconds=START_SECONDS,
        techniques={f"placebo{i}": MockTechnique(gradients_db=None) for i in range(placebos)},
        recording=recording,
    )
    options = SearchOptions(budget_seconds=budget_seconds, seed=seed)
    return play(folder, MockRunner(program, seed=seed), options)


def real_search(
    command: list[str], *, cwd: Path, out: Path, placebos: int, seed: int, budget_seconds: float
) -> Any:
    """The report of one search of a real command, placebos in place of the techniques."""
    import os

    from flatout.detect import detect_host
    from flatout.ledger import Ledger
    from flatout.runners.local import LocalRunner
    from flatout.runners.seen import find_interpreter
    from flatout.search.options import SearchOptions
    from flatout.search.train import search
    from flatout.surroundings import Watch
    from flatout.technique import Effect, Part
    from flatout.workload import Workload

    acts = out / "acts"
    acts.mkdir(parents=True)
    names = [f"placebo{index}" for index in range(placebos)]
    for name in names:
        (acts / f"{name}.py").write_text(ACT.format(name=name), encoding="utf-8")
    workload = Workload(command=tuple(command), cwd=str(cwd), environment=dict(os.environ))
    interpreter = find_interpreter(workload, out_dir=out, isolation="auto")
    host = detect_host()
    with (
        Ledger(out / "ledger.sqlite") as ledger,
        LocalRunner(
            workload=workload,
            interpreter=interpreter,
            out_dir=out,
            has_gpu=bool(host.gpus),
            acts_dir=acts,
        ) as runner,
    ):
        return search(
            workload,
            host,
            interpreter,
            runner,
            ledger,
            SearchOptions(budget_seconds=budget_seconds, seed=seed),
            lambda progress: (
                print(f"  [{progress.elapsed_seconds:6.1f}s] {progress.text}", file=sys.stderr)
                if progress.milestone
                else None
            ),
            catalogue=[Placebo(name=name, effect=Effect.ROUNDING, shortens=Part.STEP) for name in names],
            watcher=Watch,
        )


def line_of(report: Any) -> dict[str, Any]:
    """What one search said."""
    calls = Counter(v.call.name.lower() for v in report.verdicts if v.plan_a != v.plan_b)
    return {
        "plan": report.plan.key,
        "claimed": bool(report.plan),
        "calls": dict(calls),
        "smallest_effects": sorted(
            round(v.smallest_effect, 4)
            for v in report.verdicts
            if v.plan_a != v.plan_b and v.smallest_effect is not None
        ),
        "process_pairs": sum(len(v.process_pairs) for v in report.verdicts),
        "left_out": sum(len(v.left_out) for v in report.verdicts),
        "seconds": report.elapsed_seconds,
    }


def run_all(
    count: int, search_one: Callable[[int, Path], Any], *, tell_all: bool, labels: list[str]
) -> dict[str, Any]:
    """All searches; the sums."""
    totals: Counter[str] = Counter()
    claimed: Counter[str] = Counter()
    smallest: list[float] = []
    for number in range(count):
        label = labels[number % len(labels)]
        with tempfile.TemporaryDirectory() as folder:
            line = line_of(search_one(number, Path(folder)))
        totals.update(line["calls"])
        claimed[label] += line["claimed"]
        smallest += line["smallest_effects"]
        if tell_all or line["claimed"] or line["calls"].get("better") or line["calls"].get("worse"):
            say(search=number, noise=label, **line)
    smallest.sort()
    return {
        "searches": count,
        "claimed": sum(claimed.values()),
        "claimed_by_noise": dict(claimed),
        "comparisons": sum(totals.values()),
        "better": totals["better"],
        "worse": totals["worse"],
        "same": totals["same"],
        "unknown": totals["unknown"],
        "median_smallest_effect": smallest[len(smallest) // 2] if smallest else None,
    }


def main() -> int:
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--searches", type=int, default=100)
    parser.add_argument("--placebos", type=int, default=15)
    parser.add_argument("--budget", default="", help="of a search (default: 30m played, 2m real)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=Path, default=NOISE, help="a recording, or a folder of them")
    parser.add_argument("--real", type=int, default=0, metavar="N", help="N searches of COMMAND instead")
    parser.add_argument("--cwd", type=Path, default=Path())
    arguments = parser.parse_args(sys.argv[1:cut])
    command = sys.argv[cut + 1 :]
    from flatout.commands.arguments import duration_seconds

    budget = duration_seconds(arguments.budget or ("2m" if arguments.real else "30m"))
    began = time.monotonic()
    if arguments.real:
        result = run_all(
            arguments.real,
            lambda number, folder: real_search(
                command,
                cwd=arguments.cwd.resolve(),
                out=folder / "out",
                placebos=arguments.placebos,
                seed=arguments.seed + number,
                budget_seconds=budget,
            ),
            tell_all=True,
            labels=["real"],
        )
        allowed = 0
    else:
        found = recordings(arguments.noise)
        labels = list(found)
        result = run_all(
            arguments.searches,
            lambda number, folder: played_search(
                folder,
                found[labels[number % len(labels)]],
                placebos=arguments.placebos,
                seed=arguments.seed + number,
                budget_seconds=budget,
            ),
            tell_all=False,
            labels=labels,
        )
        allowed = max(1, arguments.searches // 100)
    say(
        benchmark="false_gains",
        real=bool(arguments.real),
        placebos=arguments.placebos,
        budget_seconds=budget,
        **result,
        seconds=time.monotonic() - began,
    )
    return 1 if result["claimed"] > allowed else 0


if __name__ == "__main__":
    sys.exit(main())
