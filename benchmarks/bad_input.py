"""What flatout says to bad programs: a table of exit codes and messages.

    python benchmarks/bad_input.py [--only crash,hang] [--python PY] [--budget 30s]

One JSON line a program: the exit code and the one that errors.py gives for it, the message as a person
reads it, whether the ledger is whole and nothing was left running. The last line counts the right ones.
Exit code 1 when one is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from houses import PROGRAMS, CheckoutHouse
from searching import say

HIGH_ENOUGH_FOR_GIGABYTES = "180s"

BAD: dict[str, tuple[list[str], str]] = {
    "no_such_command": (["pythom-3", "train.py"], "CommandNotFound"),
    "crash": (["{python}", "{programs}/crash.py"], "ProgramCrashed"),
    "crash_at_start": (["{python}", "{programs}/crash_at_start.py"], "ProgramCrashed"),
    "wants_cuda": (["{python}", "{programs}/wants_cuda.py"], "ProgramCrashed"),
    "never_steps": (["{python}", "{programs}/never_steps.py"], "NeverStepped"),
    "few_steps": (["{python}", "{programs}/few_steps.py"], "TooFewSteps"),
    "needs_stdin": (["{python}", "{programs}/needs_stdin.py"], "NeedsInput"),
    "writes_gigabytes": (["{python}", "{programs}/writes_gigabytes.py"], "WroteTooMuch"),
    "hang": (["{python}", "{programs}/hang.py"], "Hung"),
    "eats_memory": (["{python}", "{programs}/eats_memory.py"], "OutOfMemory"),
    "killed": (["{python}", "{programs}/eats_memory.py", "--killed"], "OutOfMemory"),
    "forks_and_exits": (["{python}", "{programs}/forks_and_exits.py"], "DetachedProgram"),
    "not_python": (["/bin/sh", "-c", "echo training"], "AgentDidNotEnter"),
    "python_S": (["{python}", "-S", "{programs}/no_torch.py"], "AgentDidNotEnter"),
    "no_torch": (["/usr/bin/python3", "{programs}/no_torch.py"], "TorchUnsupported"),
    "old_torch": (["{python}", "{programs}/old_torch.py"], "TorchUnsupported"),
}


def try_one(name: str, *, python: str, budget: str) -> bool:
    """Print one program's line; True when it is as it should be."""
    from flatout import errors

    words, error_name = BAD[name]
    expected: int = getattr(errors, error_name).exit_code
    command = [word.format(python=python, programs=PROGRAMS) for word in words]
    with tempfile.TemporaryDirectory(prefix="flatout-bad-") as folder:
        house = CheckoutHouse(Path(folder))
        environment = {"PYTHONPATH": str(PROGRAMS / "faketorch")} if name == "old_torch" else {}
        wanted = HIGH_ENOUGH_FOR_GIGABYTES if name == "writes_gigabytes" else budget
        ended = house.train(
            *command, options=("--budget", wanted, "--only", "tf32"), timeout=400, **environment
        )
        left = house.leftover()
        house.kill_marked()
        has_ledger = (house.out / "ledger.sqlite").exists()
        whole = house.ledger_is_whole() if has_ledger else None
    ok = ended.exit_code == expected and not left and whole is not False
    say(
        program=name,
        ok=ok,
        exit_code=ended.exit_code,
        expected=expected,
        error=error_name,
        seconds=round(ended.seconds, 1),
        message=ended.stderr.strip()[-1200:],
        ledger_whole=whole,
        left_running=left,
    )
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--budget", default="30s")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(BAD)
    results = {name: try_one(name, python=arguments.python, budget=arguments.budget) for name in names}
    failed = [name for name, ok in results.items() if not ok]
    say(benchmark="bad_input", ok=len(results) - len(failed), of=len(results), failed=failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
