"""Do the intervals hold the truth at the moment when the search chose to stop, and how wide are they?

    python benchmarks/coverage.py [--searches 1000] [--level 0.99] [--seed 0] [--jobs 1]

Each simulated search plays a program with noise drawn at random: correlated steps, a machine that drifts,
processes whose speed wanders, outliers of several times a step, and processes of one plan that differ by
0.05 to 2 %. One in ten is quiet in its turns and yet has two kinds of processes, 5 to 20 % apart: what
choosing other kernels at the start does. In one search of ten there is only time for a single difference
of unchanged processes. It times the untouched program, compares it with itself, and then with a plan that
is from 10 % slower to 4.8 times as fast, or no different, until its own rule ends the comparison: better,
worse, no difference that matters, or not worth more. ``held`` counts intervals that contain the true ratio.

``width`` is the interval's half width, as a log ratio, over that of an interval for one look at the very
same turns and processes at the same level: Student's t for the turns, and for the processes the same
mixture without the spending over looks. ``width_of_turns`` is the turns' part alone, over Student's t.
Prints one JSON line; bars: held in 95 % of the searches, and at the level less three standard errors of so
many searches; the median width at most 1.6. Exit code 1 below them.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from planted import BUDGET_SECONDS, compare
from playing import START_SECONDS
from searching import say

WIDEST = 1.6
LEAST_HELD = 0.95
TWO_MODES = 0.1
"""Share of the programs that are quiet and have two kinds of processes."""
LONE = 0.1
"""Share of the searches whose budget leaves time for one difference of unchanged processes."""
LONE_SECONDS = 60.0


def drawn_program(draw: random.Random) -> Any:
    """A program with noise of all kinds, and a plan for it."""
    from flatout.runners.mock import MockProgram, MockTechnique

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    effect = draw.choice((0.0, 0.0, 0.005, 0.01, 0.02, 0.02, 0.05, 0.1, 0.4, 3.8, -0.02, -0.05, -0.1))
    program = MockProgram(
        step_seconds=between(0.01, 0.3),
        start_seconds=START_SECONDS,
        techniques={"planted": MockTechnique(factor=1.0 / (1.0 + effect))},
        noise=between(0.002, 0.03),
        correlation=draw.choice((0.0, 0.3, 0.6, 0.9)),
        process_noise=between(0.0005, 0.02) / math.sqrt(2.0),
        wander=draw.choice((0.0, 0.0, 0.005, 0.02)),
        wander_seconds=between(1.0, 20.0),
        drift=draw.choice((0.0, 0.02, 0.1)),
        drift_period_seconds=between(3.0, 120.0),
        spike_chance=draw.choice((0.0, 0.01, 0.05)),
        spike_factor=between(1.5, 6.0),
    )
    if draw.random() >= TWO_MODES:
        return program
    return replace(
        program,
        noise=between(0.0005, 0.003),
        correlation=0.0,
        process_noise=between(0.0002, 0.001),
        wander=0.0,
        drift=0.0,
        spike_chance=0.0,
        slow_mode=between(0.05, 0.2),
        slow_mode_chance=draw.choice((0.5, 0.2)),
    )


def one_search(seed: int, level: float) -> dict[str, Any]:
    """One comparison until it stops by itself."""
    from flatout.search.prove import Aim
    from flatout.search.shifts import evidence_so_far, logs_of

    draw = random.Random(f"coverage/{seed}")
    program = drawn_program(draw)
    with tempfile.TemporaryDirectory() as folder:
        verdict, known = compare(
            Path(folder),
            program,
            seed=seed,
            aim_of=lambda options: Aim(alpha=1.0 - level, matters=options.gain_that_matters),
            then=lambda bench, verdict: evidence_so_far(bench.verdicts.values(), method=verdict.method),
            search_seconds=LONE_SECONDS if draw.random() < LONE else BUDGET_SECONDS,
        )
    truth = 1.0 / program.techniques["planted"].factor
    assert verdict.low is not None and verdict.high is not None and verdict.turns_radius is not None
    turns, processes = one_look(logs_of(verdict), known, 1.0 - level)
    return {
        "held": verdict.low <= truth <= verdict.high,
        "kind": ("two modes" if program.slow_mode else "usual")
        + (", one difference" if sum(one.freedom for one in known) < 2 else ""),
        "call": verdict.call.name.lower(),
        "false_claim": (verdict.call.name == "BETTER" and truth <= 1.0)
        or (verdict.call.name == "WORSE" and truth >= 1.0),
        "pairs": verdict.pairs,
        "process_pairs": len(verdict.process_pairs),
        "width": math.log(verdict.high / verdict.low) / 2.0 / math.hypot(turns, processes),
        "width_of_turns": verdict.turns_radius / turns if turns else None,
    }


def one_look(logs: Sequence[Sequence[float]], known: Sequence[Any], alpha: float) -> tuple[float, float]:
    """Both parts of the half width of an interval that is looked at once, here."""
    from flatout.sequential import (
        evidence_of_pairs,
        mixture_of,
        pooled,
        shift_bound,
        typical_shift,
        variance_within,
    )
    from flatout.stats import t_quantile

    variance, freedom, merged = variance_within(logs)
    mixture = mixture_of([*known, *evidence_of_pairs(logs)], logs)
    _, own, share = pooled(merged, variance, typical_shift(mixture))
    return t_quantile(alpha, freedom) * math.sqrt(own), shift_bound(mixture, share, alpha)


def rate(held: Sequence[bool]) -> str:
    return f"{sum(held)} of {len(held)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--level", type=float, default=0.99, help="of the interval of one comparison")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    seeds = [arguments.seed + number for number in range(arguments.searches)]
    levels = [arguments.level] * len(seeds)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        done = list(pool.map(one_search, seeds, levels, chunksize=10))
    held = sum(one["held"] for one in done) / len(done)
    kinds = sorted({one["kind"] for one in done})
    widths = sorted(one["width"] for one in done)
    turns = sorted(one["width_of_turns"] for one in done if one["width_of_turns"])
    say(
        benchmark="coverage",
        searches=len(done),
        level=arguments.level,
        held=held,
        held_of={kind: rate([one["held"] for one in done if one["kind"] == kind]) for kind in kinds},
        false_claims=sum(one["false_claim"] for one in done),
        calls=dict(Counter(one["call"] for one in done)),
        width=widths[len(widths) // 2],
        width_at_most_in_95_percent=widths[int(0.95 * len(widths))],
        width_of_turns=turns[len(turns) // 2],
        pairs=sorted(one["pairs"] for one in done)[len(done) // 2],
        process_pairs=sorted(one["process_pairs"] for one in done)[len(done) // 2],
        missed=[seed for seed, one in zip(seeds, done, strict=True) if not one["held"]][:20],
        seconds=time.monotonic() - began,
    )
    # what the level allows in so few searches, three standard errors
    chance = 3.0 * math.sqrt(arguments.level * (1.0 - arguments.level) / len(done))
    good = held >= max(LEAST_HELD, arguments.level - chance) and widths[len(widths) // 2] <= WIDEST
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
