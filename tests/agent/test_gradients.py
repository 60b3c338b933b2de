"""The same-weights probe: equal to the bit where nothing is applied, near under BF16."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.agent.gradients import NOISELESS_DB, Probe, decibels

from .driven import PYTHON, Driven, late, program

KINDS = Path(__file__).parent / "kinds"


def test_decibels() -> None:
    assert decibels(1.0, 0.01) == pytest.approx(20.0)
    assert decibels(1.0, 0.0) == NOISELESS_DB
    assert decibels(0.0, 1.0) == -NOISELESS_DB
    assert decibels(1.0, math.nan) == decibels(math.inf, 1.0) == -NOISELESS_DB


def test_of_threads_that_train_at_once_one_takes_the_gradients(tmp_path: Path) -> None:
    """The second is through the door before the first has shut it."""
    torch = pytest.importorskip("torch")
    told: list[Any] = []
    path = tmp_path / "reference.pt"
    training = SimpleNamespace(
        torch=torch,
        spec=SimpleNamespace(reference_role="save", reference_path=str(path)),
        block=SimpleNamespace(losses=[]),
        guest=SimpleNamespace(emit=told.append),
    )
    one = training.probe = Probe(training)
    taken = [("0.0.0", "weight", torch.ones(3))]
    one._finish(taken, 1.0)
    path.unlink()
    one._finish(taken, 1.0)
    assert len(told) == 1 and not path.exists() and training.probe is None


def probe(folder: Path, command: list[str], **spec: Any) -> Driven:
    folder.mkdir()
    reference = str(folder.parent / "reference.pt")
    with Driven(
        folder, late(command), seed=5, randomness_off=True, reference_path=reference, **spec
    ) as driven:
        driven.advance(6)  # a scaler skips the first few
        driven.stop()
    return driven


@pytest.mark.torch
@pytest.mark.parametrize(
    "command",
    [
        program("dropout.py"),
        program("no_optimizer.py"),
        program("scaler_clip.py"),
        [PYTHON, str(KINDS / "in_backward.py")],
        [PYTHON, str(KINDS / "closures.py")],
    ],
    ids=["dropout", "no_optimizer", "scaler", "in_backward", "closures"],
)
def test_equal_when_nothing_is_applied_and_near_under_bf16(command: list[str], tmp_path: Path) -> None:
    baseline = probe(tmp_path / "a", command, reference_role="save")
    found = baseline.of("discovered")[0]
    known = {name: found[name] for name in ("step_unit", "anchor", "units")}
    saved = baseline.of("guard")[0]["saved"]
    assert saved > 0

    same = probe(tmp_path / "b", command, reference_role="compare", **known).of("guard")[0]
    assert same["equal"]
    assert (same["compared"] + same["left_out"], same["worst_db"]) == (saved, NOISELESS_DB)

    techniques = [{"name": "bf16", "settings": {}}]
    near = probe(tmp_path / "c", command, reference_role="compare", techniques=techniques, **known)
    guard = near.of("guard")[0]
    assert not guard["equal"]
    assert guard["missing"] == []
    assert 10 < guard["overall_db"] < 100
    assert guard["cosine"] == pytest.approx(1.0, abs=1e-2)
    assert guard["loss"] == pytest.approx(guard["reference_loss"], rel=0.05)
    assert not guard["worst_parameter"].startswith("optimizer ")


@pytest.mark.torch
@pytest.mark.parametrize(("how", "reason"), [("constant", "every gradient is nil"), ("nan", "is finite")])
def test_gradients_that_prove_nothing_are_not_called_equal(how: str, reason: str, tmp_path: Path) -> None:
    command = program("odd_losses.py", "--how", how)
    probe(tmp_path / "a", command, reference_role="save")
    same = probe(tmp_path / "b", command, reference_role="compare").of("guard")[0]
    assert same["compared"] == 0 and not same["equal"]
    assert reason in same["reason"]
