"""Every planted fault is refused, its own reason named first; no honest technique is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from flatout.techniques import TECHNIQUES

from .catalogue import ACTS, FAULTS, Fault
from .guarding import House, house_of, houses, is_right

pytestmark = pytest.mark.torch
ON_CPU = [fault for fault in FAULTS if not fault.cuda]
OWN = Path(__file__).parents[1] / "programs"
PROGRAMS = sorted({fault.program for fault in ON_CPU})


HONEST = {
    "gpt": (("bf16",), ("sdpa", "fused_optimizer")),
    "conv": (("bf16",), ("fused_optimizer",)),
}
"""Plans of honest techniques, together where the bar is the same. Dropout and tied weights; BatchNorm and a
bias before it. Beside the faults, since the untouched trials serve both."""


def missed(house: House, faults: list[Fault]) -> list[str]:
    """A line for each that was not refused for its own reason."""
    found = []
    for fault in faults:
        guarded = house.guard(fault.name)
        if not is_right(fault, guarded):
            found.append(f"{fault.name}: passed={guarded.passed}: {guarded.reason}")
    return found


def refused(house: House, plans: Sequence[Sequence[str]]) -> list[str]:
    """A line for each honest plan that did not pass where it could be applied."""
    told = {" + ".join(names): house.guard(*names) for names in plans}
    return [f"{plan}: {one.reason}" for plan, one in told.items() if not one.passed and not one.unfit]


@pytest.mark.parametrize("program", PROGRAMS)
def test_refused_for_the_right_reason(tmp_path: Path, program: str) -> None:
    """One house a program, since its untouched trials serve all of its faults."""
    faults = [fault for fault in ON_CPU if fault.program == program and not fault.more]
    with house_of(program, tmp_path) as house:
        assert missed(house, faults) == []
        assert refused(house, HONEST.get(program, ())) == []
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
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS)
def test_at_real_size(tmp_path: Path, program: str) -> None:
    faults = [fault for fault in ON_CPU if fault.program == program and not fault.lost_when_real]
    with house_of(program, tmp_path, size="real", timed_steps=40) as house:
        assert missed(house, faults) == []


@pytest.mark.real
@pytest.mark.parametrize("size", ["small", "real"])
@pytest.mark.parametrize("program", ["nil_gradients", "experts"])
def test_honest_techniques_pass(tmp_path: Path, program: str, size: str) -> None:
    """Where true gradients are nil, and where experts get no token in some steps."""
    words = [sys.executable, str(OWN / f"{program}.py"), "--size", size]
    with House(words, TECHNIQUES, cwd=tmp_path, out=tmp_path / "out", timed_steps=40) as house:
        assert refused(house, [[technique.name] for technique in TECHNIQUES]) == []


@pytest.mark.real
@pytest.mark.parametrize("program", sorted(HONEST))
def test_honest_compile_passes(tmp_path: Path, program: str) -> None:
    with house_of(program, tmp_path) as house:
        assert refused(house, [["compile"]]) == []


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
