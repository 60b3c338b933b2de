"""A report as Markdown, for an issue, a pull request or a run's folder: all that the terminal shows, the
lines to write by hand, and every trial."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flatout.ratios import times
from flatout.renderers import sentences
from flatout.renderers.text import duration, plain, size
from flatout.report import Report, TrialRow
from flatout.words import command_line

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")


def escape(text: str) -> str:
    """Text in which Markdown sees nothing but text."""
    return _SPECIAL.sub(r"\\\1", plain(text))


def code(text: str) -> str:
    """Inline code, with a fence longer than any run of backticks inside."""
    text = plain(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    # A table cell ends at a bar even inside code (GitHub's tables extension).
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def block(text: str, language: str = "") -> list[str]:
    """A fenced block."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return [fence + language, plain(text.strip("\n"), keep_lines=True), fence]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def render_markdown(report: Report) -> str:
    """The whole report as GitHub-flavoured Markdown."""
    lines = [f"# {escape(report.conclusion)}", ""]
    if report.child_error.strip():
        lines += ["The program's own error:", "", *block(report.child_error, "text"), ""]
    lines += [
        f"- **step**: {sentences.step_line(report)}",
        f"- **plan**: {code(report.plan.key) if report.plan else 'none'}",
        f"- **program**: {code(command_line(report.command))}",
        f"- **on**: {escape(sentences.machine_line(report))}",
        f"- **search**: {sentences.search_line(report)}, flatout {escape(report.flatout_version)}",
    ]
    for title, body in (
        ("What each technique brought", _ladder(report)),
        ("What limits the program as it is", _limits(report)),
        (sentences.left_title(report), _left(report)),
        (
            "Already there",
            [f"- **{escape(name)}**: {escape(seen)}" for name, seen in report.already.items()],
        ),
        ("Not in the plan", _left_out(report)),
        ("By hand", _by_hand(report)),
        ("How sure", _how_sure(report)),
        ("Every comparison", _comparisons(report)),
        ("To equal loss", _quality(report)),
        ("Your files", _files(report)),
        ("Every trial", _trials(report)),
        ("Notes", [f"- {escape(note)}" for note in report.notes]),
        ("Next", block(report.next_command, "sh") if report.next_command else []),
    ):
        if body:
            lines += ["", f"## {title}", "", *body]
    return "\n".join(lines) + "\n"


def _ladder(report: Report) -> list[str]:
    rows = [
        (
            code(row.name),
            escape(row.effect),
            sentences.measured(row) or "in the plan",
            times(row.share) + " slower" if row.share is not None else "-",
            escape(row.claimed),
        )
        for row in sentences.applied(report)
    ]
    head = ("technique", "effect on the numbers", "proved here", "plan without it", "what guides claim")
    return _table(head, rows) if rows else []


def _limits(report: Report) -> list[str]:
    lines = [
        f"{place}. {sentences.limit_line(limit)}; {escape(limit.evidence)}"
        + (f" ({', '.join(map(code, limit.techniques))})" if limit.techniques else "")
        for place, limit in enumerate(report.limits, start=1)
    ]
    note = sentences.limits_note(report)
    return [*lines, "", escape(note)] if note else lines


def _left(report: Report) -> list[str]:
    left = report.left
    if left is None:
        return []
    parts = sentences.left_parts(left)
    head = ("time", "of the step", "what it is")
    lines = _table(head, [(spent, share, escape(text)) for spent, share, text in parts]) if parts else []
    if left.above:
        rows = sentences.above_rows(left, code=code, text=escape)
        lines += ["", "What takes longest beyond its floor:", "", *_table(sentences.ABOVE_HEAD, rows)]
    return [*lines, "", *(f"- {escape(note)}" for note in sentences.left_notes(left))]


def _left_out(report: Report) -> list[str]:
    rows = [
        (code(row.name), row.standing.value, sentences.measured(row) or "-", escape(row.reason) or "-")
        for row in sentences.left_out(report)
    ]
    return _table(("technique", "what became of it", "measured", "why"), rows) if rows else []


def _by_hand(report: Report) -> list[str]:
    lines: list[str] = []
    for row in sentences.applied(report):
        if row.by_hand.strip():
            lines += [*([""] if lines else []), f"{code(row.name)}:", "", *block(row.by_hand, "python")]
    return lines


def _how_sure(report: Report) -> list[str]:
    return [f"- {escape(line)}" for line in sentences.how_sure_lines(report)]


def _comparisons(report: Report) -> list[str]:
    rows = [
        (code(key), ratio, counted, smallest, escape(ended))
        for key, ratio, counted, smallest, ended in sentences.comparison_rows(report)
    ]
    head = ("comparison", "times faster", "turns and pairs of processes", "smallest effect seen", "it says")
    lines = _table(head, rows) if rows else []
    around = [
        f"- {code(str(one.get('comparison', '')))}: {escape(str(one['words']))}"
        for one in report.surroundings
        if one.get("words")
    ]
    return lines + (["", "Meanwhile on the machine:", "", *around] if around else [])


def _quality(report: Report) -> list[str]:
    quality = report.quality
    if quality is None:
        return []
    head = ("seed", "level", "plan's loss then", "steps to the level", "plan's steps to it")
    rows = sentences.quality_rows(quality)
    return [*(f"- {escape(line)}" for line in sentences.quality_lines(quality)), "", *_table(head, rows)]


def _files(report: Report) -> list[str]:
    lines = [f"- {sentences.thrown_away_line(report)}"]
    lines += [f"  - {code(path)}, {size(count)}" for path, count in report.thrown_away]
    if report.thrown_away_count > len(report.thrown_away) and report.thrown_away:
        lines.append(f"  - and {report.thrown_away_count - len(report.thrown_away):,} more")
    if report.isolation:
        lines.append(
            f"- kept safe by {escape(sentences.ISOLATION.get(report.isolation, report.isolation))}"
        )
    return lines


def _trials(report: Report) -> list[str]:
    head = ("trial", "state", "steps", "median step", "start", "peak memory", "why")
    return _table(head, [_trial(trial) for trial in report.trials]) if report.trials else []


def _trial(trial: TrialRow) -> tuple[str, ...]:
    step = duration(trial.median_step_seconds) if trial.median_step_seconds is not None else "-"
    if trial.mad_step_seconds is not None:
        step += f" ± {duration(trial.mad_step_seconds)}"
    return (
        code(trial.key),
        trial.state.value,
        str(trial.steps),
        step,
        duration(trial.warmup_seconds) if trial.warmup_seconds else "-",
        size(trial.peak_bytes) if trial.peak_bytes else "-",
        escape(trial.reason) or "-",
    )
