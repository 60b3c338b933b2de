"""Runs one job in a process of its own: run_job changes the process's signals for good.

job_driver.py OUT_DIR TECHNIQUES FLAGS DEGRADE NEVER_ENTERED_SECONDS DIRECT -- COMMAND...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flatout.errors import FlatoutError
from flatout.host import Interpreter
from flatout.isolation import entrance
from flatout.plan import Choice, Plan
from flatout.planfile import PlanFile
from flatout.runners.job import run_job
from flatout.workload import Discovery, Workload


def main() -> int:
    out, techniques, flags, degrade, seconds, direct, _, *command = sys.argv[1:]
    if os.environ.get("NO_NAMESPACES"):
        entrance.works = lambda *_, **__: False  # type: ignore[assignment]
    cwd = str(Path.cwd())
    planfile = PlanFile(
        plan=Plan(choices=tuple(Choice(name=name) for name in techniques.split(",") if name)),
        command=tuple(command),
        cwd=cwd,
        script=None,
        script_sha256=None,
        interpreter=sys.executable,
        python="3.11.0",
        torch="2.13.0",
        flatout="0.1.0",
        packages={},
        gpus=(),
        driver=None,
        cuda=None,
        discovery=Discovery(step_unit="optimizer", anchor=0, backwards_per_step=1.0, device="cpu"),
        cache_dir=f"{out}/cache",
    )
    site = [path for path in sys.path if path.endswith("site-packages")]
    try:
        return run_job(
            Workload(command=tuple(command), cwd=cwd, environment=dict(os.environ)),
            Interpreter(
                executable=sys.executable,
                version="3.11.0",
                site_packages=tuple(site),
                torch_version="2.13.0",
                flags=tuple(flags.split()),
                direct=direct == "direct",
            ),
            planfile,
            degrade=degrade == "degrade",
            out_dir=Path(out),
            never_entered_seconds=float(seconds),
            tell=lambda line: print(f"told: {line}", file=sys.stderr, flush=True),
        )
    except FlatoutError as error:
        print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
