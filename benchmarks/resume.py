"""Kill a search at random moments and let it go on: does it end with the same plan?

A played program (seeded mock runner) is searched in a process of its own, which is killed with SIGKILL
after a random time, over and over, until one sitting comes to the end. Prints one JSON line:

    {"benchmark": "resume", "kills": 20, "same_plan": true, ...}

    python benchmarks/resume.py [--kills 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from flatout.ledger import Ledger
from flatout.report import Report, build_report
from flatout.runners.mock import MockProgram, MockRunner, MockTechnique
from flatout.search.options import SearchOptions
from flatout.search.progress import Progress
from flatout.technique import Effect
from playing import play

PROGRAM = MockProgram(
    techniques={
        "tf32": MockTechnique(factor=0.6, effect=Effect.APPROXIMATE, slot="precision", gradients_db=45.0),
        "bf16": MockTechnique(factor=0.4, effect=Effect.APPROXIMATE, slot="precision", gradients_db=25.0),
        "sdpa": MockTechnique(factor=0.8),
        "compile": MockTechnique(factor=0.7, start_seconds=20.0),
        "fused_optimizer": MockTechnique(factor=0.95, gradients_db=None),
        "placebo": MockTechnique(),
        "broken": MockTechnique(factor=0.5, gradients_db=5.0),
    }
)


def sit(
    folder: Path, *, seed: int, pace: float, tell: Callable[[Progress], None] = lambda _: None
) -> Report:
    """One sitting: begin the search, or go on from where the last one was killed."""
    runner = MockRunner(PROGRAM, seed=seed, pace=pace)
    report: Report = play(folder, runner, SearchOptions(budget_seconds=3600.0), tell=tell)
    return report


def _at_work() -> Callable[[Progress], None]:
    """Says once on standard output that the search has begun."""
    told: list[str] = []

    def tell(progress: Progress) -> None:
        if not told:
            told.append(progress.text)
            print("at work", flush=True)

    return tell


def kill_and_resume(folder: Path, *, kills: int, seed: int, pace: float) -> dict[str, object]:
    """A search killed ``kills`` times against one left alone."""
    alone = folder / "alone"
    alone.mkdir()
    undisturbed = sit(alone, seed=seed, pace=0.0)
    killed = folder / "killed"
    killed.mkdir()
    chance = random.Random(seed)
    command = [sys.executable, __file__, "--sit", str(killed), "--seed", str(seed), "--pace", str(pace)]
    moments = []
    done = 0
    finished_early = 0
    while done < kills:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        # one in four during the interpreter's own start, the others from the search's first word on
        moment = chance.uniform(0.0, 1.4)
        if done % 4:
            process.stdout.readline()
        ready = time.monotonic()
        try:
            process.wait(timeout=moment)
            finished_early += 1
            if finished_early > kills:
                break
            # it came to its end: the next sitting starts another search
            continue
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            process.stdout.close()
        done += 1
        moments.append(round(time.monotonic() - ready, 3))
        check_whole(killed)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with Ledger(killed / "ledger.sqlite", writable=False) as ledger:
        reports = [build_report(ledger, number) for number in ledger.searches()]
        resumed = sum(
            sum(1 for event in ledger.events(number) if event.kind == "resumed")
            for number in ledger.searches()
        )
    return {
        "benchmark": "resume",
        "kills": done,
        "searches": len(reports),
        "resumed": resumed,
        "same_plan": all(
            report.plan == undisturbed.plan for report in reports if report.state == "finished"
        ),
        "finished": all(report.state == "finished" for report in reports),
        "plan": undisturbed.plan.key,
        "ratio_alone": undisturbed.ratio,
        "ratio_resumed": reports[-1].ratio,
        "kill_seconds": moments,
    }


def check_whole(folder: Path) -> None:
    """After a kill the ledger opens and can be reported from."""
    path = folder / "ledger.sqlite"
    if not path.exists():
        return
    with Ledger(path) as ledger:  # as the next sitting would: an empty file is made a ledger
        for number in ledger.searches():
            build_report(ledger, number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.02, help="real seconds per played second")
    parser.add_argument("--sit", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sit is not None:
        sit(arguments.sit, seed=arguments.seed, pace=arguments.pace, tell=_at_work())
        return 0
    with tempfile.TemporaryDirectory() as folder:
        result = kill_and_resume(
            Path(folder), kills=arguments.kills, seed=arguments.seed, pace=arguments.pace
        )
    print(json.dumps(result))
    return 0 if result["same_plan"] and result["finished"] else 1


if __name__ == "__main__":
    sys.exit(main())
