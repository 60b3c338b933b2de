"""benchmarks/silent_faults.py says why a program could not be prepared; benchmarks/curves.py tells honest
curves from others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import NeverStepped
from flatout.runners import SessionEnded
from flatout.trial import Outcome, State

from .catalogue import FAULTS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENDED = Outcome(
    state=State.FAILED,
    error="Crashed",
    reason="it ended with exit code 1",
    exit_code=1,
    steps=3,
    child_error="RuntimeError: no such device",
)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SessionEnded(ENDED), ("exit code 1", "after 3 steps", "RuntimeError: no such device")),
        (NeverStepped("no step was seen"), ("NeverStepped: no step was seen",)),
    ],
)
def test_a_program_that_does_not_run_is_said_with_its_whole_reason(
    error: Exception,
    says: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import silent_faults

    class House:
        def __enter__(self) -> House:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def prepare(self) -> None:
            raise error

    def house_of(*_: Any, **__: Any) -> House:
        return House()

    monkeypatch.setattr(silent_faults, "house_of", house_of)
    faults = list(FAULTS[:2])
    lines = silent_faults.run_house("gpt", (), faults, device="cpu", size="small", work=tmp_path)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines
    assert [line["fault"] for line in lines] == [fault.name for fault in faults]
    for line in lines:
        assert line["right"] is False
        for text in says:
            assert text in line["reason"]


@pytest.mark.torch
@pytest.mark.real
def test_curves_alone_tell_faults_from_honest_plans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import curves

    monkeypatch.setattr(sys, "argv", ["curves.py", "--only", "gpt", "--steps", "60"])
    assert curves.main() == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = {line["variation"]: 60 in line["refused_at"] for line in lines[:-1]}
    assert [name for name, refused in told.items() if refused] == [
        "learning rate + 10 %",
        "learning rate - 10 %",
        "dropout lost",
    ]
    assert {"other draws", "bf16", "learning rate + 2 %"} < set(told)
