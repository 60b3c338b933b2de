"""What flatout says to bad programs: a table of exit codes and messages.

    python benchmarks/bad_input.py [--only crash,hang] [--python PY] [--budget 30s] [--odd-budget 60s]

One JSON line a program. Of those that cannot be searched: the exit code and the one that errors.py gives
for it, the message as a person reads it, whether the ledger is whole and nothing was left running. Of those
that train oddly: a verdict, and the words in it that say what is odd. The last line counts the right ones.
Exit code 1 when one is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from houses import PROGRAMS, CheckoutHouse
from searching import say, summarise

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
    "no_optimiser_no_backward": (["{python}", "{programs}/no_loss.py", "--how", "bare"], "NeverStepped"),
}
"""Name -> command, and the class in errors.py that ends the search."""

ODD: dict[str, tuple[list[str], str]] = {
    "nan_loss": (["odd_losses.py", "--how", "nan"], "not a number from step 1 on"),
    "constant_loss": (["odd_losses.py", "--how", "constant"], "loss is 2.5 at every step"),
    "huge_loss": (["odd_losses.py", "--how", "huge"], ""),
    "never_the_same": (["never_the_same.py"], "does not compute the same twice"),
    "racing_threads": (["never_the_same.py", "--how", "threads"], "does not compute the same twice"),
    "backward_of_many": (["no_loss.py", "--how", "nonscalar"], "No loss was seen"),
    "autograd_grad": (["no_loss.py", "--how", "grad"], "No loss was seen"),
    "gradients_by_hand": (["no_loss.py", "--how", "manual"], "No loss was seen"),
    "other_shapes": (["other_shapes.py"], ""),
    "steps_of_1_ms": (["paced.py", "--seconds", "0.001"], ""),
    "steps_of_6_s": (["paced.py", "--seconds", "6"], ""),
    "one_at_a_time": (["one_at_a_time.py", "--name", "flatout-bad-input"], "side by side"),
}
"""Name -> program, and words of the report that say what is odd. They end with a verdict and code 0."""


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


def try_odd(name: str, *, python: str, budget: str) -> bool:
    """Print one odd program's line; True when the search ended with a verdict that says what is odd."""
    (script, *words), said = ODD[name]
    options = ("--budget", budget, "--only", "fused_optimizer")
    with tempfile.TemporaryDirectory(prefix="flatout-odd-") as folder:
        house = CheckoutHouse(Path(folder))
        ended = house.train(python, str(PROGRAMS / script), *words, options=options, timeout=400)
        left = house.leftover()
        house.kill_marked()
        path = house.out / "report.json"
        report = json.loads(path.read_text()) if path.exists() else {}
        whole = (house.out / "ledger.sqlite").exists() and house.ledger_is_whole()
    text = " ".join([report.get("conclusion", ""), *report.get("notes", ())])
    ok = ended.exit_code == 0 and said in text and bool(text) and not left and whole
    say(
        program=name,
        ok=ok,
        exit_code=ended.exit_code,
        seconds=round(ended.seconds, 1),
        message=text or ended.stderr.strip()[-1200:],
        wanted=said,
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
    parser.add_argument("--odd-budget", default="60s", help="of those that end with a verdict")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [*BAD, *ODD]
    results = {}
    for name in names:
        attempt, budget = (try_one, arguments.budget) if name in BAD else (try_odd, arguments.odd_budget)
        results[name] = attempt(name, python=arguments.python, budget=budget)
    return summarise("bad_input", results)


if __name__ == "__main__":
    sys.exit(main())
