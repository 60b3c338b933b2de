"""Bad programs: an exit code each, what was seen, the program's own last words, and a whole ledger."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout import errors

from .harness import PROGRAMS, Ended, House

CHEAPEST = ("--budget", "30s", "--only", "tf32")
pytestmark = pytest.mark.torch


def program(name: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / f"{name}.py"), *words)


def fails_as(error: type[errors.FlatoutError], ended: Ended, house: House, *, seen: str = "") -> None:
    """The error's own exit code, no traceback of flatout's, and nothing lost or left."""
    assert ended.exit_code == error.exit_code, f"exit code {ended.exit_code}\n{ended.text}"
    assert ended.stderr.strip()
    assert "/flatout/" not in ended.stderr or "Traceback" not in ended.stderr, ended.stderr
    assert seen in ended.stderr, ended.stderr
    if (house.out / "ledger.sqlite").exists():
        assert house.ledger_is_whole()
    assert house.leftover() == []


def test_command_that_does_not_exist(house: House) -> None:
    ended = house.train("pythom-3", "train.py", options=CHEAPEST)
    fails_as(errors.CommandNotFound, ended, house, seen="pythom-3")


def test_script_that_does_not_exist(house: House) -> None:
    ended = house.train(sys.executable, "trian.py", options=CHEAPEST)
    assert ended.exit_code in (errors.CommandNotFound.exit_code, errors.ProgramCrashed.exit_code), (
        ended.text
    )
    assert "trian.py" in ended.stderr


def test_no_command(house: House) -> None:
    fails_as(errors.UsageError, house.flatout("train"), house)


def test_crash(house: House) -> None:
    ended = house.train(*program("crash"), options=CHEAPEST)
    fails_as(
        errors.ProgramCrashed, ended, house, seen="the vocabulary has 50257 entries and the data 50304"
    )
    own_error = ended.stderr.index("ValueError: the vocabulary")
    assert "flatout" not in ended.stderr[:own_error].lower().replace(str(PROGRAMS).lower(), ""), (
        "the program's own error comes first\n" + ended.stderr
    )
    assert ended.report["error"] == "ProgramCrashed"


def test_crash_before_torch(house: House) -> None:
    ended = house.train(*program("crash_at_start"), options=CHEAPEST)
    fails_as(errors.ProgramCrashed, ended, house, seen="a_package_that_is_not_installed")


def test_wants_cuda(house: House) -> None:
    ended = house.train(*program("wants_cuda"), options=CHEAPEST)
    fails_as(errors.ProgramCrashed, ended, house, seen="CUDA")


def test_never_steps(house: House) -> None:
    fails_as(errors.NeverStepped, house.train(*program("never_steps"), options=CHEAPEST), house)


def test_too_few_steps(house: House) -> None:
    ended = house.train(*program("few_steps"), options=CHEAPEST)
    fails_as(errors.TooFewSteps, ended, house, seen="3")


def test_needs_standard_input(house: House) -> None:
    fails_as(errors.NeedsInput, house.train(*program("needs_stdin"), options=CHEAPEST), house)


def test_hangs(house: House) -> None:
    fails_as(errors.Hung, house.train(*program("hang"), options=CHEAPEST), house)


def test_hangs_before_its_first_step(house: House) -> None:
    ended = house.train(*program("hang", "--after", "0"), options=CHEAPEST)
    assert ended.exit_code in (errors.Hung.exit_code, errors.NeverStepped.exit_code), ended.text
    assert house.leftover() == []


def test_forks_and_exits(house: House) -> None:
    fails_as(errors.DetachedProgram, house.train(*program("forks_and_exits"), options=CHEAPEST), house)


@pytest.mark.parametrize("how", [(), ("--killed",)], ids=["allocator", "killed"])
def test_out_of_memory(house: House, how: tuple[str, ...]) -> None:
    fails_as(errors.OutOfMemory, house.train(*program("eats_memory", *how), options=CHEAPEST), house)


@pytest.mark.real
def test_writes_gigabytes(house: House) -> None:
    ended = house.train(*program("writes_gigabytes"), options=("--budget", "120s", "--only", "tf32"))
    fails_as(errors.WroteTooMuch, ended, house)
    assert list(house.work.iterdir()) == []


def test_no_torch(house: House) -> None:
    bare = Path("/usr/bin/python3")
    if not bare.exists():
        pytest.skip("no second Python without torch at /usr/bin/python3")
    ended = house.train(str(bare), str(PROGRAMS / "no_torch.py"), options=CHEAPEST)
    fails_as(errors.TorchUnsupported, ended, house)


def test_torch_too_old(house: House) -> None:
    ended = house.train(*program("old_torch"), options=CHEAPEST, PYTHONPATH=str(PROGRAMS / "faketorch"))
    fails_as(errors.TorchUnsupported, ended, house, seen="1.13.1")


def test_python_without_site(house: House) -> None:
    script = house.work / "own_path.py"
    folder = next(path for path in sys.path if path.endswith("site-packages"))
    script.write_text(
        f"import sys\nsys.path.insert(0, {folder!r})\n"
        + (PROGRAMS / "few_steps.py").read_text().replace("from __future__ import annotations\n", "")
    )
    ended = house.train(sys.executable, "-S", str(script), options=CHEAPEST)
    fails_as(errors.AgentDidNotEnter, ended, house, seen="-S")


def test_program_that_is_not_python(house: House) -> None:
    ended = house.train("/bin/sh", "-c", "echo training; exit 0", options=CHEAPEST)
    fails_as(errors.AgentDidNotEnter, ended, house)


def test_report_without_a_search(house: House) -> None:
    ended = house.flatout("report", str(house.root / "nowhere"))
    assert ended.exit_code in (errors.UsageError.exit_code, errors.LedgerError.exit_code), ended.text
    assert "nowhere" in ended.stderr


def test_plan_that_does_not_exist(house: House) -> None:
    ended = house.flatout("run", "--plan", "no-such-plan.toml", "--", *program("plain"))
    fails_as(errors.PlanError, ended, house, seen="no-such-plan.toml")


def test_broken_ledger(house: House) -> None:
    house.out.mkdir()
    (house.out / "ledger.sqlite").write_bytes(b"this is no database" * 1000)
    ended = house.train(*program("plain"), options=CHEAPEST)
    assert ended.exit_code == errors.LedgerError.exit_code, ended.text
    assert (house.out / "ledger.sqlite").read_bytes().startswith(b"this is no database"), "nothing is lost"
