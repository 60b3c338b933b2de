"""A search leaves the person's files as they were and nothing running, however it ends."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from flatout import errors

from .harness import PROGRAMS, House, tree_hash, wait_for

pytestmark = pytest.mark.torch
LONG = ("--budget", "300s", "--only", "fused_optimizer")


def furnish(house: House) -> tuple[tuple[str, ...], list[Path]]:
    """Lay out files that the program overwrites, deletes or would resume from: (command, roots)."""
    folder = house.root / "checkpoints"
    folder.mkdir()
    (folder / "precious.txt").write_text("of three weeks' work")
    (house.work / "precious.txt").write_text("of four weeks' work")
    (house.work / "guest.child").write_text("an older one")
    (house.work / "link").symlink_to(folder)
    (house.home / ".netrc").write_text("secret")
    (house.home / ".netrc").chmod(0o600)
    command = (sys.executable, str(PROGRAMS / "checkpoints.py"), "--folder", str(folder))
    return command, [house.work, house.home, folder]


def temporary_guests() -> list[str]:
    return sorted(path.name for path in Path(tempfile.gettempdir()).glob("guest.*"))


def test_nothing_of_the_house_changes(house: House) -> None:
    command, roots = furnish(house)
    before, temporary_before = tree_hash(*roots), temporary_guests()
    ended = house.train(*command, options=("--budget", "60s", "--only", "fused_optimizer"))
    assert ended.exit_code == 0, ended.text
    assert tree_hash(*roots) == before
    assert temporary_guests() == temporary_before
    assert house.leftover() == []
    report = ended.report
    assert report["isolation"] in ("overlay", "landlock", "redirect")
    if report["isolation"] == "redirect":
        pytest.skip("only Python's own writers can be redirected here, and this program has others")
    thrown_away = " ".join(path for path, _size in report["thrown_away"])
    for name in ("checkpoint.pt", "guest.safetensors", "guest.native.pt", "guest.child"):
        assert name in thrown_away
    assert report["thrown_away_count"] >= 4 and report["thrown_away_bytes"] > 0
    # A second process that saw the first one's checkpoint would have resumed from it.
    assert "resumed" not in ended.trial_outputs()


def test_default_out_folder_is_all_that_is_added(house: House) -> None:
    house.work.joinpath("notes.txt").write_text("mine")
    words = ("--budget", "30s", "--only", "tf32", "--", sys.executable, str(PROGRAMS / "plain.py"))
    ended = house.flatout("train", *words)
    assert ended.exit_code == 0, ended.text
    assert sorted(path.name for path in house.work.iterdir()) == [".flatout", "notes.txt"]
    assert list(house.home.iterdir()) == []


@pytest.mark.parametrize("isolation", ["overlay", "landlock"])
@pytest.mark.root
def test_each_strong_way_of_isolation(house: House, isolation: str) -> None:
    command, roots = furnish(house)
    before = tree_hash(*roots)
    options = ("--budget", "30s", "--only", "tf32", "--isolation", isolation)
    ended = house.train(*command, options=options)
    if ended.exit_code == errors.IsolationError.exit_code:
        pytest.skip(ended.stderr.strip())
    assert tree_hash(*roots) == before
    assert house.leftover() == []
    # Landlock forbids what lies outside the copied folder: this program then fails, and says so itself.
    assert ended.exit_code in (0, errors.ProgramCrashed.exit_code), ended.text
    if ended.exit_code == 0:
        assert ended.report["isolation"] == isolation


def stepping(house: House) -> bool:
    """Some trial's training process has begun to report."""
    return any(path.stat().st_size for path in house.out.glob("trials/*/rank-*.jsonl"))


def test_ctrl_c_keeps_what_was_found_and_leaves_nothing(house: House) -> None:
    command, roots = furnish(house)
    before = tree_hash(*roots)
    process = house.start("train", "--out", str(house.out), *LONG, "--", *command)
    wait_for(lambda: stepping(house), 90, "a first step")
    # As a terminal does it: the whole foreground group gets the signal.
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == errors.Interrupted.exit_code, stdout + stderr
    assert "Traceback" not in stderr, stderr
    assert house.leftover() == []
    assert tree_hash(*roots) == before
    assert house.ledger_is_whole()
    report = house.flatout("report", str(house.out), "--format", "json")
    assert report.exit_code == 0, report.text


def test_kill_9_leaves_nothing_running(house: House) -> None:
    command, roots = furnish(house)
    before = tree_hash(*roots)
    process = house.start("train", "--out", str(house.out), *LONG, "--", *command)
    wait_for(lambda: stepping(house), 90, "a first step")
    process.kill()
    process.communicate(timeout=30)
    assert house.leftover(20) == []
    assert tree_hash(*roots) == before
    assert house.ledger_is_whole()


def test_terminate_leaves_nothing_running(house: House) -> None:
    process = house.start(
        "train", "--out", str(house.out), *LONG, "--", sys.executable, str(PROGRAMS / "plain.py")
    )
    wait_for(lambda: stepping(house), 90, "a first step")
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert house.leftover(20) == []
    assert house.ledger_is_whole()


@pytest.mark.real
def test_a_killed_search_goes_on(house: House) -> None:
    command = (sys.executable, str(PROGRAMS / "plain.py"))
    options = ("--budget", "90s", "--only", "fused_optimizer,bf16")
    process = house.start("train", "--out", str(house.out), *options, "--", *command)
    wait_for(lambda: len(list(house.out.glob("trials/*"))) >= 3, 120, "a third trial")
    process.kill()
    process.communicate(timeout=30)
    assert house.leftover(20) == []
    first = {path.name for path in house.out.glob("trials/*")}
    ended = house.train(*command, options=options)
    assert ended.exit_code == 0, ended.text
    keys = [trial["key"] for trial in ended.report["trials"]]
    assert "baseline" in keys
    assert len(first) + len(keys) > 3
    assert ended.report["state"] == "finished"
