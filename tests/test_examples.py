"""The bundled script does what its README line says: it trains, alone, and writes its checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "naive_gpt" / "train.py"


@pytest.mark.torch
def test_naive_gpt_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    checkpoint = tmp_path / "out" / "checkpoint.pt"
    options = ["--device", "cpu", "--steps", "100", "--lr", "0.01", "--checkpoint", str(checkpoint)]
    options += ["--batch-size", "2", "--context", "16", "--layers", "1", "--width", "16", "--heads", "2"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in done.stdout.splitlines()[1:]]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert checkpoint.is_file()
