"""An honest plan whose rounding sends tokens to other experts is excused by its control."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout.techniques import TECHNIQUES

from .guarding import House

pytestmark = [pytest.mark.torch, pytest.mark.real]
EXPERTS = Path(__file__).parents[1] / "programs" / "experts.py"


@pytest.mark.parametrize("seed", [0, 1])
def test_flips_are_excused(tmp_path: Path, seed: int) -> None:
    words = [sys.executable, str(EXPERTS), "--size", "crowded", "--seed", str(seed)]
    with House(words, TECHNIQUES, cwd=tmp_path, out=tmp_path / "out", timed_steps=40) as house:
        guarded = house.guard("bf16")
        assert guarded.passed, guarded.reason
        assert guarded.report is not None
        assert guarded.report.excused, "nothing was off: another seed"
        assert "guard:control:bf16" in house.bench.trials
