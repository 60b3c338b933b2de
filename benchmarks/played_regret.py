"""How far are the plans of searches over played programs from the best of all combinations?

    python benchmarks/played_regret.py [--programs 90] [--first 0] [--budget 480] [--gpu]
    python benchmarks/played_regret.py --trace [--budget 300]

Each program is drawn at random (by its number): five techniques with gains of up to some times or losses
of some per cent, pairs of them further apart or closer together than their product, one that is dear to
start, two that exclude each other; and the noise that tests play. The search measures as ever; the plan is
then judged by what was played, without any noise.

``--gpu``: as on an H200: processes start in 10 s and compile in 45 s, a turn spreads by 0.1 %, processes
differ by 0.1 %, and the guard's trials are processes as all others.

``--trace`` plays nanoGPT as it was measured on an H200 (287 ms a step) and says what every comparison took
and where the seconds of the search went.

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
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from playing import nouns, play
from searching import say

NAMES = ("tf32", "bf16", "sdpa", "compile", "fused_optimizer")
BAR = 0.03


def nanogpt() -> Any:
    """The untuned GPT-2 124M of LOG.md, with each technique's gain there."""
    from flatout.runners.mock import MockProgram, MockTechnique

    return as_on_an_h200(
        MockProgram(
            step_seconds=0.286,
            techniques={
                "tf32": MockTechnique(factor=0.45, expected=2.0, eclipsed_by=("bf16",)),
                "bf16": MockTechnique(factor=0.307, expected=2.5),
                "sdpa": MockTechnique(factor=0.9, expected=1.5),
                "compile": MockTechnique(factor=0.79, expected=1.4),
                "fused_optimizer": MockTechnique(factor=0.95, expected=1.03),
            },
            interactions={
                frozenset(("bf16", "sdpa")): 0.41 / 0.9,
                frozenset(("bf16", "tf32")): 1.0 / 0.45,
            },
        ),
        compile_seconds=62.0,
    )


def as_on_an_h200(program: Any, *, compile_seconds: float = 45.0) -> Any:
    techniques = dict(program.techniques)
    techniques["compile"] = replace(
        techniques["compile"], start_seconds=compile_seconds, warm_start_seconds=5.0
    )
    return replace(
        program,
        start_seconds=10.0,
        techniques=techniques,
        discovery=replace(program.discovery, device="cuda"),
        noise=0.001,
        correlation=0.3,
        process_noise=0.0007,
        drift=0.001,
        spike_chance=0.0,
    )


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


def guarded_runner() -> Any:
    """A played runner whose guard trials are processes, too, and pass every plan."""
    tests = str(Path(__file__).resolve().parents[1] / "tests")
    if tests not in sys.path:
        sys.path.insert(0, tests)
    from search.test_guarding import GuardedRunner

    return GuardedRunner


def search_in(folder: Path, program: Any, seed: int, budget_seconds: float) -> Any:
    """The report of a search over a program. The ledger is left in ``folder``."""
    from flatout.host import Gpu
    from flatout.runners.mock import MockRunner
    from flatout.search.options import SearchOptions

    runner: Any = MockRunner(program, seed=seed)
    _, host, _ = nouns(folder)
    if program.discovery.device == "cuda":
        runner = guarded_runner()(program, seed=seed)
        gpu = Gpu(name="NVIDIA H200", uuid="GPU-0", memory_bytes=140 << 30, compute_capability=(9, 0))
        host = replace(host, cpu_count=16, memory_bytes=1 << 38, gpus=(gpu,))
    return play(folder, runner, SearchOptions(budget_seconds=budget_seconds), host=host)


def regret_of(number: int, budget_seconds: float, *, gpu: bool = False) -> dict[str, Any]:
    program = as_on_an_h200(drawn(number)) if gpu else drawn(number)
    best = best_of(program)
    with tempfile.TemporaryDirectory() as folder:
        report = search_in(Path(folder), program, number, budget_seconds)
    names = report.plan.names
    return {
        "program": number,
        "regret": factor(program, names) / factor(program, best) - 1.0,
        "plan": "+".join(names) or "baseline",
        "best": "+".join(best) or "baseline",
        "best_ratio": 1.0 / factor(program, best),
        "search_seconds": report.elapsed_seconds,
    }


def trace(budget_seconds: float, seed: int) -> None:
    """One search over nanoGPT: a line a comparison, and where the seconds went."""
    from flatout.ledger import Ledger

    program = nanogpt()
    with tempfile.TemporaryDirectory() as name:
        report = search_in(Path(name), program, seed, budget_seconds)
        with Ledger(Path(name) / "ledger.sqlite", writable=False) as ledger:
            blocks = ledger.blocks(1)
            events = ledger.events(1)
            trials = ledger.trials(1)
    turns: Counter[str] = Counter()
    for _, key, block in blocks:
        turns[key] += block.wall_seconds
    starts = sum(trial.outcome.startup_seconds for trial in trials.values())
    for verdict in report.verdicts:
        say(
            comparison=verdict.key,
            call=verdict.call.name.lower(),
            ratio=[round(one, 3) for one in (verdict.ratio, verdict.low, verdict.high) if one],
            turns=list(verdict.process_pairs),
            turn_seconds=round(turns[verdict.key], 1),
            reason=verdict.reason,
        )
    for event in events:
        if event.kind in {"started", "decided"}:
            say(at=round(event.at, 1), kind=event.kind, **event.data)
    say(
        trace="nanogpt",
        budget_seconds=budget_seconds,
        regret=factor(program, report.plan.names) / factor(program, best_of(program)) - 1.0,
        plan=report.plan.key,
        search_seconds=round(report.elapsed_seconds, 1),
        processes=len(trials),
        start_seconds=round(starts, 1),
        turn_seconds=round(sum(turns.values()), 1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=90)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--budget", type=float, default=480.0, help="played seconds of each search")
    parser.add_argument("--gpu", action="store_true", help="starts, noise and guard as on an H200")
    parser.add_argument("--trace", action="store_true", help="one search over nanoGPT, in detail")
    parser.add_argument("--seed", type=int, default=0, help="of the traced search")
    arguments = parser.parse_args()
    if arguments.trace:
        trace(arguments.budget, arguments.seed)
        return 0
    began = time.monotonic()
    rows = []
    for number in range(arguments.first, arguments.first + arguments.programs):
        rows.append(regret_of(number, arguments.budget, gpu=arguments.gpu))
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
