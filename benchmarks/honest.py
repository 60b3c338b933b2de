"""Does the guard refuse an honest technique? The five techniques, each alone, over fourteen programs.

    python benchmarks/honest.py [--root DIR] [--only nanogpt,experts] [--techniques bf16,compile]
        [--device cpu|cuda] [--size small|real|large] [--python PY] [--vision-python PY] [--steps 40]
        [--work DIR] [--keep]

Programs: the six public scripts (where ``--root`` is given, see public_scripts.py), the bundled naive
script, gan, scaler_clip and accumulation, and four with what trips a guard up: gpt (dropout, tied
weights), conv (BatchNorm, clipping), nil_gradients (a key's bias, biases before a norm, unused
parameters) and experts (experts that get no token, and so no gradient, in some steps). ``--size`` is of
these four. The guard alone runs: nothing is timed.

One JSON line a pair: ``said`` is passed, unfit (it cannot act there), could not judge, or refused; with
``reason`` and ``seconds``. The last line sums up. Exit code 1 when an honest technique was refused.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import empty_plan
import public_scripts
from empty_plan import HERE, OWN, Program
from searching import say

sys.path.insert(0, str(HERE.parent / "tests"))

from faults.guarding import House

FAULTY = HERE.parent / "tests" / "faults" / "programs"
TRIPPING = {"gpt": FAULTY, "conv": FAULTY, "nil_gradients": OWN, "experts": OWN}


def tripping(arguments: argparse.Namespace, work: Path) -> list[Program]:
    """The four of our own that were asked for."""
    wanted = set(arguments.only.split(",")) if arguments.only else set(TRIPPING)
    size = arguments.size or ("large" if arguments.device == "cuda" else "small")
    found = []
    for name, place in TRIPPING.items():
        if name in wanted:
            folder = work / name
            folder.mkdir(exist_ok=True)
            words = [str(place / f"{name}.py"), "--device", arguments.device, "--size", size]
            found.append(Program(name=name, command=[arguments.python, *words], folder=folder))
    return found


def said_of(guarded: Any) -> str:
    if guarded.passed is False:
        return "refused"
    if guarded.passed:
        return "passed"
    return "unfit" if guarded.unfit else "could not judge"


def over_techniques(program: Program, names: list[str], *, out: Path, steps: int) -> list[dict[str, Any]]:
    """One line a technique."""
    from flatout.runners import SessionEnded
    from flatout.techniques import TECHNIQUES

    lines = []
    with House(
        program.command,
        TECHNIQUES,
        cwd=program.folder,
        out=out,
        environment=program.environment,
        timed_steps=steps,
    ) as house:
        try:
            began = time.monotonic()
            house.prepare()
            print(f"   prepared in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        except SessionEnded as end:
            reason = f"{end.outcome.reason} {end.outcome.child_error[-600:]}"
            return [{"technique": name, "said": "did not run", "reason": reason} for name in names]
        for name in names:
            guarded = house.guard(name)
            line = {
                "technique": name,
                "said": said_of(guarded),
                "reason": guarded.reason,
                "seconds": round(guarded.seconds, 1),
            }
            say(program=program.name, **line)
            lines.append(line)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    public_scripts.add_common_arguments(parser, root_required=False)
    parser.add_argument("--techniques", help="names, with commas; default: all five")
    parser.add_argument("--size", choices=("small", "real", "large"))
    parser.add_argument("--steps", type=int, default=40, help="of the untouched program")
    arguments = parser.parse_args()
    from flatout.techniques import TECHNIQUES

    names = [technique.name for technique in TECHNIQUES]
    if arguments.techniques:
        names = [name for name in names if name in arguments.techniques.split(",")]
    work = arguments.work or Path(tempfile.mkdtemp(prefix="flatout-honest-"))
    work.mkdir(parents=True, exist_ok=True)
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    counted: dict[str, int] = {}
    refused = []
    try:
        programs = [program for program, _ in empty_plan.programs(arguments, work)]
        for program in (*programs, *tripping(arguments, work)):
            print(f"== {program.name}", file=sys.stderr, flush=True)
            began = time.monotonic()
            found = over_techniques(
                replace(program, environment=dict(program.environment)),
                names,
                out=work / f"{program.name}.out",
                steps=arguments.steps,
            )
            for line in found:
                counted[line["said"]] = counted.get(line["said"], 0) + 1
                if line["said"] == "did not run":
                    say(program=program.name, **line)
                if line["said"] in ("refused", "did not run"):
                    refused.append(f"{program.name}: {line['technique']}")
            if not arguments.keep:
                shutil.rmtree(work / f"{program.name}.out", ignore_errors=True)
            print(f"   {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    finally:
        if not arguments.keep and arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
    say(
        benchmark="honest",
        device=arguments.device,
        pairs=sum(counted.values()),
        said=counted,
        refused=refused,
    )
    return 1 if refused or not counted else 0


if __name__ == "__main__":
    sys.exit(main())
