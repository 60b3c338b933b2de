"""Quick forms of the benchmarks of the proof: false gains, power, coverage. The full ones are in LOG.md."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(name: str, *words: str, bar: bool = True) -> list[dict[str, Any]]:
    """The lines that it printed; ``bar``: it must have met its own."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in ((0,) if bar else (0, 1)), done.stderr + done.stdout
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_recording(path: Path, *, tau: float, noise: float, step_seconds: float = 0.03) -> None:
    """A recording as benchmarks/record_noise.py writes it, of processes that differ by ``tau``."""
    draw = random.Random(8)
    processes = []
    for pair in range(5):
        for side in "ab":
            level = math.exp(draw.gauss(0, tau / math.sqrt(2)))
            blocks = [
                [round(step_seconds * level * math.exp(draw.gauss(0, noise)), 6) for _ in range(13)]
                for _ in range(30)
            ]
            processes.append({"pair": pair, "side": side, "blocks": blocks})
    path.write_text(json.dumps({"program": "made", "device": "none", "processes": processes}))


def test_placebos_on_recorded_noise_are_not_claimed():
    *_, last = run("false_gains.py", "--searches", "4", "--placebos", "6", "--budget", "20m")
    assert last["claimed"] == last["better"] == last["worse"] == 0
    assert last["comparisons"] >= 20


def test_planted_gains_and_losses_are_found(tmp_path):
    write_recording(tmp_path / "quiet.json", tau=0.001, noise=0.005)
    lines = run("power.py", "--replays", "4", "--noise", str(tmp_path))
    assert [line["effect"] for line in lines[:-1]] == [0.02, -0.02, 0.05, -0.05]
    assert lines[-1]["least_found"] == 1.0
    assert lines[-1]["wrong"] == 0


def test_intervals_hold_the_truth_where_the_search_stops():
    # of so few one may miss that is one in a hundred
    (line,) = run("coverage.py", "--searches", "30", "--level", "0.99", bar=False)
    assert line["held"] >= 0.93
    assert line["false_claims"] <= 1
    assert line["width"] <= 1.6
