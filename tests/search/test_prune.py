"""The fewest techniques that give the speed, and candidates that a larger plan makes worth trying again."""

from __future__ import annotations

import pytest

from flatout.ledger import Ledger
from flatout.runners.mock import MockProgram, MockRunner, MockTechnique
from flatout.search.measure import Beaten
from flatout.search.options import Pace, SearchOptions
from flatout.search.standing import Standing
from flatout.trial import Outcome, State

from .played import play

QUIET = {"noise": 0.003, "process_noise": 0.0002, "drift": 0.0, "spike_chance": 0.0}
HOUR = SearchOptions(budget_seconds=3600.0)


def program(**change: object) -> MockProgram:
    """``first`` is worth 1.11x alone, and nothing beside ``second``, which is worth 2x."""
    techniques = {
        "first": MockTechnique(factor=0.9, expected=3.0),
        "second": MockTechnique(factor=0.5, expected=1.5, start_seconds=20.0),
        "third": MockTechnique(factor=0.8, expected=1.4, start_seconds=21.0),
    }
    interactions = {frozenset({"first", "second"}): 1.0 / 0.9}
    return MockProgram(techniques=techniques, interactions=interactions, **QUIET, **change)  # type: ignore[arg-type]


def screened_never(monkeypatch) -> None:
    """So that ``first`` is tried first."""
    monkeypatch.setattr("flatout.search.train._to_screen", lambda bench, climb, choices: set())


def test_what_a_later_technique_made_worthless_leaves_the_plan(tmp_path, monkeypatch):
    screened_never(monkeypatch)
    report = play(tmp_path, program(), options=HOUR)
    assert report.plan.names == ("second", "third")
    rows = {row.name: row for row in report.techniques}
    assert rows["first"].standing is Standing.NO_GAIN
    assert rows["first"].reason.startswith("not needed any more: the plan is as fast without it (")
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        verdict = ledger.verdicts(1)["final:second+third"]
    assert report.ratio == verdict.ratio, "the claim is the smaller plan's own proof"
    assert not verdict.plan_a


def test_a_plan_that_needs_all_of_its_techniques_keeps_them(tmp_path, monkeypatch):
    screened_never(monkeypatch)
    needed = MockProgram(techniques=program().techniques, **QUIET)
    report = play(tmp_path, needed, options=HOUR)
    assert report.plan.names == ("first", "second", "third")
    assert not any(trial.key.startswith("pruned:") for trial in report.trials)


def test_without_shares_nothing_leaves(tmp_path, monkeypatch):
    screened_never(monkeypatch)
    options = SearchOptions(budget_seconds=3600.0, pace=Pace.FAST)
    assert play(tmp_path, program(), options=options).plan.names == ("first", "second", "third")


def test_the_same_again_from_the_ledger(tmp_path, monkeypatch):
    """Given the same trials it decides the same: nothing is measured a second time."""
    screened_never(monkeypatch)
    first = play(tmp_path, program(), options=HOUR)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_state(1, "running")
    runner = MockRunner(program())
    again = play(tmp_path, program(), options=HOUR, runner=runner)
    assert (again.plan, again.ratio, again.low) == (first.plan, first.ratio, first.low)
    assert not any(request.key.startswith(("final", "share", "climb")) for request in runner.requests)


def test_what_was_started_for_a_smaller_plan_does_not_outlive_its_proof(tmp_path, monkeypatch):
    screened_never(monkeypatch)
    runner = MockRunner(program())

    def fails(bench, key, a, b, aim):
        b.warm()
        raise Beaten(a, Outcome(state=State.FAILED, reason="the untouched program failed"))

    left: list[str] = []
    monkeypatch.setattr("flatout.search.prune.prove", fails)
    monkeypatch.setattr(
        "flatout.search.train.measure_quality",
        lambda *_: left.extend(session._request.key for session in runner.live),
    )
    report = play(tmp_path, program(), options=HOUR, runner=runner)
    assert any(request.key.startswith("pruned:") for request in runner.requests)
    assert report.plan.names == ("first", "second", "third")
    assert left == []


@pytest.mark.parametrize("screens", [False, True])
def test_what_lost_alone_is_tried_again_on_a_larger_plan(tmp_path, monkeypatch, screens):
    """Slower by itself, whether that was proved or only seen in screening, and faster once the plan has the
    other."""
    if not screens:
        screened_never(monkeypatch)
    techniques = {
        "odd": MockTechnique(factor=1.15, expected=3.0),
        "base": MockTechnique(factor=0.6, expected=1.5),
    }
    together = MockProgram(techniques=techniques, interactions={frozenset({"odd", "base"}): 0.7}, **QUIET)
    report = play(tmp_path, together, options=HOUR)
    assert any(trial.key == "screen:odd" for trial in report.trials) == screens
    assert report.plan.names == ("odd", "base")


def test_where_time_is_short_what_lost_is_not_tried_again(tmp_path, monkeypatch):
    screened_never(monkeypatch)
    techniques = {
        "odd": MockTechnique(factor=1.15, expected=3.0),
        "base": MockTechnique(factor=0.6, expected=1.5),
    }
    together = MockProgram(
        techniques=techniques, interactions={frozenset({"odd", "base"}): 0.7}, start_seconds=15.0, **QUIET
    )
    report = play(tmp_path, together, options=SearchOptions(budget_seconds=240.0, pace=Pace.FAST))
    assert report.plan.names == ("base",)
