"""flatout train around a search over programs that are played: what it writes, prints and returns."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from flatout import errors
from flatout.__main__ import main
from flatout.commands import prepare
from flatout.host import Interpreter
from flatout.isolation import Way
from flatout.ledger import Ledger
from flatout.runners import Request, Session
from flatout.runners.mock import MockProgram, MockRunner, MockTechnique

PROGRAM = MockProgram(
    techniques={"bf16": MockTechnique(unfit="no"), "compile": MockTechnique(factor=0.5)},
)
COMMAND = [sys.executable, "train.py", "--api-key", "s3cr3t"]


class PlayedRunner:
    """LocalRunner's outside around a MockRunner."""

    played: MockRunner
    interrupt_at: str | None = None
    closed = 0
    guards = MockRunner.guards
    guard_folder = MockRunner.guard_folder
    stops_idle = MockRunner.stops_idle

    def __init__(self, **options: Any) -> None:
        self.way = Way(name="overlay", detail="played")

    def start(self, request: Request, tell: Callable[[str], None] = lambda _: None) -> Session:
        if request.key == self.interrupt_at:
            raise KeyboardInterrupt
        return self.played.start(request, tell)

    def close(self) -> None:
        type(self).closed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[PlayedRunner]:
    """A working folder with a script, and a search that plays it with real time standing still."""
    from flatout.runners import local, seen
    from flatout.search import train as search_train

    class Runner(PlayedRunner):
        pass

    Runner.played = MockRunner(PROGRAM, seed=1)
    original = search_train.search

    def search(*given: Any, **named: Any) -> Any:
        return original(*given, **named, clock=Runner.played.clock, catalogue=PROGRAM.catalogue())

    interpreter = Interpreter(
        executable=sys.executable, version="3.11.7", site_packages=(), torch_version="2.13.0"
    )
    monkeypatch.setattr(local, "LocalRunner", Runner)
    monkeypatch.setattr(seen, "find_interpreter", lambda *_, **__: interpreter)
    monkeypatch.setattr(search_train, "search", search)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("train()\n")
    return Runner


def test_a_search(runner: type[PlayedRunner], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--budget", "20m", "--", *COMMAND]) == 0
    out = tmp_path / ".flatout"
    assert (out / ".gitignore").read_text().splitlines()[-1] == "*"
    report = json.loads((out / "report.json").read_text())
    assert report["state"] == "finished"
    assert [choice["name"] for choice in report["plan"]["choices"]] == ["compile"]
    assert (out / "report.md").read_text().startswith("# ")
    assert "compile" in (out / "plan.toml").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".flatout", "train.py"]
    shown = capsys.readouterr()
    assert "searching for at most 20 min" in shown.err
    assert "s3cr3t" not in shown.err
    assert report["conclusion"].split()[0] in shown.out
    assert "Written: .flatout/plan.toml, .flatout/report.json, .flatout/report.md, " in shown.out
    assert runner.closed == 1
    assert main(["report"]) == 0
    assert capsys.readouterr().out.strip() in shown.out
    for kind in ("json", "markdown"):
        assert main(["report", str(out), "--format", kind]) == 0
        name = "report.json" if kind == "json" else "report.md"
        assert capsys.readouterr().out == (out / name).read_text()


@pytest.mark.parametrize(
    ("words", "pace", "seconds"),
    [
        ([], "normal", 600.0),
        (["--fast"], "fast", 180.0),
        (["--thorough"], "thorough", 3600.0),
        (["--fast", "--budget", "4m"], "fast", 240.0),
    ],
)
def test_a_pace_and_its_budget(
    runner: type[PlayedRunner], tmp_path: Path, words: list[str], pace: str, seconds: float
) -> None:
    assert main(["train", *words, "--isolation", "overlay", "--", *COMMAND]) == 0
    with Ledger(tmp_path / ".flatout" / "ledger.sqlite", writable=False) as ledger:
        options = ledger.search(1).options
    assert (options.pace, options.budget_seconds, options.isolation) == (pace, seconds, "overlay")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fast", "--thorough"], "not allowed with argument"),
        (["--allow", "bf16"], "write recipe:NAME"),
        (["--allow", "recipe:bf16"], "bf16 needs no leave"),
        (["--only", "compil"], "Did you mean compile?"),
        (["--only", "bf16", "--without", "bf16"], "leaves nothing"),
    ],
)
def test_what_cannot_be_asked_for_starts_nothing(
    runner: type[PlayedRunner],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    assert main(["train", *words, "--", *COMMAND]) == errors.UsageError.exit_code
    assert said in capsys.readouterr().err
    assert not (tmp_path / ".flatout").exists()


def test_nothing_secret_is_kept(runner: type[PlayedRunner], tmp_path: Path) -> None:
    os.environ["FLATOUT_TEST_TOKEN"] = "hidden-value"
    try:
        assert main(["train", "--budget", "20m", "--", *COMMAND]) == 0
    finally:
        del os.environ["FLATOUT_TEST_TOKEN"]
    for path in (tmp_path / ".flatout").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"hidden-value" not in content, path
            assert b"s3cr3t" not in content, path


def test_ctrl_c_keeps_what_there_is(
    runner: type[PlayedRunner], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.interrupt_at = "screen:compile"
    code = main(["train", "--budget", "20m", "--", *COMMAND])
    shown = capsys.readouterr()
    if code == 0:  # this search did not screen: interrupt it where it climbs
        runner.interrupt_at = "climb:compile"
        code = main(["train", "--fresh", "--budget", "20m", "--", *COMMAND])
        shown = capsys.readouterr()
    assert code == errors.Interrupted.exit_code
    assert "Interrupted" in shown.out
    assert json.loads((tmp_path / ".flatout" / "report.json").read_text())["state"] == "interrupted"
    assert runner.closed >= 1


def test_a_program_that_fails(
    runner: type[PlayedRunner], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.played = MockRunner(replace(PROGRAM, fails="ProgramCrashed", child_error="KeyError: 3"))
    assert main(["train", "--", *COMMAND]) == errors.ProgramCrashed.exit_code
    report = json.loads((tmp_path / ".flatout" / "report.json").read_text())
    assert report["state"] == "failed"
    assert report["error"] == "ProgramCrashed"
    shown = capsys.readouterr().err
    assert shown.index("KeyError: 3") < shown.index("flatout: ")
    assert not (tmp_path / ".flatout" / "plan.toml").exists()


def test_a_command_that_does_not_exist_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--", "no-such-program"]) == errors.CommandNotFound.exit_code
    assert main(["train", "--", sys.executable, "no-such-script.py"]) == errors.CommandNotFound.exit_code
    assert main(["train", "--only", "bf61", "--", sys.executable, "-c", "1"]) == errors.UsageError.exit_code
    nothing_left = ["--only", "bf16,sdpa", "--without", "sdpa,bf16"]
    assert main(["train", *nothing_left, "--", sys.executable, "-c", "1"]) == errors.UsageError.exit_code
    assert list(tmp_path.iterdir()) == []


def test_out_folder(tmp_path: Path) -> None:
    out = prepare.prepare_out(tmp_path / "a" / "b")
    assert (out / ".gitignore").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    prepare.prepare_out(mine)
    assert list(mine.iterdir()) == []
    (tmp_path / "file").write_text("")
    for name in ("report.md", "plan.toml"):
        (mine / name).write_text("my own\n")
        with pytest.raises(errors.UsageError, match=f"{name} that no search"):
            prepare.prepare_out(mine)
        (mine / name).unlink()
        (out / name).write_text("of a search whose ledger has been moved away\n")
    assert prepare.prepare_out(out) == out
    (mine / "report.md").write_text("of a search\n")
    (mine / "ledger.sqlite").touch()
    assert prepare.prepare_out(mine) == mine
    (mine / "ledger.sqlite").unlink()
    (mine / "report.md").unlink()
    (mine / "plan.toml").write_text("# A plan made by flatout.\n")
    assert prepare.prepare_out(mine) == mine
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(errors.UsageError, match="a file is in its place"):
            prepare.prepare_out(path)
    with pytest.raises(errors.UsageError, match="cannot be made"):
        prepare.prepare_out(Path("/proc/no-such-folder"))
