"""What a person may ask of a search, and what is said to what cannot be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.codec import from_plain, to_plain
from flatout.errors import UsageError
from flatout.runners.mock import MockProgram, MockTechnique
from flatout.search.options import FIGURES, Pace, SearchOptions
from flatout.search.standing import Standing
from flatout.search.train import check_options
from flatout.technique import Effect

from .played import PLANTED, play

RECIPE = {
    "larger_batch": MockTechnique(factor=0.5, effect=Effect.RECIPE, expected=1.5),
    "compile": PLANTED["compile"],
}
CATALOGUE = MockProgram(techniques={**PLANTED, **RECIPE}).catalogue()


@pytest.mark.parametrize(
    ("options", "words", "hint"),
    [
        (SearchOptions(only=("bf61",)), "no technique 'bf61'", "Did you mean bf16?"),
        (SearchOptions(without=("Fused-Optimizer2",)), "no technique", "Did you mean fused_optimizer?"),
        (SearchOptions(allow=("zzz",)), "no technique 'zzz'", "The techniques are: tf32, bf16"),
        (SearchOptions(allow=("bf16",)), "bf16 needs no leave", "Leave --allow recipe:bf16 away"),
        (SearchOptions(only=("bf16",), without=("bf16",)), "leaves nothing", "Take one of the two"),
    ],
)
def test_what_cannot_be_asked_is_said(options, words, hint):
    with pytest.raises(UsageError, match=words) as caught:
        check_options(options, CATALOGUE)
    assert hint in caught.value.hint


def test_no_recipe_is_changed_without_leave(tmp_path):
    report = play(tmp_path, MockProgram(techniques=RECIPE), options=SearchOptions())
    rows = {row.name: row for row in report.techniques}
    assert rows["larger_batch"].standing is Standing.NOT_TRIED
    assert rows["larger_batch"].reason == (
        "it changes the recipe of the training: only with --allow recipe:larger_batch"
    )
    assert rows["compile"].standing is Standing.APPLIED


def test_a_recipe_is_changed_by_name(tmp_path):
    options = SearchOptions(allow=("larger_batch",), without=("compile",))
    report = play(tmp_path, MockProgram(techniques=RECIPE), options=options)
    rows = {row.name: row for row in report.techniques}
    assert rows["larger_batch"].standing is not Standing.NOT_TRIED
    assert any("larger_batch" in trial.key for trial in report.trials)


def test_a_pace_is_a_set_of_figures_and_no_claim_is_less_sure():
    fast, normal, thorough = (FIGURES[pace] for pace in Pace)
    assert fast.budget_seconds < normal.budget_seconds < thorough.budget_seconds
    assert fast.most_pairs < normal.most_pairs < thorough.most_pairs
    assert fast.share_pairs == 0 < normal.share_pairs < thorough.share_pairs
    assert {SearchOptions(pace=pace).confidence for pace in Pace} == {0.99}


def test_options_of_an_older_ledger_and_their_resume_key():
    old = {"budget_seconds": 600.0, "only": [], "without": [], "seed": None}
    assert from_plain(SearchOptions, old) == SearchOptions()
    assert set(SearchOptions().resume_key) == {
        "only", "without", "seed", "gain_that_matters", "confidence",
    }  # fmt: skip
    options = SearchOptions(pace=Pace.FAST, allow=("a",), isolation="landlock")
    assert from_plain(SearchOptions, to_plain(options)) == options
    assert options.resume_key != SearchOptions().resume_key
    assert replace(options, isolation="auto").resume_key == options.resume_key


def test_what_next_names_the_same_options(tmp_path):
    from flatout.ledger import Ledger
    from flatout.report import build_report

    options = SearchOptions(
        budget_seconds=240.0, pace=Pace.FAST, allow=("larger_batch",), isolation="landlock", seed=3
    )
    play(tmp_path, MockProgram(techniques=RECIPE), options=options)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_state(1, "interrupted")
        report = build_report(ledger, 1)
    assert (
        "flatout train --fast --budget 240s --allow recipe:larger_batch --isolation landlock --seed 3"
        in report.next_command
    )
