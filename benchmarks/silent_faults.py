"""Does the guard refuse what is silently wrong, and for the right reason?

    python benchmarks/silent_faults.py [--device cpu|cuda] [--real] [--only stale_input,label_shift]
        [--work DIR] [--keep]

The faults of tests/faults, each planted into one of four programs as if it were a technique; the guard
alone runs, nothing is timed. Sizes are small, with ``--real`` real (on a GPU: GPT-2 124M, a network of
256 channels, tables of 1,024 x 4 over 32,768 tokens). On a GPU two more run that are emulated elsewhere: a
CUDA graph replayed without its new batch, and torch.compile itself over shared modulated LayerNorms, where
the installed torch has that fault (pytorch#193061; the line says so where it has not).

One JSON line a fault: ``refused``, ``reason``, ``right`` (refused for the true reason), ``emulated``,
``known_limit`` (why it is too small to be told at real size), ``seconds``. The last line sums up. Exit
code 1 when one is not right, known limits apart.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from empty_plan import HERE
from searching import say

sys.path.insert(0, str(HERE.parent / "tests"))

from faults.catalogue import FAULTS, PROGRAMS, Fault
from faults.guarding import house_of, houses, is_right

MODULATED = "compiled_modulation"
CLEAN_ERROR = 1e-3
"""Relative: torch.compile's gradients of the tables nearer than this are right."""


def run_house(
    program: str, arguments: tuple[str, ...], faults: list[Fault], *, device: str, size: str, work: Path
) -> list[dict[str, Any]]:
    """One line a fault of one program."""
    from flatout.errors import FlatoutError
    from flatout.runners import SessionEnded

    lines = []
    with house_of(program, work, arguments=arguments, device=device, size=size) as house:
        began = time.monotonic()
        try:
            house.prepare()
        except (SessionEnded, FlatoutError) as error:
            lines = [
                {
                    "fault": fault.name,
                    "refused": False,
                    "right": False,
                    "reason": f"the untouched program did not run: {whole(error)}",
                    "seconds": round(time.monotonic() - began, 1),
                }
                for fault in faults
            ]
            for line in lines:
                say(**line)
            return lines
        print(f"   prepared in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        for fault in faults:
            guarded = house.guard(fault.name)
            line = {
                "fault": fault.name,
                "refused": guarded.passed is False,
                "right": is_right(fault, guarded),
                "reason": guarded.reason,
                "emulated": fault.emulated,
                "known_limit": fault.lost_when_real if size != "small" else "",
                "seconds": round(guarded.seconds, 1),
            }
            say(**line)
            lines.append(line)
    return lines


def whole(error: Exception) -> str:
    """All that is known of a program that ended, not its class alone."""
    outcome = getattr(error, "outcome", None)
    if outcome is None:
        ended = f"{type(error).__name__}: {error}"
        printed = getattr(error, "child_error", "")
    else:
        ended = f"{outcome.error or outcome.state}: {outcome.reason or 'no reason is known'}"
        ended += f", exit code {outcome.exit_code}, after {outcome.steps} steps"
        printed = outcome.child_error
    return f"{ended}; the end of what it printed: {printed[-2000:] or 'nothing'}"


def run_modulated(*, work: Path) -> dict[str, Any]:
    """torch.compile over shared modulated LayerNorms on a GPU, where this torch gets them wrong."""
    script = [sys.executable, str(PROGRAMS / "modulated.py"), "--device", "cuda", "--size", "large"]
    done = subprocess.run([*script, "--check"], capture_output=True, text=True, check=False)
    if done.returncode:
        line = {"fault": MODULATED, "right": False, "reason": done.stderr[-600:]}
    else:
        seen = json.loads(done.stdout.splitlines()[-1])
        with house_of("modulated", work, device="cuda", size="large") as house:
            guarded = house.guard("compile")
        wrong = seen["worst_relative_error"] > CLEAN_ERROR
        line = {
            "fault": MODULATED,
            "refused": guarded.passed is False,
            # where this torch compiles it rightly, refusing it would be the fault
            "right": ("table" in guarded.reason and guarded.passed is False)
            if wrong
            else guarded.passed is True,
            "reason": guarded.reason,
            "emulated": "",
            "torch_has_the_fault": wrong,
            **seen,
            "seconds": round(guarded.seconds, 1),
        }
    say(**line)
    return line


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--real", action="store_true", help="real sizes")
    parser.add_argument("--only", help="names of faults, with commas")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the out folders")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    wanted = set(arguments.only.split(",")) if arguments.only else {MODULATED, *(f.name for f in FAULTS)}
    size = "small" if not arguments.real else "large" if cuda else "real"
    work = arguments.work or Path(tempfile.mkdtemp(prefix="flatout-faults-"))
    work.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    began = time.monotonic()
    try:
        for program, words in houses():
            faults = [
                fault
                for fault in FAULTS
                if (fault.program, fault.arguments) == (program, words)
                and fault.name in wanted
                and (cuda or not fault.cuda)
            ]
            if faults:
                print(f"== {program} {' '.join(words)}", file=sys.stderr, flush=True)
                lines += run_house(program, words, faults, device=arguments.device, size=size, work=work)
        if cuda and MODULATED in wanted:
            lines.append(run_modulated(work=work / MODULATED))
    finally:
        if not arguments.keep and arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
    limits = [line["fault"] for line in lines if line.get("known_limit") and not line.get("right")]
    wrong = [line["fault"] for line in lines if not line.get("right") and line["fault"] not in limits]
    say(
        benchmark="silent_faults",
        device=arguments.device,
        size=size,
        faults=len(lines),
        refused=sum(bool(line.get("refused")) for line in lines),
        right=sum(bool(line.get("right")) for line in lines),
        known_limits=limits,
        not_right=wrong,
        seconds=round(time.monotonic() - began, 1),
    )
    return 1 if wrong or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
