"""The three renderers of a report: what they show, in which order, and that data cannot break them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from flatout.renderers.html import render_html
from flatout.renderers.json import render_json
from flatout.renderers.markdown import code, escape, render_markdown
from flatout.renderers.terminal import render_terminal, wants_colour
from flatout.report import Report, Standing

from .samples import CRASHED, GAIN, NOTHING

ALL = (GAIN, NOTHING, CRASHED)
SECTIONS = (
    "What each technique brought",
    "What limits the program as it is",
    "What is left of the plan's step",
    "Already there",
    "Not in the plan",
    "How sure",
    "Every comparison",
    "Your files",
    "Next",
)


def test_terminal_has_everything_in_order() -> None:
    text = render_terminal(GAIN)
    places = [text.index(part) for part in (GAIN.conclusion, *SECTIONS)]
    assert places == sorted(places)
    flat = " ".join(text.split())
    for part in (
        "34.9 ms -> 15.1 ms a step: 2.31x [2.28, 2.35], 99 % sure",
        "1.43x [1.41, 1.45]",
        "2-3x over FP32",
        "1. attention: 12.1 ms a step (35 %)",
        "8 ms 53 % the roofline floor of its operators: 8 ms arithmetic in bfloat16",
        "2 ms 13 % dispatching and launching: 310 kernels, one by one [fusing operators, larger batches]",
        "aten::mm (48 calls) [batch]",
        "floor by the data sheet of NVIDIA H200: 990 TFLOP/s bfloat16, 4,800 GB/s",
        "proves no gain",
        "2.31x [2.28, 2.35] prove:sdpa+compile: better; 24 turns, 2 pairs, 1 left out, sees 1.2 %",
        "50 parameters, against truth: 61 dB (the program itself 70, needed 40)",
        "not checked: dropout: the program has none",
        "the search's time: 1 min 40 s starting processes, 2 min 30 s measuring in turns, 40 s the guard",
        "gradients differ too much",
        "there is none here",
        "1.002x alone",
        "500.0 MiB /home/ada/gpt/out/checkpoint.pt",
        "and 7 more",
        "earned back after 1,061 steps",
        "an overlay in a mount namespace",
        GAIN.next_command,
    ):
        assert part in flat, part
    assert text.rstrip().endswith(GAIN.next_command)


def test_refused_comes_before_unfit() -> None:
    text = render_terminal(GAIN)
    assert text.index("bf16") < text.index("fused_optimizer") < text.index("tf32")


@pytest.mark.parametrize("report", ALL)
@pytest.mark.parametrize("width", [10, 80, 100, 500])
def test_terminal_keeps_within_its_width(report: Report, width: int) -> None:
    for line in render_terminal(report, width=width).splitlines():
        assert len(line) <= max(80, min(width, 120)), line


def test_no_colour_unless_asked() -> None:
    assert "\x1b" not in render_terminal(GAIN)
    painted = render_terminal(GAIN, colour=True)
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[\d+m", "", painted) == render_terminal(GAIN)


def test_when_colour_is_wanted() -> None:
    class Stream:
        def __init__(self, terminal: bool) -> None:
            self.terminal = terminal

        def isatty(self) -> bool:
            return self.terminal

    assert wants_colour(Stream(True), {"TERM": "xterm"})  # type: ignore[arg-type]
    assert not wants_colour(Stream(True), {"TERM": "xterm", "NO_COLOR": "1"})  # type: ignore[arg-type]
    assert not wants_colour(Stream(True), {"TERM": "dumb"})  # type: ignore[arg-type]
    assert not wants_colour(Stream(False), {"TERM": "xterm"})  # type: ignore[arg-type]


def test_nothing_to_change() -> None:
    text = render_terminal(NOTHING)
    assert text.startswith("nothing to change")
    assert "34.9 ms a step, as it is" in text
    assert "What each technique brought" not in text
    assert "the trials wrote nothing" in text


def test_a_crash_shows_the_programs_own_words_first() -> None:
    text = render_terminal(CRASHED)
    assert text.index("KeyError: 'x'") < text.index(CRASHED.conclusion)
    assert "\x1b" not in text
    markdown = render_markdown(CRASHED)
    assert "KeyError: 'x'" in markdown
    assert "\x1b" not in markdown


def test_control_characters_never_reach_a_terminal() -> None:
    nasty = "a\x1b[2Jb\rc\x07d\u202ee\ud800"
    techniques = tuple(replace(row, reason=nasty, claimed=nasty, name=nasty) for row in GAIN.techniques)
    report = replace(
        GAIN,
        conclusion=nasty,
        command=(nasty,),
        guard_note=nasty,
        notes=(nasty,),
        next_command=nasty,
        already={nasty: nasty},
        thrown_away=((nasty, 3),),
        techniques=techniques,
        limits=tuple(replace(limit, evidence=nasty, cause=nasty) for limit in GAIN.limits),
        host=replace(GAIN.host, gpus=(replace(GAIN.host.gpus[0], name=nasty),)),
    )
    for text in (render_terminal(report), render_markdown(report)):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
        text.encode()
    render_json(report).encode()


@pytest.mark.parametrize("report", ALL)
def test_json_has_every_field_and_is_strict(report: Report) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    plain = json.loads(render_json(report), parse_constant=refuse)
    assert set(plain) == {field.name for field in fields(Report)} | {"format"}
    assert plain["conclusion"] == report.conclusion


def test_json_numbers_come_back_to_the_bit() -> None:
    plain = json.loads(render_json(GAIN))
    assert plain["verdicts"][0]["samples_b"] == [0.0151, 0.0152]
    assert plain["verdicts"][0]["samples_a"] == [0.0349, "nan"]
    assert plain["techniques"][1]["standing"] == Standing.REFUSED.value


def test_markdown_has_all_that_the_terminal_has_and_more() -> None:
    text = render_markdown(GAIN)
    assert text.startswith(f"# {GAIN.conclusion}\n")
    for section in (*SECTIONS, "By hand", "Every trial"):
        assert f"\n## {section}\n" in text
    assert "model.compile()" in text
    assert "gradients \\| differ" in text
    assert GAIN.next_command in text


def test_markdown_tables_have_equal_columns() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", render_markdown(GAIN), flags=re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1, table


def test_markdown_escapes() -> None:
    assert escape("a*b_c|d<e>") == r"a\*b\_c\|d\<e\>"
    assert code("x") == "`x`"
    assert code("a`b") == "``a`b``"
    assert code("`b") == "`` `b ``"
    assert code("a|b") == r"`a\|b`"


@pytest.mark.parametrize("render", [render_terminal, render_markdown, render_html])
def test_limits_of_another_step_than_the_proofs_say_so(render: Callable[[Report], str]) -> None:
    words = "reckoned while a step took"
    assert words not in render(GAIN)
    slowed = tuple(replace(limit, seconds_per_step=2 * limit.seconds_per_step) for limit in GAIN.limits)
    assert f"{words} 69.1 ms, not 34.9 ms" in " ".join(render(replace(GAIN, limits=slowed)).split())
    assert words not in render(replace(GAIN, limits=slowed, baseline_step_seconds=None))
