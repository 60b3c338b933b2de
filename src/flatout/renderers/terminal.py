"""A report for a terminal: the conclusion first, then what it rests on. 80 columns are enough."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from flatout.ratios import times
from flatout.renderers import sentences
from flatout.renderers.text import plain, size, table, wrap
from flatout.report import Report, TechniqueRow
from flatout.words import command_line

NARROWEST, WIDEST = 80, 120
THROWN_AWAY_SHOWN = 5

Paint = Callable[[str, str], str]
_CODES = {"bold": "1", "dim": "2", "good": "32", "bad": "31"}


def wants_colour(stream: IO[str], environment: Mapping[str, str] = os.environ) -> bool:
    """Colour only on a terminal that can show it, and never where NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def painter(colour: bool) -> Paint:
    """A function that paints text in a style (bold, dim, good, bad), or leaves it."""
    return lambda text, style: f"\x1b[{_CODES[style]}m{text}\x1b[0m" if colour else text


def render_terminal(report: Report, *, width: int = 100, colour: bool = False) -> str:
    """The whole report as lines of at most ``width`` columns, held between 80 and 120.

    Words that cannot be broken (paths, commands) may be longer: they are for copying.
    """
    width = max(NARROWEST, min(width, WIDEST))
    paint = painter(colour)
    lines = _head(report, width, paint)
    for title, body in (
        ("What each technique brought", _ladder(report, width)),
        ("What limits the program as it is", _limits(report, width)),
        (sentences.left_title(report), _left(report, width)),
        ("Already there", _already(report, width)),
        ("Not in the plan", _left_out(report, width)),
        ("How sure", _how_sure(report, width)),
        ("Every comparison", _comparisons(report, width)),
        ("To equal loss", _quality(report, width)),
        ("Your files", _files(report, width)),
        ("Notes", [line for note in report.notes for line in _item(plain(note), width)]),
    ):
        if body:
            lines += ["", paint(title, "bold"), *body]
    if report.next_command:
        lines += ["", paint("Next", "bold"), f"  {plain(report.next_command)}"]
    return "\n".join(lines) + "\n"


def _item(text: str, width: int) -> list[str]:
    return wrap(text, width, first="  ", indent="    ")


def _head(report: Report, width: int, paint: Paint) -> list[str]:
    lines = []
    if report.child_error.strip():
        said = plain(report.child_error.strip("\n"), keep_lines=True).split("\n")
        lines += ["--- your program said ---", *said[-20:], "-" * 25, ""]
    style = "bad" if report.error else "good" if report.plan else "bold"
    lines += [paint(line, style) for line in wrap(plain(report.conclusion), width)]
    facts = [
        ("step", sentences.step_line(report)),
        ("plan", plain(report.plan.key) if report.plan else "none"),
        ("program", plain(command_line(report.command))),
        ("on", plain(sentences.machine_line(report))),
        ("search", sentences.search_line(report)),
    ]
    lines.append("")
    lines += [
        line for name, text in facts for line in wrap(text, width, first=f"  {name:<9}", indent=" " * 11)
    ]
    return lines


def _ladder(report: Report, width: int) -> list[str]:
    rows = sentences.applied(report)
    if not rows:
        return []
    head = ("  technique", "proved here", "without it", "what guides claim")
    cells = [
        (
            f"  {plain(row.name)}",
            sentences.measured(row) or "in the plan",
            times(row.share) + " slower" if row.share is not None else "-",
            plain(row.claimed),
        )
        for row in rows
    ]
    return _wrapped_table([head, *cells], width)


def _wrapped_table(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """An aligned table whose last column is wrapped within ``width``."""
    starts = table([(*row[:-1], "") for row in rows])
    lines = []
    for row, line in zip(rows, starts, strict=True):
        last = wrap(row[-1], max(width - len(line), 24)) or [""]
        lines.append((line + last[0]).rstrip())
        lines += [" " * len(line) + more for more in last[1:]]
    return lines


def _limits(report: Report, width: int) -> list[str]:
    lines = []
    for place, limit in enumerate(report.limits, start=1):
        text = f"{sentences.limit_line(limit)}; {plain(limit.evidence)}"
        if limit.techniques:
            text += f" [{', '.join(map(plain, limit.techniques))}]"
        lines += wrap(text, width, first=f"  {place}. ", indent="     ")
    note = sentences.limits_note(report)
    return [*lines, *_item(note, width)] if note else lines


def _left(report: Report, width: int) -> list[str]:
    if report.left is None:
        return []
    parts = sentences.left_parts(report.left)
    rows = [(f"  {spent}", share, text) for spent, share, text in parts]
    lines = _wrapped_table(rows, width) if rows else []
    return lines + [line for note in sentences.left_notes(report.left) for line in _item(note, width)]


def _already(report: Report, width: int) -> list[str]:
    return [
        line
        for name, seen in report.already.items()
        for line in _item(f"{plain(name)}: {plain(seen)}", width)
    ]  # fmt: skip


def _left_out(report: Report, width: int) -> list[str]:
    rows = sentences.left_out(report)
    return _wrapped_table([(f"  {plain(row.name)}", row.standing.value, _why(row)) for row in rows], width)


def _why(row: TechniqueRow) -> str:
    """The reason, which names its own numbers; a number alone where there is no reason."""
    return plain(row.reason) or sentences.measured(row)


def _how_sure(report: Report, width: int) -> list[str]:
    return [line for text in sentences.how_sure_lines(report) for line in _item(text, width)]


def _comparisons(report: Report, width: int) -> list[str]:
    rows = sentences.comparison_rows(report)
    return _wrapped_table(
        [
            (f"  {ratio}", f"{key}: {ended}; {counted}, sees {smallest}")
            for key, ratio, counted, smallest, ended in rows
        ],
        width,
    )


def _quality(report: Report, width: int) -> list[str]:
    if report.quality is None:
        return []
    return [line for text in sentences.quality_lines(report.quality) for line in _item(text, width)]


def _files(report: Report, width: int) -> list[str]:
    lines = _item(sentences.thrown_away_line(report), width)
    shown = report.thrown_away[:THROWN_AWAY_SHOWN]
    lines += [f"    {size(count):>10}  {plain(path)}" for path, count in shown]
    if report.thrown_away_count > len(shown) and shown:
        lines.append(f"    {'':>10}  and {report.thrown_away_count - len(shown):,} more (report.json)")
    if report.isolation:
        how = sentences.ISOLATION.get(report.isolation, report.isolation)
        lines += _item(f"kept safe by {how}", width)
    return lines
