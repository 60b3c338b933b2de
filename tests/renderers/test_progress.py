"""A search that is going on, as lines."""

from __future__ import annotations

import io

import pytest

from flatout.commands.views import LiveView, PlainView, view_for
from flatout.plan import Choice, Plan
from flatout.renderers.progress import PHASES, frame, progress_line
from flatout.search.progress import Phase, Progress

PLAN = Plan(choices=(Choice(name="sdpa"),))


def moment(text: str = "trying bf16", **more: object) -> Progress:
    values: dict[str, object] = {
        "phase": Phase.CLIMBING,
        "text": text,
        "best": PLAN,
        "best_ratio": 1.43,
        "baseline_step_seconds": 0.0349,
        "elapsed_seconds": 100.0,
        "budget_seconds": 600.0,
        "done": 2,
        "total": 5,
    }
    return Progress(**(values | more))  # type: ignore[arg-type]


def test_every_phase_has_words() -> None:
    assert set(PHASES) == set(Phase)


def test_frame_says_what_a_person_wants_to_know() -> None:
    lines = frame(moment(), ["sdpa alone: 1.43x"], since_seconds=20.0)
    text = "\n".join(lines)
    for part in (
        "sdpa alone: 1.43x",
        "trying bf16",
        "1.43x with sdpa",
        "2 of 5",
        "8 min of 10 min",
        "Ctrl-C",
    ):
        assert part in text


def test_frame_fits_and_shows_the_last_milestones() -> None:
    lines = frame(moment("x" * 500), [f"m{number}" for number in range(50)], width=60)
    assert max(map(len, lines)) <= 60
    assert "m49" in "\n".join(lines)
    assert "m3\n" not in "\n".join(lines)


def test_nothing_found_yet() -> None:
    text = "\n".join(frame(moment(best=Plan(), best_ratio=None, total=0), []))
    assert "the program as it is, 34.9 ms a step" in text
    assert "not yet known" in text


def test_a_line_has_no_control_characters() -> None:
    assert "\x1b" not in progress_line(moment("a\x1b[2Jb"))


def test_plain_lines_are_rare_except_for_milestones() -> None:
    now = [0.0]
    stream = io.StringIO()
    with PlainView(stream, clock=lambda: now[0]) as view:
        view.tell(moment("first"))
        now[0] = 1.0
        view.tell(moment("too soon"))
        view.tell(moment("a result", milestone=True))
        now[0] = 9.0
        view.tell(moment("later"))
        now[0] = 99.0
        view.tell(moment("later"))
    lines = stream.getvalue().splitlines()
    assert [line.partition("] ")[2].split("   (")[0] for line in lines] == ["first", "a result", "later"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_live_view_leaves_its_milestones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with view_for(stream) as view:
        assert isinstance(view, LiveView)
        view.tell(moment("a result", milestone=True))
        view.tell(moment("going on"))
    end = stream.getvalue().rpartition("\x1b[?25h")[2]
    assert "a result" in end
    assert "going on" not in end


def test_plain_view_where_nothing_can_be_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(view_for(Terminal()), PlainView)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(view_for(io.StringIO()), PlainView)
