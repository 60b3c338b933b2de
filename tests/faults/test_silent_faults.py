"""Every planted fault is refused, and what the guard names first is the true reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from .catalogue import ACTS, FAULTS, Fault
from .guarding import House, house_of, houses, is_right

pytestmark = pytest.mark.torch
ON_CPU = [fault for fault in FAULTS if not fault.cuda]
PROGRAMS = sorted({fault.program for fault in ON_CPU})


def missed(house: House, faults: list[Fault]) -> list[str]:
    """A line for each that was not refused for its own reason."""
    found = []
    for fault in faults:
        guarded = house.guard(fault.name)
        if not is_right(fault, guarded):
            found.append(f"{fault.name}: passed={guarded.passed}: {guarded.reason}")
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_refused_for_the_right_reason(tmp_path: Path, program: str) -> None:
    """One house a program, since its untouched trials serve all of its faults."""
    faults = [fault for fault in ON_CPU if fault.program == program and not fault.more]
    with house_of(program, tmp_path) as house:
        assert missed(house, faults) == []
        assert house.reference.precision == "float64" and house.reference.unchecked == ()
        trials = set(house.bench.trials)
    if program == "gpt":
        assert "guard:random:dropout_lost" in trials
        assert "guard:random:gradient_scaled" not in trials, "it was refused before"


@pytest.mark.real
@pytest.mark.parametrize("program", PROGRAMS)
def test_more_faults(tmp_path: Path, program: str) -> None:
    faults = [fault for fault in ON_CPU if fault.program == program and fault.more]
    if not faults:
        pytest.skip("it has no more")
    with house_of(program, tmp_path) as house:
        assert missed(house, faults) == []


@pytest.mark.real
@pytest.mark.parametrize("program", PROGRAMS)
def test_at_real_size(tmp_path: Path, program: str) -> None:
    faults = [fault for fault in ON_CPU if fault.program == program]
    with house_of(program, tmp_path, size="real", timed_steps=40) as house:
        assert missed(house, faults) == []


@pytest.mark.gpu
@pytest.mark.parametrize(("program", "arguments"), houses())
def test_on_a_gpu(tmp_path: Path, program: str, arguments: tuple[str, ...]) -> None:
    """Those too that are emulated elsewhere."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    faults = [fault for fault in FAULTS if (fault.program, fault.arguments) == (program, arguments)]
    with house_of(program, tmp_path, arguments=arguments, device="cuda") as house:
        assert missed(house, faults) == []


def test_every_fault_has_its_act() -> None:
    assert sorted(path.stem for path in ACTS.glob("*.py")) == sorted(fault.name for fault in FAULTS)
