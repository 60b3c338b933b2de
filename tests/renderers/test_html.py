"""The report as one HTML file: whole, inert, and nothing in it that data could break."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from flatout.quality import Equal, Interval, Quality, SeedResult
from flatout.renderers.html import render_html
from flatout.report import Report

from .samples import CRASHED, GAIN, NOTHING

VOID = {"meta", "br", "wbr", "line", "circle"}
QUALITY = Quality(
    plan="sdpa+compile",
    call=Equal.YES,
    reason="its loss is -0.001 [-0.003, +0.001] apart; up to 0.02 is what seeds alone do",
    steps=300,
    smoothed=30,
    seeds=(SeedResult(seed=1, level=2.1, plan_level=2.09, baseline_steps=300, plan_steps=None),),
    difference=Interval(value=-0.001, low=-0.003, high=0.001),
    margin=0.02,
    spread=0.02,
    steps_ratio=Interval(value=1.01, low=0.99, high=1.03),
    time_ratio=Interval(value=2.3, low=2.2, high=2.4),
)


class Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(report: Report) -> Checker:
    checker = Checker()
    checker.feed(render_html(report))
    checker.close()
    assert checker.open == []
    return checker


@pytest.mark.parametrize("report", [GAIN, NOTHING, CRASHED, replace(GAIN, quality=QUALITY)])
def test_it_is_one_file_that_loads_and_runs_nothing(report: Report) -> None:
    checker = parse(report)
    assert report.conclusion in checker.text
    assert not checker.tags & {"script", "link", "img", "iframe", "object", "form", "a"}
    assert not [name for name, _ in checker.attributes if name in {"src", "href"} or name.startswith("on")]
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", render_html(report))
    assert "prefers-color-scheme: dark" in render_html(report)


def test_it_has_all_that_the_others_have() -> None:
    text = " ".join(parse(replace(GAIN, quality=QUALITY)).text.split())
    for part in (
        "34.9 ms -> 15.1 ms a step: 2.31x [2.28, 2.35], 99 % sure",
        "What is left of the plan's step",
        "8 ms arithmetic in bfloat16",
        "gradients differ too much",
        "model.compile()",
        "equal quality over 1 seed of 300 steps",
        "not reached",
        "500.0 MiB",
        "gradients | differ",
        "clocks 1,980 MHz",
        GAIN.next_command,
    ):
        assert part in text, part


def test_data_is_text_and_nothing_else() -> None:
    nasty = '"><script>alert(1)</script>&lt;\x1b[2J\u202e\x00'
    report = replace(
        GAIN,
        conclusion=nasty,
        command=(nasty,),
        guard_note=nasty,
        notes=(nasty,),
        next_command=nasty,
        child_error=nasty,
        already={nasty: nasty},
        thrown_away=((nasty, 3),),
        techniques=tuple(
            replace(row, reason=nasty, claimed=nasty, name=nasty, by_hand=nasty) for row in GAIN.techniques
        ),
        limits=tuple(replace(limit, evidence=nasty, cause=nasty) for limit in GAIN.limits),
        verdicts=tuple(replace(verdict, key=nasty) for verdict in GAIN.verdicts),
        trials=tuple(replace(trial, key=nasty, reason=nasty) for trial in GAIN.trials),
        surroundings=({"comparison": nasty, "words": nasty},),
        left=replace(
            GAIN.left,
            parts=tuple(replace(part, cause=nasty, evidence=nasty) for part in GAIN.left.parts),
            above=tuple(replace(row, operator=nasty, kernel=nasty) for row in GAIN.left.above),
        )
        if GAIN.left
        else None,
        host=replace(GAIN.host, gpus=(replace(GAIN.host.gpus[0], name=nasty),)),
    )
    checker = parse(report)
    assert "script" not in checker.tags
    assert "alert(1)" in checker.text
    text = render_html(report)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    text.encode()


def test_intervals_that_are_not_finite_are_not_drawn() -> None:
    wild = replace(GAIN.verdicts[0], high=float("inf"), key="wild")
    unknown = replace(GAIN.verdicts[0], ratio=None, low=None, high=None, key="unknown")
    text = render_html(replace(GAIN, verdicts=(wild, unknown)))
    assert "<svg" not in text
    assert "nan" not in text


def test_long_names_break_between_their_parts_and_read_whole() -> None:
    text = render_html(
        replace(GAIN, verdicts=(replace(GAIN.verdicts[0], key="climb:sdpa+fused_optimizer"),))
    )
    assert '<code class="key">climb:<wbr>sdpa+<wbr>fused_optimizer</code>' in text
    assert (
        "climb:sdpa+fused_optimizer"
        in parse(
            replace(GAIN, verdicts=(replace(GAIN.verdicts[0], key="climb:sdpa+fused_optimizer"),))
        ).text
    )
