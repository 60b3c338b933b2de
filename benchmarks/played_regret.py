"""How far are the plans of searches over played programs from the best of all combinations?

    python benchmarks/played_regret.py [--programs 90] [--first 0] [--budget 480]

Each program is drawn at random (by its number): five techniques with gains of up to some times or losses
of some per cent, pairs of them further apart or closer together than their product, one that is dear to
start, two that exclude each other; and the noise that tests play. The search measures as ever; the plan is
then judged by what was played, without any noise.

Prints a line for each program whose plan is more than 0.5 % from the best, and one that sums up. Exit code
1 when more than one plan in twenty is more than 3 % from the best.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from searching import say

NAMES = ("tf32", "bf16", "sdpa", "compile", "fused_optimizer")
BAR = 0.03


def drawn(number: int) -> Any:
    """The program of that number."""
    from flatout.runners.mock import MockProgram, MockTechnique

    draw = random.Random(number)
    techniques = {}
    for name in NAMES:
        gains = draw.random() < 0.6
        techniques[name] = MockTechnique(
            factor=math.exp(-abs(draw.gauss(0.0, 0.5)) if gains else abs(draw.gauss(0.0, 0.05))),
            expected=draw.choice((1.03, 1.4, 2.0)),
            start_seconds=20.0 if name == "compile" else 0.0,
            slot="precision" if name in ("tf32", "bf16") else "",
        )
    interactions = {
        frozenset(pair): math.exp(draw.gauss(0.0, 0.12))
        for pair in itertools.combinations(NAMES, 2)
        if draw.random() < 0.4
    }
    return MockProgram(techniques=techniques, interactions=interactions, process_noise=0.002)


def factor(program: Any, names: tuple[str, ...]) -> float:
    """Of the step's time, without any noise."""
    together = [further for group, further in program.interactions.items() if group <= set(names)]
    return math.prod([program.techniques[name].factor for name in names] + together)


def best_of(program: Any) -> tuple[str, ...]:
    combinations = [
        names
        for size in range(len(NAMES) + 1)
        for names in itertools.combinations(NAMES, size)
        if not {"tf32", "bf16"} <= set(names)
    ]
    return min(combinations, key=lambda names: factor(program, names))


def search_in(folder: Path, number: int, budget_seconds: float) -> Any:
    """The report of a search over the program of that number."""
    from flatout.host import Host, Interpreter
    from flatout.ledger import Ledger
    from flatout.runners.mock import MockRunner
    from flatout.search.options import SearchOptions
    from flatout.search.train import search
    from flatout.workload import Workload

    program = drawn(number)
    runner = MockRunner(program, seed=number)
    (folder / "train.py").write_text("played\n")
    with Ledger(folder / "ledger.sqlite") as ledger:
        return search(
            Workload(command=("python", "train.py"), cwd=str(folder), environment={}),
            Host(system="Linux", cpu="played", cpu_count=2, memory_bytes=1 << 36),
            Interpreter(executable="python", version="3.12.1", site_packages=(), torch_version="2.13.0"),
            runner,
            ledger,
            SearchOptions(budget_seconds=budget_seconds),
            catalogue=program.catalogue(),
            clock=runner.clock,
        )


def regret_of(number: int, budget_seconds: float) -> dict[str, Any]:
    program = drawn(number)
    best = best_of(program)
    with tempfile.TemporaryDirectory() as folder:
        report = search_in(Path(folder), number, budget_seconds)
    names = report.plan.names
    return {
        "program": number,
        "regret": factor(program, names) / factor(program, best) - 1.0,
        "plan": "+".join(names) or "baseline",
        "best": "+".join(best) or "baseline",
        "best_ratio": 1.0 / factor(program, best),
        "search_seconds": report.elapsed_seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=90)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--budget", type=float, default=480.0, help="played seconds of each search")
    arguments = parser.parse_args()
    began = time.monotonic()
    rows = []
    for number in range(arguments.first, arguments.first + arguments.programs):
        rows.append(regret_of(number, arguments.budget))
        if rows[-1]["regret"] > 0.005:
            say(**rows[-1])
    over = [row["program"] for row in rows if row["regret"] > BAR]
    say(
        benchmark="played_regret",
        programs=len(rows),
        mean=sum(row["regret"] for row in rows) / len(rows),
        worst=max(row["regret"] for row in rows),
        bar=BAR,
        over_bar=over,
        mean_search_seconds=sum(row["search_seconds"] for row in rows) / len(rows),
        seconds=round(time.monotonic() - began, 1),
    )
    return 1 if len(over) > len(rows) / 20 else 0


if __name__ == "__main__":
    sys.exit(main())
