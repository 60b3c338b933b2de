"""Programs that train in an odd way, through a whole search: a verdict that says what is odd."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .harness import PROGRAMS, Ended, House

pytestmark = [pytest.mark.torch, pytest.mark.real]


def search(house: House, *words: str, budget: str = "60s", only: str = "fused_optimizer") -> Ended:
    name, *rest = words
    command = (sys.executable, str(PROGRAMS / name), *rest)
    ended = house.train(*command, options=("--budget", budget, "--only", only))
    whole(house, ended)
    return ended


def whole(house: House, ended: Ended) -> None:
    assert ended.exit_code == 0, ended.text
    assert house.ledger_is_whole()
    assert house.leftover() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("odd_losses.py", "--how", "nan"), "not a number from step 1 on"),
        (("odd_losses.py", "--how", "constant"), "loss is 2.5 at every step"),
        (("never_the_same.py",), "does not compute the same twice"),
        (("no_loss.py", "--how", "nonscalar"), "No loss was seen"),
        (("no_loss.py", "--how", "grad"), "No loss was seen"),
        (("no_loss.py", "--how", "manual"), "No loss was seen"),
    ],
    ids=lambda value: " ".join(value[::2]) if isinstance(value, tuple) else "",
)
def test_what_is_odd_is_said(house: House, words: tuple[str, ...], said: str) -> None:
    ended = search(house, *words)
    report = ended.report
    assert said in report["conclusion"]
    # nothing that nobody could judge is called right
    assert "guard passed" not in report["conclusion"] or said == "No loss was seen"


@pytest.mark.parametrize(
    "words", [("other_shapes.py",), ("paced.py", "--seconds", "0.001"), ("paced.py", "--seconds", "6")]
)
def test_other_shapes_and_short_and_long_steps_end_in_a_verdict(
    house: House, words: tuple[str, ...]
) -> None:
    report = search(house, *words).report
    assert report["conclusion"] and report["state"] == "finished"


def test_bursts_of_a_slow_loader_are_no_gain(house: House) -> None:
    """Four workers that deliver together: the median step is a short one, whatever the throughput."""
    report = search(house, "slow_loader.py", "--workers", "4", "--seconds", "0.08", budget="100s").report
    assert 0.017 < report["baseline_step_seconds"] < 0.026, "80 ms a batch, four at a time"
    assert report["limits"][0]["cause"] == "loader"
    assert report["plan"]["choices"] == []


def test_memory_for_one_process_only_is_searched_in_turns(house: House) -> None:
    report = search(house, "one_at_a_time.py", "--name", house.mark, budget="80s").report
    assert any("do not fit into memory side by side" in note for note in report["notes"])
    methods = {verdict["method"] for verdict in report["verdicts"]}
    assert methods <= {"alternating fresh processes"}


def test_a_program_of_two_ranks_comes_to_a_verdict(house: House) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("torchrun is not beside this Python")
    command = (str(torchrun), "--standalone", "--nproc-per-node", "2", str(PROGRAMS / "ddp.py"))
    ended = house.train(*command, options=("--budget", "120s", "--only", "fused_optimizer"))
    whole(house, ended)
    report = ended.report
    rows = {row["name"]: row for row in report["techniques"]}
    assert rows["fused_optimizer"]["standing"] in {"applied", "no gain"}, rows["fused_optimizer"]["reason"]
    assert {verdict["method"] for verdict in report["verdicts"]} == {"resident pair"}
