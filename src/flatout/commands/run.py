"""Run the real job under a proved plan.

COMMAND runs as if it were typed alone: its input, output, signals and exit code are its own, and it
writes where it always writes. The plan's techniques are applied inside it. When one cannot be applied the
job ends with the reason before it has trained; --degrade goes on without it and says so. A light watch for
losses that are no longer numbers stays on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

USAGE = "[--plan FILE] [--degrade] [--stale-ok] -- COMMAND..."
TAKES_COMMAND = True
DEFAULT_PLAN = Path(".flatout") / "plan.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plan",
        type=Path,
        default=DEFAULT_PLAN,
        metavar="FILE",
        help="the plan that `flatout train` wrote (default: .flatout/plan.toml)",
    )
    parser.add_argument(
        "--degrade", action="store_true", help="go on without a technique that cannot be applied, saying so"
    )
    parser.add_argument(
        "--stale-ok",
        action="store_true",
        help="go on although script, GPU or torch are not those that the plan was proved for",
    )


def folder_of(plan: Path) -> Path:
    """Where the run puts files of its own: beside a search, else in `.flatout` beside the plan."""
    beside = plan.absolute().parent
    return (
        beside if (beside / "ledger.sqlite").exists() or beside.name == ".flatout" else beside / ".flatout"
    )


def run(arguments: argparse.Namespace) -> int:
    import sys

    from flatout.commands.prepare import workload_of
    from flatout.detect import detect_host
    from flatout.errors import StalePlan
    from flatout.planfile import read_plan, stale_reasons
    from flatout.runners.job import run_job
    from flatout.runners.seen import find_interpreter

    workload = workload_of(arguments.command, "run")
    planfile = read_plan(arguments.plan)
    out = folder_of(arguments.plan)
    interpreter = find_interpreter(workload, out_dir=out, remembered=planfile.interpreter)
    reasons = stale_reasons(planfile, workload, detect_host(), interpreter)
    if reasons and not arguments.stale_ok:
        raise StalePlan(
            f"the plan in {arguments.plan} was proved for something else: {'; '.join(reasons)}",
            hint="Search again with `flatout train`, or go on with --stale-ok: its gain is then unproved.",
        )

    def tell(line: str) -> None:
        print(f"flatout: {line}", file=sys.stderr, flush=True)

    for reason in reasons:
        tell(f"stale: {reason}")
    return run_job(
        workload,
        interpreter,
        planfile,
        degrade=arguments.degrade,
        out_dir=out,
        tell=tell,
    )
