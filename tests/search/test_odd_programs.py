"""Programs that train in an odd way: a verdict with its reason for each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.runners import mock
from flatout.runners.mock import MockTechnique
from flatout.search.options import SearchOptions
from flatout.search.standing import Standing

from .played import play
from .test_search import one, row

FASTER = MockTechnique(factor=0.7, gradients_db=90.0)


def test_a_loss_that_is_nan_from_the_start(tmp_path):
    report = play(tmp_path, one(FASTER, nan_loss_from=0))
    assert "not a number from step 0 on" in report.conclusion
    assert "guard cannot judge all" in report.conclusion and "guard passed" not in report.conclusion


def test_a_constant_loss_proves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(mock.MockSession, "_loss", lambda self, step: 2.5)
    report = play(tmp_path, one(FASTER))
    assert "loss is 2.5 at every step" in report.conclusion
    assert "guard cannot judge all" in report.conclusion and "guard passed" not in report.conclusion


def test_no_loss_is_said_and_gradients_judge_alone(tmp_path, monkeypatch):
    outcome, advance = mock.MockSession._outcome, mock.MockSession.advance
    monkeypatch.setattr(
        mock.MockSession, "_outcome", lambda self, *a, **k: replace(outcome(self, *a, **k), losses=())
    )
    monkeypatch.setattr(
        mock.MockSession, "advance", lambda self, steps: replace(advance(self, steps), losses=())
    )
    report = play(tmp_path, one(FASTER))
    assert report.plan.names == ("it",)
    assert "No loss was seen" in report.conclusion
    wrong = play(tmp_path / "wrong", one(MockTechnique(factor=0.7, gradients_db=9.0)))
    assert not wrong.plan and row(wrong, "it").standing is Standing.REFUSED


def test_what_no_seed_makes_equal_is_never_called_proved_right(tmp_path):
    report = play(tmp_path, one(MockTechnique(factor=0.7, gradients_db=-1.0), again_db=-1.0))
    assert "does not compute the same twice" in report.conclusion
    assert "two unchanged runs' agree to -1 dB only" in report.guard_note
    assert "guard passed" not in report.conclusion


@pytest.mark.parametrize(
    "seconds, budget, words",
    [
        (180.0, 600.0, "give it --budget 16h"),
        (180.0, 7200.0, "give it --budget 16h"),
        (40.0, 600.0, "give it --budget 4h"),
    ],
)
def test_steps_of_minutes_name_the_budget_that_they_need(tmp_path, seconds, budget, words):
    report = play(tmp_path, one(FASTER, step_seconds=seconds), options=SearchOptions(budget_seconds=budget))
    assert not report.plan
    assert row(report, "it").standing is Standing.NOT_TRIED
    assert words in report.conclusion


@pytest.mark.parametrize("seconds", [180.0, 40.0])
def test_that_budget_decides(tmp_path, seconds):
    hours = 16 if seconds > 100 else 4
    options = SearchOptions(budget_seconds=3600.0 * hours)
    report = play(tmp_path, one(FASTER, step_seconds=seconds), options=options)
    assert row(report, "it").standing is Standing.APPLIED
    assert "--budget" not in report.conclusion


def test_steps_of_a_millisecond(tmp_path):
    report = play(tmp_path, one(FASTER, step_seconds=0.001))
    assert report.plan.names == ("it",) and report.low < 1 / 0.7 < report.high
    nothing = play(tmp_path / "same", one(MockTechnique(factor=1.0), step_seconds=0.001))
    assert not nothing.plan
