"""The shell scripts: they parse, are executable, and say what is wrong in words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ("scripts/check", "scripts/test", "scripts/demo", "scripts/docs", ".ci/run")


@pytest.mark.parametrize("name", (*SCRIPTS, "scripts/environment.sh"))
def test_parses(name: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_is_executable_and_strict(name: str) -> None:
    path = ROOT / name
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()


@pytest.mark.parametrize(
    "pinned", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name
)
def test_requirements_are_pinned(pinned: Path) -> None:
    for line in pinned.read_text().splitlines():
        assert not line or line.startswith("#") or "==" in line, line


def test_no_python_is_said_in_words(tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "id", "cat"):
        (tmp_path / tool).symlink_to(
            f"/usr/bin/{tool}" if Path(f"/usr/bin/{tool}").exists() else f"/bin/{tool}"
        )
    done = subprocess.run(
        [str(tmp_path / "bash"), str(ROOT / "scripts" / "check")],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no Python 3.11, 3.12 or 3.13" in done.stderr
    assert "what to do: install one" in done.stderr
