"""Where `flatout run` puts its own files."""

from __future__ import annotations

from pathlib import Path

from flatout.commands.run import folder_of


def test_a_plan_that_was_moved_gets_no_folders_beside_it(tmp_path: Path) -> None:
    assert folder_of(tmp_path / "plan.toml") == tmp_path / ".flatout"
    assert folder_of(tmp_path / ".flatout" / "plan.toml") == tmp_path / ".flatout"
    (tmp_path / "ledger.sqlite").touch()
    assert folder_of(tmp_path / "plan.toml") == tmp_path
