"""--quality: several seeds of the plan and of the untouched program, after the last proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.ledger import Ledger
from flatout.quality import Equal
from flatout.report import build_report
from flatout.runners.mock import MockProgram, MockRunner, MockSession, MockTechnique
from flatout.search.options import SearchOptions

from .played import play

HONEST = MockProgram(techniques={"it": MockTechnique(factor=0.5, gradients_db=None)})
# too slow a drift for the guard's hundred steps
DRIFTING = MockProgram(techniques={"it": MockTechnique(factor=0.5, loss_shift_per_step=1e-4)})
OPTIONS = SearchOptions(quality=3)


def test_an_honest_plan_passes(tmp_path):
    report = play(tmp_path, HONEST, options=OPTIONS)
    quality = report.quality
    assert quality.call is Equal.YES
    assert len(quality.seeds) == 3
    assert quality.time_ratio.value == pytest.approx(report.ratio, rel=0.05)
    assert report.elapsed_seconds <= OPTIONS.budget_seconds + 60.0
    runs = [row.key for row in report.trials if row.key.startswith("quality:")]
    assert runs == [f"quality:{seed}:{plan}" for seed in (1, 2, 3) for plan in ("baseline", "it")]


def test_a_drifting_loss_that_the_guard_cannot_see_is_called_worse(tmp_path):
    report = play(tmp_path, DRIFTING, options=OPTIONS)
    assert report.plan.names == ("it",)
    assert report.quality.call is Equal.WORSE


def test_seeds_reach_the_programs(tmp_path):
    runner = MockRunner(HONEST)
    play(tmp_path, HONEST, options=replace(OPTIONS, seed=7), runner=runner)
    asked = [request.seed for request in runner.requests if request.key.startswith("quality:")]
    assert asked == [7, 7, 8, 8, 9, 9]
    assert all(
        request.reference_role is None for request in runner.requests if request.key.startswith("quality:")
    )


def test_without_the_option_nothing_is_trained(tmp_path):
    assert play(tmp_path, HONEST).quality is None


def test_where_nothing_is_gained_there_is_nothing_to_compare(tmp_path):
    report = play(tmp_path, MockProgram(techniques={"it": MockTechnique()}), options=OPTIONS)
    assert report.quality is None
    assert any("no plan" in note for note in report.notes)


def test_too_little_time_is_said(tmp_path):
    options = SearchOptions(quality=20, budget_seconds=120.0)
    report = play(tmp_path, replace(HONEST, step_seconds=0.2), options=options)
    assert report.quality is None
    assert any("too little" in note for note in report.notes)


def test_what_it_takes_is_said_before_anything_is_tried(tmp_path):
    said = []
    play(tmp_path, HONEST, options=OPTIONS, tell=said.append)
    texts = [progress.text for progress in said]
    cost = next(place for place, text in enumerate(texts) if text.startswith("--quality 3: 240 s"))
    first = next(place for place, text in enumerate(texts) if "starting it" in text)
    assert cost < first


def test_nothing_is_kept_from_the_search_for_what_would_not_fit_anyway(tmp_path):
    said = []
    options = SearchOptions(quality=20, budget_seconds=300.0)
    report = play(tmp_path, replace(HONEST, step_seconds=0.2), options=options, tell=said.append)
    assert any("takes a budget of about" in progress.text for progress in said)
    assert report.plan.names == ("it",)


def test_no_more_is_kept_than_can_be_used(tmp_path):
    said = []
    options = SearchOptions(quality=1, budget_seconds=36_000.0)
    play(tmp_path, replace(HONEST, step_seconds=0.001), options=options, tell=said.append)
    kept = next(progress.text for progress in said if progress.text.startswith("--quality 1"))
    assert float(kept.split()[2]) < 60.0
    assert "2000 steps" in kept or "1999 steps" in kept


class Killed(BaseException):
    pass


def test_a_search_killed_meanwhile_goes_on_with_the_next_run(tmp_path):
    runner = MockRunner(HONEST)

    def kill(_what: str, session: MockSession) -> None:
        if any(request.key == "quality:2:it" for request in runner.requests):
            raise Killed

    runner.before = kill
    with pytest.raises(Killed):
        play(tmp_path, HONEST, options=OPTIONS, runner=runner)
    again = MockRunner(HONEST)
    report = play(tmp_path, HONEST, options=OPTIONS, runner=again)
    asked = [request.key for request in again.requests if request.key.startswith("quality:")]
    assert [key.partition("~")[0] for key in asked] == [
        "quality:2:it",
        "quality:3:baseline",
        "quality:3:it",
    ]
    assert report.quality.call is Equal.YES
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        assert build_report(ledger, 1) == report
