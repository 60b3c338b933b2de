"""How long flatout takes to start, against a bare interpreter and against torch's own import.

    python benchmarks/startup.py [--python PYTHON_WITH_TORCH]

Prints one JSON line last. Bars: ``help_over_bare`` at most 5; ``agent_share_of_torch_import`` at most 0.05.
Runs take turns, so that a busy machine slows all alike. Starts of flatout are wall time, the median of
their runs; those of the agent are processor time at its least, since they are small beside torch's import.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import flatout
from flatout.agent.protocol import SPEC_VARIABLE, Spec

ROUNDS = 15
AGENT = Path(flatout.__file__).parent / "agent"


def once(command: list[str], environment: dict[str, str] | None = None) -> tuple[float, float]:
    """(Seconds of wall time, seconds of processor time) of one run."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return wall, usage.ru_utime + usage.ru_stime


Runs = dict[str, tuple[list[str], dict[str, str] | None]]


def alternate(runs: Runs, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(Wall, processor) seconds of each run, taken in turn; one round before counts for nothing."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (command, environment) in runs.items():
            taken = once(command, environment)
            if number:
                seconds[name].append(taken)
    return seconds


def agent_environment(folder: Path) -> dict[str, str]:
    """The environment in which every Python loads the agent, with a spec that applies nothing."""
    spec = Spec(trial_dir=str(folder), mode="run")
    path = folder / "spec.json"
    path.write_text(spec.to_json())
    return os.environ | {"PYTHONPATH": str(AGENT / "sitecustomize_dir"), SPEC_VARIABLE: str(path)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    chosen = parser.parse_args()
    walls = alternate(
        {
            "bare": ([sys.executable, "-c", "pass"], None),
            "help": ([sys.executable, "-m", "flatout", "--help"], None),
            "train_help": ([sys.executable, "-m", "flatout", "train", "--help"], None),
        },
        ROUNDS,
    )
    with tempfile.TemporaryDirectory() as folder:
        with_agent = agent_environment(Path(folder))
        processors = alternate(
            {
                "python": ([chosen.python, "-c", "pass"], None),
                "python_with_agent": ([chosen.python, "-c", "pass"], with_agent),
                "torch": ([chosen.python, "-c", "import torch"], None),
                "torch_with_agent": ([chosen.python, "-c", "import torch"], with_agent),
            },
            ROUNDS // 2,
        )
    starts = {name: statistics.median(wall for wall, _ in taken) for name, taken in walls.items()}
    agents = {name: min(cpu for _, cpu in taken) for name, taken in processors.items()}
    torch_import = agents["torch"] - agents["python"]
    result = {
        "benchmark": "startup",
        "bare_seconds": round(starts["bare"], 4),
        "help_seconds": round(starts["help"], 4),
        "help_over_bare": round(starts["help"] / starts["bare"], 2),
        "train_help_over_bare": round(starts["train_help"] / starts["bare"], 2),
        "torch_import_cpu_seconds": round(torch_import, 3),
        "agent_cpu_seconds_without_torch": round(agents["python_with_agent"] - agents["python"], 4),
        "agent_share_of_torch_import": round(
            (agents["torch_with_agent"] - agents["torch"]) / torch_import, 4
        ),
        "bars": {"help_over_bare": 5, "agent_share_of_torch_import": 0.05},
    }
    result["passed"] = result["help_over_bare"] <= 5 and result["agent_share_of_torch_import"] <= 0.05
    print(json.dumps(result))


if __name__ == "__main__":
    main()
