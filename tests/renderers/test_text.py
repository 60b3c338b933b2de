"""Text functions and how errors look."""

from __future__ import annotations

import pytest

from flatout.errors import ProgramCrashed, UsageError
from flatout.renderers.errors import CHILD_ERROR_LINES, render_error
from flatout.renderers.sentences import smallest_line
from flatout.renderers.text import duration, plain, size, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("a\x00b", "a\\x00b"),
        ("a\u202eb", "a\\u202eb"),
        ("a\tb", "a    b"),
        ("a\nb", "a\\x0ab"),
        ("größer 模型", "größer 模型"),
        ("\ud800", "\\ud800"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_progress_bar_keeps_its_last_state() -> None:
    bar = "  0%|   |\r 50%|=  |\r100%|==|\nTraceback\r\nend\r"
    assert plain(bar, keep_lines=True) == "100%|==|\nTraceback\nend"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00035, "350 us"),
        (0.0268, "26.8 ms"),
        (0.2851, "285 ms"),
        (0.9999, "1 s"),
        (4.213, "4.21 s"),
        (59.999, "1 min"),
        (200, "3 min 20 s"),
        (600, "10 min"),
        (7500, "2 h 5 min"),
        (0, "0 us"),
        (-0.5, "-500 ms"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


def test_table() -> None:
    assert table([("a", "b"), ("long", "c")]) == ["a     b", "long  c"]
    assert table([]) == []


def test_an_error_without_a_childs_words() -> None:
    assert render_error(UsageError("no", hint="yes")) == "flatout: no\n  what to do: yes\n"


def test_long_child_errors_keep_their_end() -> None:
    words = "\n".join(f"line {number}" for number in range(100))
    text = render_error(ProgramCrashed("it fails", child_error=words))
    assert "line 99" in text
    assert "line 10\n" not in text
    assert f"{100 - CHILD_ERROR_LINES} lines before these" in text


@pytest.mark.parametrize(
    ("effect", "shown"), [(0.014, "1.4 %"), (0.9, "90 %"), (1.97, "3.0x"), (1.8e16, "100x or more")]
)
def test_what_noise_hides(effect: float, shown: str) -> None:
    assert smallest_line(effect).endswith(f"shown: {shown}")
