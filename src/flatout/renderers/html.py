"""A report as one HTML file: no script, nothing loaded from anywhere, light or dark as the reader's system
is, from a phone's width on. All that the Markdown has, with bars for times and lines for intervals."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence

from flatout.ratios import times
from flatout.renderers import sentences
from flatout.renderers.text import duration, plain, size
from flatout.report import Remains, Report, TrialRow
from flatout.trial import Verdict
from flatout.words import command_line

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --paper: #ffffff;
  --card: #f5f7f9; --good: #14745a; --bad: #a83232; --bar: #2f6fb2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa6b5; --line: #323b47;
  --paper: #14181e; --card: #1c222a; --good: #5cc8a4; --bad: #ee8a8a; --bar: #6aa9e8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 1.35rem; line-height: 1.35; margin: 0 0 16px; font-weight: 600; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 36px 0 10px; }
.good { color: var(--good); } .bad { color: var(--bad); } .soft { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th { text-align: left; font-weight: 500; color: var(--soft); }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 0.86em; }
td code, td:last-child { overflow-wrap: anywhere; } td code.key { overflow-wrap: normal; }
td:last-child { min-width: 190px; } td:first-child { min-width: 92px; }
pre { background: var(--card); padding: 12px; white-space: pre-wrap; overflow-wrap: anywhere;
  border-radius: 6px; margin: 8px 0; }
ul, ol { margin: 8px 0; padding-left: 22px; } li { overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
.steps { display: grid; grid-template-columns: max-content 1fr max-content; gap: 6px 12px;
  align-items: center; margin: 16px 0; }
.track { background: var(--card); border-radius: 4px; } .fill { background: var(--bar); height: 18px;
  border-radius: 4px; min-width: 2px; }
.stack { display: flex; height: 26px; border-radius: 4px; overflow: hidden; margin: 10px 0; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 8px; }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--soft); }
@media (max-width: 600px) { h1 { font-size: 1.1rem; } table { font-size: 0.8rem; }
  th, td { padding-right: 8px; } td.number:not(:first-child) { white-space: normal; }
  td:last-child { min-width: 110px; } td:first-child { min-width: 68px; } }
"""
_COLOURS = {
    "floor": "#2f7d5d",
    "compute": "#4f86c6",
    "attention": "#7a6fc4",
    "memory": "#3fa0b8",
    "optimizer": "#b06fb0",
    "untold": "#8a94a3",
    "copies": "#9c8458",
    "communication": "#6e8f3e",
    "launches": "#d08a2e",
    "loader": "#c8553d",
    "sync": "#d4697c",
    "optimizer_gap": "#a85c8c",
    "host": "#b5a13a",
    "compiling": "#7d5a45",
    "unknown": "#5f6772",
}


def render_html(report: Report) -> str:
    """The whole file."""
    sections = (
        ("What each technique brought", _ladder(report)),
        ("What limits the program as it is", _limits(report)),
        (sentences.left_title(report), _left(report.left) if report.left is not None else ""),
        ("Already there", _list([f"{name}: {seen}" for name, seen in report.already.items()])),
        ("Not in the plan", _left_out(report)),
        ("By hand", _by_hand(report)),
        ("How sure", _how_sure(report)),
        ("Every comparison", _comparisons(report)),
        ("To equal loss", _quality(report)),
        ("Your files", _files(report)),
        ("Every trial", _trials(report)),
        ("Notes", _list(report.notes)),
        ("Next", _pre(report.next_command) if report.next_command else ""),
    )
    body = "\n".join(
        f"<section><h2>{_text(title)}</h2>\n{part}</section>" for title, part in sections if part
    )
    said = (
        f"<h2>The program's own error</h2>{_pre(report.child_error)}" if report.child_error.strip() else ""
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>flatout: {_text(_title(report))}</title>\n<style>{_STYLE}</style>\n</head>\n"
        "<body>\n<main>\n"
        f"{_head(report)}{said}\n{body}\n</main>\n</body>\n</html>\n"
    )


def _text(words: str) -> str:
    return html.escape(plain(words), quote=True)


def _code(words: str) -> str:
    return f"<code>{_text(words)}</code>"


def _key(words: str) -> str:
    """A name, or names put together, which is broken between its parts alone."""
    return '<code class="key">' + re.sub(r"([+:])", r"\1<wbr>", _text(words)) + "</code>"


def _pre(words: str) -> str:
    return f"<pre>{html.escape(plain(words.strip(chr(10)), keep_lines=True), quote=True)}</pre>\n"


def _list(items: Sequence[str], kind: str = "ul") -> str:
    """Of plain words; empty where there are none."""
    rows = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f"<{kind}>{rows}</{kind}>\n" if items else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Cells are HTML already; columns in ``numbers`` keep to one line."""
    if not rows:
        return ""
    top = "".join(f"<th>{_text(cell)}</th>" for cell in head)
    lines = []
    for row in rows:
        cells = [
            f'<td class="number">{cell}</td>' if place in numbers else f"<td>{cell}</td>"
            for place, cell in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "".join(lines)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>\n'


def _title(report: Report) -> str:
    if report.plan and report.ratio is not None:
        return f"{times(report.ratio)} faster"
    return report.state if report.error else "nothing to change"


def _head(report: Report) -> str:
    style = "bad" if report.error else "good" if report.plan else ""
    facts = [
        ("step", _text(sentences.step_line(report))),
        ("plan", _key(report.plan.key) if report.plan else "none"),
        ("program", _code(command_line(report.command))),
        ("on", _text(sentences.machine_line(report))),
        ("search", _text(f"{sentences.search_line(report)}, flatout {report.flatout_version}")),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return f'<h1 class="{style}">{_text(report.conclusion)}</h1>\n<dl>{rows}</dl>\n{_steps(report)}'


def _steps(report: Report) -> str:
    """Two bars: a step as it is and under the plan."""
    before, after = report.baseline_step_seconds, report.plan_step_seconds
    if not before or not after or not report.plan:
        return ""
    longest = max(before, after)
    bars = "".join(
        f'<span class="soft">{name}</span><div class="track"><div class="fill" '
        f'style="width:{100 * seconds / longest:.2f}%"></div></div><span>{duration(seconds)}</span>'
        for name, seconds in (("as it is", before), ("plan", after))
    )
    return f'<div class="steps">{bars}</div>\n'


def _ladder(report: Report) -> str:
    rows = [
        (
            _key(row.name),
            _text(row.effect),
            _text(sentences.measured(row) or "in the plan"),
            f"{times(row.share)} slower" if row.share is not None else "-",
            _text(row.claimed),
        )
        for row in sentences.applied(report)
    ]
    head = ("technique", "effect on the numbers", "proved here", "plan without it", "what guides claim")
    return _table(head, rows, (2, 3))


def _limits(report: Report) -> str:
    note = sentences.limits_note(report)
    said = f'<p class="soft">{_text(note)}</p>\n' if note else ""
    return said + _list(
        [
            f"{sentences.limit_line(limit)}; {limit.evidence}"
            + (f" [{', '.join(limit.techniques)}]" if limit.techniques else "")
            for limit in report.limits
        ],
        "ol",
    )


def _left(left: Remains) -> str:
    stack = "".join(
        f'<div style="width:{100 * part.share:.3f}%;background:{_COLOURS.get(part.cause, "#888")}" '
        f'title="{_text(sentences.LEFT.get(part.cause, (part.cause, ""))[0])}"></div>'
        for part in left.parts
    )
    shown = [part for part in left.parts if part.share >= sentences.LEAST_SHARE_SHOWN]
    rows = [
        (
            f'<span class="swatch" style="background:{_COLOURS.get(part.cause, "#888")}"></span>{spent}',
            share,
            _text(text),
        )
        for part, (spent, share, text) in zip(shown, sentences.left_parts(left), strict=True)
    ]
    above = sentences.above_rows(left, code=_code, text=_text)
    worst = _table(sentences.ABOVE_HEAD, above, (2, 3))
    more = (
        f"<details><summary>what takes longest beyond its floor</summary>{worst}</details>" if worst else ""
    )
    return (
        f'<div class="stack">{stack}</div>\n{_table(("time", "of the step", "what it is"), rows, (0, 1))}'
        f"{more}{_list(sentences.left_notes(left))}"
    )


def _left_out(report: Report) -> str:
    rows = [
        (
            _key(row.name),
            _text(row.standing.value),
            _text(sentences.measured(row) or "-"),
            _text(row.reason) or "-",
        )
        for row in sentences.left_out(report)
    ]
    return _table(("technique", "what became of it", "measured", "why"), rows, (1, 2))


def _by_hand(report: Report) -> str:
    return "".join(
        f"<p>{_code(row.name)}</p>{_pre(row.by_hand)}"
        for row in sentences.applied(report)
        if row.by_hand.strip()
    )


def _how_sure(report: Report) -> str:
    return _list(sentences.how_sure_lines(report))


def _comparisons(report: Report) -> str:
    scale = _Scale(report.verdicts)
    rows = [
        (_key(key), _text(ratio), scale.line(verdict), _text(counted), _text(smallest), _text(ended))
        for verdict, (key, ratio, counted, smallest, ended) in zip(
            report.verdicts, sentences.comparison_rows(report), strict=True
        )
    ]
    head = ("comparison", "times faster", scale.head(), "turns and processes", "smallest seen", "it says")
    around = [
        f"{one.get('comparison', '')}: {one['words']}" for one in report.surroundings if one.get("words")
    ]
    meanwhile = (
        f"<details><summary>meanwhile on the machine</summary>{_list(around)}</details>" if around else ""
    )
    return _table(head, rows, (1,)) + meanwhile


class _Scale:
    """A logarithmic axis that holds every interval, for small drawings in a table."""

    WIDTH, HEIGHT, PAD = 200.0, 18.0, 6.0

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        bounds = [1.0]
        for verdict in verdicts:
            bounds += [
                value for value in (verdict.low, verdict.high) if value is not None and 0 < value < math.inf
            ]
        self.low = max(0.1, min(0.95, *bounds) if len(bounds) > 1 else 0.95)
        self.high = min(100.0, max(1.05, *bounds) if len(bounds) > 1 else 1.05)

    def place(self, ratio: float) -> float:
        inside = min(max(ratio, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return self.PAD + share * (self.WIDTH - 2 * self.PAD)

    def head(self) -> str:
        return f"{self.low:.2g}x to {self.high:.2g}x, the bar is 1x"

    def line(self, verdict: Verdict) -> str:
        if verdict.ratio is None or verdict.low is None or verdict.high is None:
            return "-"
        if not all(math.isfinite(value) for value in (verdict.ratio, verdict.low, verdict.high)):
            return "-"
        low, middle, high = map(self.place, (verdict.low, verdict.ratio, verdict.high))
        one, half = self.place(1.0), self.HEIGHT / 2
        return (
            f'<svg viewBox="0 0 {self.WIDTH:.0f} {self.HEIGHT:.0f}" style="min-width:120px" role="img" '
            f'aria-label="interval">'
            f'<line x1="{one:.1f}" y1="0" x2="{one:.1f}" y2="{self.HEIGHT:.0f}" stroke="var(--soft)"/>'
            f'<line x1="{low:.1f}" y1="{half}" x2="{high:.1f}" y2="{half}" stroke="var(--bar)" '
            f'stroke-width="3"/>'
            f'<circle cx="{middle:.1f}" cy="{half}" r="4" fill="var(--bar)"/></svg>'
        )


def _quality(report: Report) -> str:
    quality = report.quality
    if quality is None:
        return ""
    rows = sentences.quality_rows(quality)
    head = ("seed", "level", "plan's loss then", "steps to the level", "plan's steps to it")
    return _list(sentences.quality_lines(quality)) + _table(head, rows)


def _files(report: Report) -> str:
    lines = [sentences.thrown_away_line(report)]
    if report.isolation:
        lines.append(f"kept safe by {sentences.ISOLATION.get(report.isolation, report.isolation)}")
    rows = [(_code(path), size(count)) for path, count in report.thrown_away]
    more = report.thrown_away_count - len(rows)
    listed = _table(("file", "size"), rows, (1,)) + (
        f"<p>and {more:,} more</p>" if rows and more > 0 else ""
    )
    return _list(lines) + (f"<details><summary>which</summary>{listed}</details>" if rows else "")


def _trials(report: Report) -> str:
    head = ("trial", "state", "steps", "median step", "start", "peak memory", "why")
    rows = [_trial(trial) for trial in report.trials]
    if not rows:
        return ""
    return f"<details><summary>{len(rows)} trials</summary>{_table(head, rows, (3, 4, 5))}</details>"


def _trial(trial: TrialRow) -> tuple[str, ...]:
    step = duration(trial.median_step_seconds) if trial.median_step_seconds is not None else "-"
    if trial.mad_step_seconds is not None:
        step += f" &plusmn; {duration(trial.mad_step_seconds)}"
    return (
        _key(trial.key),
        _text(trial.state.value),
        str(trial.steps),
        step,
        duration(trial.warmup_seconds) if trial.warmup_seconds else "-",
        size(trial.peak_bytes) if trial.peak_bytes else "-",
        _text(trial.reason) or "-",
    )
