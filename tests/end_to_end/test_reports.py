"""Cases that people reported: the conclusion that their first line asks for stands in report.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flatout import errors

from .harness import PROGRAMS, House, shared_folder

pytestmark = pytest.mark.torch


def case(number: str) -> Path:
    """The case's file; skips the test where the shared folder is absent."""
    shared = shared_folder()
    if shared is None:
        pytest.skip("no folder of shared cases: set FLATOUT_SHARED, or put `shared` next to the checkout")
    return next((shared / "cases" / "reports").glob(f"{number}-*.py"))


def test_02_recompiles_are_counted_and_compile_is_refused(house: House) -> None:
    """It compiles itself with fixed shapes, meets a new length at each of its 12 steps, and ends."""
    ended = house.train(sys.executable, str(case("02")), options=("--budget", "60s"))
    assert ended.exit_code in (0, errors.TooFewSteps.exit_code), ended.text
    report = ended.report
    assert report["compile"] is not None, json.dumps(report["notes"])
    assert report["compile"]["recompiles"] >= 6
    (row,) = [row for row in report["techniques"] if row["name"] == "compile"]
    if row["standing"] == "applied":
        assert row["settings"].get("dynamic") is True
    else:
        assert report["compile"]["refused"] or "recompil" in row["reason"], row
    said = " ".join([report["conclusion"], row["reason"], report["compile"]["refused"], *report["notes"]])
    assert "recompil" in said


def test_14_keys_of_a_checkpoint_are_named(house: House) -> None:
    """It compares torch.compile(module) with module.compile() and never trains."""
    ended = house.train(sys.executable, str(case("14")), options=("--budget", "60s"))
    assert ended.exit_code in (0, errors.NeverStepped.exit_code), ended.text
    said = json.dumps(ended.report)
    assert "_orig_mod." in said, ended.text
    assert "in place" in said or "module.compile()" in said


@pytest.mark.real
def test_keys_of_a_checkpoint_are_unchanged_under_compile(house: House) -> None:
    """A program that saves, and resumes in a plain model, while compile acts on it."""
    command = (sys.executable, str(PROGRAMS / "saves_while_training.py"))
    ended = house.train(*command, options=("--budget", "240s", "--only", "compile"), timeout=400)
    assert ended.exit_code == 0, ended.text
    (row,) = [row for row in ended.report["techniques"] if row["name"] == "compile"]
    assert row["standing"] in ("applied", "no gain"), row
    outputs = ended.trial_outputs()
    assert "resume ok ['0.bias', '0.weight', '2.bias', '2.weight']" in outputs
    assert "_orig_mod" not in outputs


@pytest.mark.real
def test_growing_lengths_are_dynamic_or_refused(house: House) -> None:
    """A plain program of ours with the shapes of case 02 and steps enough to measure."""
    command = (sys.executable, str(PROGRAMS / "growing_length.py"))
    ended = house.train(*command, options=("--budget", "300s", "--only", "compile"), timeout=500)
    assert ended.exit_code == 0, ended.text
    report = ended.report
    (row,) = [row for row in report["techniques"] if row["name"] == "compile"]
    if row["standing"] == "applied":
        assert row["settings"].get("dynamic") is True, row
    else:
        assert report["compile"] is not None and report["compile"]["recompiles"] > 0
