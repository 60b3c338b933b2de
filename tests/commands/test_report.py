"""flatout report: the same report again from the ledger alone, to the byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flatout.__main__ import main
from flatout.commands.keep import keep, keep_failure
from flatout.errors import FlatoutError
from flatout.ledger import Ledger
from flatout.runners.mock import MockProgram, MockRunner, MockSession, MockTechnique
from flatout.search.options import SearchOptions
from flatout.trial import Profile, Work
from search.played import PLANTED, play

PROFILE = Profile(
    wall_seconds=0.03,
    device_busy_seconds=0.02,
    work=(Work(operator="aten::mm", calls=4, seconds=0.02, inputs=(("float", (64, 64)),) * 2),),
    gaps={"python": 0.01},
    span_seconds=0.03,
    peaks={"float32": 1e11, "bytes": 1e10},
)
FILES = ("report.json", "report.md", "report.html")


def interrupted(folder: Path) -> None:
    program = MockProgram(techniques=PLANTED, profile=PROFILE)
    runner = MockRunner(program)

    def interrupt(_what: str, _session: MockSession) -> None:
        if len(runner.requests) > 7:
            raise KeyboardInterrupt

    runner.before = interrupt
    report = play(folder, program, runner=runner)
    assert report.state == "interrupted"
    with Ledger(folder / "ledger.sqlite") as ledger:
        keep(ledger, report, folder)


def failed(folder: Path) -> None:
    program = MockProgram(fails="ProgramCrashed", fails_at=5, child_error="KeyError: 'x'")
    with pytest.raises(FlatoutError):
        play(folder, program)
    with Ledger(folder / "ledger.sqlite") as ledger:
        keep_failure(ledger, folder)


def finished(folder: Path, program: MockProgram, options: SearchOptions | None = None) -> None:
    report = play(folder, program, options=options)
    with Ledger(folder / "ledger.sqlite") as ledger:
        keep(ledger, report, folder)


def with_a_plan(folder: Path) -> None:
    finished(folder, MockProgram(techniques=PLANTED, profile=PROFILE), SearchOptions(quality=2))


def with_losses_that_are_no_numbers(folder: Path) -> None:
    techniques = {"it": MockTechnique(nan_loss_from=3), "slow": MockTechnique(factor=1.2), **PLANTED}
    finished(folder, replace(MockProgram(techniques=techniques), nan_loss_from=60))


@pytest.mark.parametrize(
    "searched",
    [with_a_plan, with_losses_that_are_no_numbers, interrupted, failed],
    ids=lambda f: f.__name__,
)
def test_deleted_reports_come_back_equal_to_the_byte(tmp_path, capsys, searched):
    searched(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    for name in FILES:
        (tmp_path / name).unlink()
    assert main(["report", str(tmp_path), "--write", "--format", "json"]) == 0
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before
    assert capsys.readouterr().out.encode() == before["report.json"]
    assert main(["report", str(tmp_path), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.encode() == before["report.md"]
    assert main(["report", str(tmp_path), "--format", "html"]) == 0
    assert capsys.readouterr().out.encode() == before["report.html"]


def test_without_write_nothing_is_written(tmp_path, capsys):
    failed(tmp_path)
    for name in FILES:
        (tmp_path / name).unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert "KeyError" in capsys.readouterr().out
    assert not any((tmp_path / name).exists() for name in FILES)


def test_ledger_and_json_agree_to_the_digit(tmp_path):
    with_a_plan(tmp_path)
    plain = json.loads((tmp_path / "report.json").read_text())
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        verdicts = ledger.verdicts(1)
        runs = ledger.events(1, "quality_run")
    assert len(plain["verdicts"]) == len(verdicts)
    for told, verdict in zip(plain["verdicts"], verdicts.values(), strict=True):
        assert told["samples_a"] == list(verdict.samples_a)
        assert told["samples_b"] == list(verdict.samples_b)
        assert (told["ratio"], told["low"], told["high"]) == (verdict.ratio, verdict.low, verdict.high)
        assert told["process_pairs"] == list(verdict.process_pairs)
    assert len(runs) == 2 * len(plain["quality"]["seeds"]) == 4
    spent = plain["spent"]
    assert sum(spent.values()) == pytest.approx(plain["elapsed_seconds"])
    assert spent["quality"] > 0 and spent["starts"] > 0 and spent["measuring"] > 0
    parts = plain["left"]["parts"]
    assert sum(part["seconds"] for part in parts) == pytest.approx(plain["plan_step_seconds"])
