"""A command as a line that a shell takes back, and that a terminal shows as it is."""

from __future__ import annotations

import subprocess

import pytest

from flatout.renderers.text import plain
from flatout.words import command_line, nearest


@pytest.mark.parametrize(
    "words",
    [
        ("python", "train.py", "--its-own", "args"),
        ("python", "-c", "import torch\nprint('a', \"b\", 'c\\\\d')\n\tx = 1"),
        ("python", "tr ain 'ü\".py", "", "*", "$HOME", "~"),
        ("a\x1b[2J7", "b\u202e1", "\x017", "\x7f", "not-\udcff-utf-8"),
    ],
)
def test_bash_takes_it_back(words: tuple[str, ...]) -> None:
    line = command_line(words)
    assert plain(line) == line
    seen = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True
    ).stdout.decode("utf-8", "surrogateescape")
    assert tuple(seen.split("\0")[:-1]) == words


def test_an_ordinary_one_is_left_as_it_is() -> None:
    assert command_line(["python", "-m", "pkg.train", "--lr=3e-4"]) == "python -m pkg.train --lr=3e-4"


def test_nearest() -> None:
    assert nearest("bf6", ["bf16", "compile"]) == "bf16"
    assert nearest("zzz", ["bf16", "compile"]) is None
