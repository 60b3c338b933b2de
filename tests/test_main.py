"""The command line as a whole: help, exit codes, whose words are whose, and who prints errors."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from flatout import __version__, errors
from flatout.__main__ import FAULT_EXIT_CODE, main
from flatout.commands import SUMMARIES, report


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let ``flatout report`` raise ``error``."""

    def run(arguments: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(report, "run", run)


def leaves(kind: type[errors.FlatoutError]) -> list[type[errors.FlatoutError]]:
    below = kind.__subclasses__()
    return [kind, *(leaf for one in below for leaf in leaves(one))]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(name in shown and summary in shown for name, summary in SUMMARIES.items())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"flatout {__version__}\n"


@pytest.mark.parametrize("name", SUMMARIES)
def test_each_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"flatout.commands.{name}")
    assert module.__doc__ is not None
    assert module.__doc__.splitlines()[0] == SUMMARIES[name]
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: flatout {name}")
    assert SUMMARIES[name] in shown


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from flatout.__main__ import main; main(['--help']); "
        "heavy = {'rich', 'psutil', 'tomli_w', 'tomllib', 'sqlite3', 'pynvml', 'torch', 'json'}; "
        "sys.exit(f'loaded {sorted(heavy & set(sys.modules))}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _with_path(program)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def _with_path(program: str) -> str:
    source = Path(report.__file__).parents[2]
    return f"import sys; sys.path.insert(0, {str(source)!r}); {program}"


def test_unknown_command_is_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tran", "--", "python", "x.py"]) == errors.UsageError.exit_code
    assert "Did you mean `flatout train`?" in capsys.readouterr().err
    assert main(["python", "x.py"]) == errors.UsageError.exit_code
    assert "flatout train -- python x.py" in capsys.readouterr().err


def test_unknown_options_are_told_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--budgt", "10m", "--", "python"]) == errors.UsageError.exit_code
    assert "--budget" in capsys.readouterr().err
    assert main(["train", "--lr", "3", "python"]) == errors.UsageError.exit_code
    assert "after its name" in capsys.readouterr().err
    assert main(["report", "--fromat", "json"]) == errors.UsageError.exit_code
    assert "--format" in capsys.readouterr().err
    assert main(["--what"]) == errors.UsageError.exit_code
    assert "no option --what" in capsys.readouterr().err


def test_one_argument_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a", "b"]) == errors.UsageError.exit_code
    assert "'b'" in capsys.readouterr().err


def test_train_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == errors.UsageError.exit_code
    assert "flatout train -- python train.py" in capsys.readouterr().err


@pytest.mark.parametrize("kind", leaves(errors.FlatoutError)[1:])
def test_every_error_has_its_exit_code(
    kind: type[errors.FlatoutError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, kind("it is 3", hint="make it 4", child_error="Traceback\nKeyError: 'x'\n"))
    assert main(["report"]) == kind.exit_code
    shown = capsys.readouterr().err
    assert "Traceback (most recent" not in shown
    places = [shown.index(part) for part in ("KeyError: 'x'", "flatout: it is 3", "what to do: make it 4")]
    assert places == sorted(places)
    assert "flatout" not in shown[: places[0]]


def test_exit_codes_are_all_different() -> None:
    codes = [kind.exit_code for kind in leaves(errors.FlatoutError)]
    assert len(codes) == len(set(codes))


def test_traceback_only_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, errors.StalePlan("stale"))
    for words in (["report", "--traceback"], ["--traceback", "report"]):
        assert main(words) == errors.StalePlan.exit_code
        assert "Traceback (most recent call last)" in capsys.readouterr().err
    assert main(["report"]) == errors.StalePlan.exit_code
    assert "Traceback" not in capsys.readouterr().err


def test_the_users_own_traceback_option_stays_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.commands import train

    seen = []

    def run(arguments: argparse.Namespace) -> int:
        seen.append(arguments.command)
        return 0

    monkeypatch.setattr(train, "run", run)
    assert main(["train", "--traceback", "--", "x", "--traceback"]) == 0
    assert main(["train", "--traceback", "x", "--traceback", "--", "y"]) == 0
    assert seen == [("x", "--traceback"), ("x", "--traceback", "--", "y")]


def test_our_own_fault_is_saved_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raising(monkeypatch, ZeroDivisionError("by nought"))
    assert main(["report", "--format", "json"]) == FAULT_EXIT_CODE
    shown = capsys.readouterr().err
    (saved,) = tmp_path.glob("flatout-fault-*.txt")
    assert "Traceback" not in shown
    assert str(saved) in shown
    assert "ZeroDivisionError: by nought" in shown
    text = saved.read_text()
    assert "Traceback (most recent call last)" in text
    assert "ZeroDivisionError: by nought" in text


def test_a_fault_keeps_the_users_command_to_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flatout.commands import train

    def run(arguments: argparse.Namespace) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(train, "run", run)
    main(["train", "--", "python", "x.py", "--api-key", "s3cr3t"])
    main(["train", "python", "x.py", "--api-key", "s3cr3t"])
    saved = list(tmp_path.glob("flatout-fault-*.txt"))
    assert len(saved) == 2
    assert all("s3cr3t" not in path.read_text() for path in saved)


def test_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert main(["report"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import errno

    raising(monkeypatch, OSError(errno.ENOSPC, "No space left on device", "/data/ledger.sqlite"))
    assert main(["report"]) == errors.DiskFull.exit_code
    shown = capsys.readouterr().err
    assert "/data/ledger.sqlite" in shown
    assert "what to do" in shown


def test_closed_pipe_is_no_fault() -> None:
    done = subprocess.run(
        f"{sys.executable} -m flatout techniques bf16 | true",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
