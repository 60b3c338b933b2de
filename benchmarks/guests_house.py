"""Is the house as it was: files, home, checkpoints and processes after a search that ends in each way?

    python benchmarks/guests_house.py [--python PY] [--isolation auto|overlay|landlock|redirect]

The program (tests/programs/checkpoints.py) writes through torch.save, safetensors, a C++ writer and a
child process, overwrites and deletes, and would resume from its own checkpoint. One JSON line for each
ending: a whole search, Ctrl-C, SIGTERM, kill -9 of flatout, a crash, a hang, out of memory, fork and
exit. ``unchanged`` is a hash over names, modes, times and contents of the working folder, HOME and the
checkpoint folder; ``left_running`` lists processes. The last line counts. Exit code 1 when one is wrong.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from houses import PROGRAMS, CheckoutHouse, harness
from searching import say, summarise

ENDINGS: dict[str, signal.Signals | None] = {
    "whole search": None,
    "Ctrl-C": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "kill -9": signal.SIGKILL,
}
OWN_ENDINGS = {
    "crash": ["crash.py"],
    "hang": ["hang.py"],
    "out of memory": ["eats_memory.py"],
    "killed for memory": ["eats_memory.py", "--killed"],
    "fork and exit": ["forks_and_exits.py"],
}


def furnish(house: CheckoutHouse) -> list[Path]:
    """Files that the program overwrites, deletes or would resume from; the folders that must not change."""
    folder = house.root / "checkpoints"
    folder.mkdir()
    (folder / "precious.txt").write_text("of three weeks' work")
    (house.work / "precious.txt").write_text("of four weeks' work")
    (house.work / "guest.child").write_text("an older one")
    (house.home / ".netrc").write_text("secret")
    return [house.work, house.home, folder]


def stepping(house: CheckoutHouse) -> bool:
    return any(path.stat().st_size for path in house.out.glob("trials/*/rank-*.jsonl"))


def end_by(ending: signal.Signals | None, house: CheckoutHouse, words: list[str]) -> int:
    """Run one search to its end, or until it steps and then send it ``ending``; its exit code."""
    process = house.start("train", "--out", str(house.out), *words)
    if ending is None:
        process.communicate(timeout=300)
    else:
        harness.wait_for(lambda: stepping(house), 120, "a first step")
        time.sleep(1)
        process.send_signal(ending)
        process.communicate(timeout=60)
    return process.returncode


def try_one(name: str, command: list[str], ending: signal.Signals | None, isolation: str) -> bool:
    """Print one ending's line; True when the house is as it was."""
    with tempfile.TemporaryDirectory(prefix="flatout-house-") as folder:
        house = CheckoutHouse(Path(folder))
        roots = furnish(house)
        before = harness.tree_hash(*roots)
        command = [word.format(folder=roots[-1]) for word in command]
        budget = "120s" if ending else "40s"
        options = ["--budget", budget, "--only", "fused_optimizer", "--isolation", isolation, "--"]
        exit_code = end_by(ending, house, [*options, *command])
        left = house.leftover(15)
        unchanged = harness.tree_hash(*roots) == before
        house.kill_marked()
    ok = unchanged and not left
    say(ending=name, ok=ok, exit_code=exit_code, unchanged=unchanged, left_running=left)
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--isolation", default="auto")
    arguments = parser.parse_args()
    results = {}
    guest = [arguments.python, str(PROGRAMS / "checkpoints.py"), "--folder", "{folder}"]
    for name, ending in ENDINGS.items():
        results[name] = try_one(name, guest, ending, arguments.isolation)
    for name, words in OWN_ENDINGS.items():
        command = [arguments.python, str(PROGRAMS / words[0]), *words[1:]]
        results[name] = try_one(name, command, None, arguments.isolation)
    return summarise("guests_house", results, isolation=arguments.isolation)


if __name__ == "__main__":
    sys.exit(main())
