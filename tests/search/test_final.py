"""The last proof: once where the climb has not made it already."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.ledger import Ledger
from flatout.runners.mock import MockProgram, MockRunner, MockTechnique
from flatout.trial import Call

from .played import play

QUIET = {"noise": 0.001, "process_noise": 0.0005, "drift": 0.0, "spike_chance": 0.0}


def one(**noise: float) -> MockProgram:
    return MockProgram(techniques={"it": MockTechnique(factor=0.5)}, **noise)  # type: ignore[arg-type]


def test_what_the_climb_proved_against_the_untouched_program_is_not_measured_again(tmp_path: Path) -> None:
    report = play(tmp_path, one(**QUIET))
    assert [one.key for one in report.verdicts if one.plan_b] == ["climb:it"]
    proved = report.verdicts[-1]
    assert (report.ratio, report.low, report.high) == (proved.ratio, proved.low, proved.high)
    assert "not proved once more" not in report.conclusion
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert [event.data["verdict"] for event in ledger.events(1, "final")] == ["climb:it"]
        ledger.set_state(1, "running")
    runner = MockRunner(one(**QUIET))
    again = play(tmp_path, runner.program, runner=runner)
    assert (again.plan, again.ratio) == (report.plan, report.ratio)


@pytest.mark.parametrize("noise", [{"noise": 0.05}, {**QUIET, "wander": 0.1, "wander_seconds": 2.0}])
def test_where_turns_are_noisy_it_is(tmp_path: Path, noise: dict[str, float]) -> None:
    report = play(tmp_path, one(**noise))
    final = [verdict for verdict in report.verdicts if verdict.key.startswith("final:")]
    assert [verdict.call for verdict in final] == [Call.BETTER]


def test_a_plan_of_several_is_proved_as_a_whole(tmp_path: Path) -> None:
    techniques = {"it": MockTechnique(factor=0.5), "other": MockTechnique(factor=0.7)}
    report = play(tmp_path, MockProgram(techniques=techniques, **QUIET))  # type: ignore[arg-type]
    (final,) = [verdict for verdict in report.verdicts if verdict.key.startswith("final:")]
    assert set(final.plan_b.names) == {"it", "other"} and not final.plan_a
    assert final.low is not None and final.high is not None
    assert final.low < 1.0 / 0.35 < final.high
    assert final.high / final.low < 1.1
