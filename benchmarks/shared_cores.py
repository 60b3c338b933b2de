"""Are verdicts wide and honest where another program takes one of the cores in random bursts?

    python benchmarks/shared_cores.py [--searches 3] [--budget 120s] [--only sdpa,fused_optimizer]
        [--quiet-pairs 40] [--burst 1.0] [--python PY] [--work DIR] [command ...]

Whole searches of ``flatout train`` on a real program (examples/naive_gpt, made small; or the command given)
while a load generator burns one core, on and off for random times of ``--burst`` seconds on average. Each
verdict that says better or worse is then held against a long measurement of the same two plans without that
load: two pairs of processes that take turns, ``--quiet-pairs`` turns each.

A verdict is **wrong** when it says better and the quiet interval lies below 1, or the reverse (bar: none).
Also told: how wide the intervals were, how often the quiet ratio lies inside them, and what was not
told for noise. One JSON line a search and a pair of plans; the last line sums up. Exit code 1 when a
verdict is wrong or nothing came to a verdict.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from searching import say, search
from sessions import request, runner_for

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "naive_gpt" / "train.py"
SMALL = ("--batch-size=4", "--context=64", "--width=64", "--device=cpu")
LOAD = """
import random, time
drawn = random.Random({seed})
while True:
    time.sleep(drawn.expovariate(1.0 / {burst}))
    until = time.monotonic() + drawn.expovariate(1.0 / {burst})
    while time.monotonic() < until:
        pass
"""
QUIET_ERRORS = 3.3
"""Standard errors to each side of the quiet ratio: one in a thousand falls outside."""
BLOCK_SECONDS = 0.5


def searched(arguments: argparse.Namespace, command: list[str], number: int, work: Path) -> dict[str, Any]:
    """One search beside the load; its report."""
    code = LOAD.format(seed=number, burst=arguments.burst)
    load = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    try:
        found = search(
            command,
            cwd=work,
            out=work / f"search-{number}",
            options=("--budget", arguments.budget, "--only", arguments.only, "--seed", str(number)),
            environment={"OMP_NUM_THREADS": str(arguments.threads)},
        )
    finally:
        load.kill()
        load.wait()
    say(
        search=number,
        exit_code=found.exit_code,
        seconds=round(found.seconds, 1),
        plan=found.plan,
        techniques=found.techniques,
        conclusion=found.report.get("conclusion", found.stderr[-500:]),
    )
    return found.report


def key_of(plan: dict[str, Any]) -> str:
    return "+".join(choice["name"] for choice in plan["choices"]) or "baseline"


def quiet(
    arguments: argparse.Namespace, command: list[str], pair: tuple[dict[str, Any], ...], work: Path
) -> tuple[float, float, float]:
    """(ratio, low, high) of two plans without the load: under the first over under the second."""
    from flatout.plan import Choice, Plan

    plans = [
        Plan(choices=tuple(Choice(name=c["name"], settings=dict(c["settings"])) for c in plan["choices"]))
        for plan in pair
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    logs: list[float] = []
    for _ in range(2):
        with runner_for(command, cwd=work, environment=environment, out=work / "quiet") as runner:
            first = runner.start(request("discover", seed=1))
            first.advance(12)
            discovery = first.discovery
            first.stop()
            sessions = [
                runner.start(request(f"quiet:{plan.key}", plan=plan, discovery=discovery, seed=1))
                for plan in plans
            ]
            steps = []
            for session in sessions:
                session.advance(12)
                block = session.advance(20)
                steps.append(max(6, math.ceil(BLOCK_SECONDS / statistics.mean(block.step_seconds))))
            for turn in range(arguments.quiet_pairs):
                times = [0.0, 0.0]
                for side in (0, 1) if turn % 2 == 0 else (1, 0):
                    times[side] = statistics.median(sessions[side].advance(steps[side]).step_seconds)
                logs.append(math.log(times[0] / times[1]))
            for session in sessions:
                session.stop()
    # turns of one pair are not independent: groups of five
    groups = [statistics.median(logs[i : i + 5]) for i in range(0, len(logs) - 4, 5)]
    middle = statistics.mean(groups)
    error = QUIET_ERRORS * statistics.stdev(groups) / math.sqrt(len(groups))
    return math.exp(middle), math.exp(middle - error), math.exp(middle + error)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--only", default="sdpa,fused_optimizer,bf16")
    parser.add_argument("--quiet-pairs", type=int, default=40)
    parser.add_argument("--burst", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--work", type=Path)
    parser.add_argument("command", nargs="*")
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="flatout-shared-"))
    work.mkdir(parents=True, exist_ok=True)
    command = arguments.command or [arguments.python, str(EXAMPLE), *SMALL]
    verdicts = []
    for number in range(arguments.searches):
        report = searched(arguments, command, number, work)
        verdicts += [one for one in report.get("verdicts", []) if key_of(one["plan_b"]) != "baseline"]
    known: dict[tuple[str, str], tuple[float, float, float]] = {}
    wrong, inside, told = 0, 0, 0
    widths = []
    for one in verdicts:
        pair = (one["plan_a"], one["plan_b"])
        names = (key_of(pair[0]), key_of(pair[1]))
        if names not in known:
            known[names] = quiet(arguments, command, pair, work)
        ratio, low, high = known[names]
        if one["low"] is None or one["high"] is None:
            continue
        is_wrong = (one["call"] == "better" and high < 1.0) or (one["call"] == "worse" and low > 1.0)
        holds = one["low"] <= ratio <= one["high"]
        told += one["call"] in ("better", "worse")
        wrong += is_wrong
        inside += holds
        widths.append(math.log(max(one["high"], 1e-9) / max(one["low"], 1e-9)) / 2)
        say(
            verdict=one["key"],
            of=names,
            call=one["call"],
            ratio=one["ratio"],
            low=one["low"],
            high=one["high"],
            quiet=ratio,
            quiet_low=low,
            quiet_high=high,
            wrong=is_wrong,
            inside=holds,
        )
    say(
        benchmark="shared_cores",
        searches=arguments.searches,
        verdicts=len(verdicts),
        said_better_or_worse=told,
        wrong=wrong,
        quiet_ratio_inside=inside,
        of_intervals=len(widths),
        median_half_width=round(math.exp(statistics.median(widths)) - 1, 3) if widths else None,
        ok=wrong == 0 and bool(verdicts),
    )
    return 0 if wrong == 0 and verdicts else 1


if __name__ == "__main__":
    sys.exit(main())
