"""The manual page of a technique, made from its docstring, and the table of all of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from flatout.renderers.terminal import painter
from flatout.renderers.text import table, wrap
from flatout.technique import Effect, Technique
from flatout.techniques import HEADINGS, TECHNIQUES
from flatout.techniques.order import excluded_by

_HEADING = re.compile(rf"\*{{0,2}}({'|'.join(HEADINGS)})\*{{0,2}}[.:]?\*{{0,2}}\s*(.*)")

Sections = dict[str, list[str]]

EFFECTS = {
    Effect.EXACT: "the same numbers, to the bit",
    Effect.ROUNDING: "the same sums in another order",
    Effect.REDRAW: "as rounding; dropout draws other numbers, at the same rate",
    Effect.APPROXIMATE: "fewer bits",
    Effect.RECIPE: "another training: only with --allow recipe:NAME",
}
"""What each effect on the numbers means."""


def read_manual(technique: Technique) -> tuple[str, Sections]:
    """(The docstring's first lines, heading -> its lines). Raises ValueError where a heading is missing."""
    summary: list[str] = []
    sections: Sections = {}
    lines = summary
    for line in inspect.cleandoc(type(technique).__doc__ or "").splitlines():
        found = _HEADING.fullmatch(line)
        if found:
            lines = sections.setdefault(found[1], [])
        lines.append(found[2] if found else line)
    missing = [heading for heading in HEADINGS if not "".join(sections.get(heading, [])).strip()]
    if missing:
        raise ValueError(f"the docstring of {technique.name} has nothing under {', '.join(missing)}")
    return " ".join("\n".join(summary).split()), {name: _trimmed(body) for name, body in sections.items()}


def _trimmed(lines: list[str]) -> list[str]:
    """Without blank lines at both ends, and without the indentation that all lines share."""
    text = inspect.cleandoc("\n" + "\n".join(lines)).strip("\n")
    return text.splitlines()


def company(technique: Technique, catalogue: Sequence[Technique]) -> list[tuple[str, str]]:
    """How it goes together with the others: (word, text) pairs, none where there is nothing to say."""
    excluded = excluded_by(technique, {other.name: other for other in catalogue})
    rows = []
    if technique.after:
        rows.append(("applied after", ", ".join(technique.after)))
    if excluded:
        rows.append(("not with", "; ".join(f"{name} ({why})" for name, why in excluded.items())))
    if technique.eclipsed_by:
        rows.append(("seldom pays beside", ", ".join(technique.eclipsed_by)))
    return rows


def render_manual(
    technique: Technique, *, colour: bool = False, catalogue: Sequence[Technique] = TECHNIQUES
) -> str:
    """A manual page for a terminal. ``catalogue``: the others that it may be put together with."""
    paint = painter(colour)
    summary, sections = read_manual(technique)
    facts = [
        ("  effect", f"{technique.effect}: {EFFECTS[technique.effect]}"),
        ("  guides claim", technique.claimed),
        ("  slot", f"{technique.slot}: one technique of a slot at a time"),
        *((f"  {word}", text) for word, text in company(technique, catalogue)),
        ("  can shorten", str(technique.shortens)),
    ]
    lines = [f"{paint(technique.name, 'bold')}: {technique.title}", ""]
    lines += [*wrap(summary, 100, first="  ", indent="  "), "", *table(facts)]
    for heading in HEADINGS:
        body = [f"  {_one_colon(line)}".rstrip() for line in sections[heading]]
        lines += ["", paint(heading, "bold"), *body]
    return "\n".join(lines).replace("``", "`") + "\n"


def _one_colon(line: str) -> str:
    """The ``::`` before an indented block as a colon."""
    return line[:-1] if line.endswith("::") else line


def render_manual_markdown(technique: Technique) -> str:
    """The same page for docs/techniques/."""
    summary, sections = read_manual(technique)
    lines = [
        f"# {technique.name}: {technique.title}",
        "",
        "<!-- made by scripts/docs from the docstring of this technique; edit that -->",
        "",
        summary.replace("``", "`"),
        "",
        f"- **effect on the numbers**: {technique.effect}",
        f"- **what guides claim**: {technique.claimed}",
        *(f"- **{word}**: {text}" for word, text in company(technique, TECHNIQUES)),
        f"- **can shorten**: {technique.shortens}",
    ]
    for heading in HEADINGS:
        lines += ["", f"## {heading}", "", *_fenced(sections[heading])]
    return "\n".join(lines) + "\n"


def _fenced(lines: Sequence[str]) -> list[str]:
    """Indented blocks as fenced ones; the ``::`` before them as a colon."""
    out: list[str] = []
    inside = False
    for place, line in enumerate(lines):
        indented = line.startswith("    ")
        if indented and not inside and (place == 0 or not lines[place - 1].strip()):
            out.append("```python")
            inside = True
        elif inside and line.strip() and not indented:
            while out and not out[-1]:
                out.pop()
            out += ["```", ""]
            inside = False
        if inside:
            out.append(line[4:])
        else:
            out.append(_one_colon(line).replace("``", "`"))
    if inside:
        out.append("```")
    return out


def render_techniques(techniques: Sequence[Technique], *, width: int = 100) -> str:
    """The catalogue as a table: name, what it is, effect on the numbers, what guides claim; and below it
    what the effects mean."""
    head = ("name", "what it is", "effect", "what guides claim")
    rows = [head, *((t.name, t.title, str(t.effect), t.claimed) for t in techniques)]
    starts = table([(*row[:-1], "") for row in rows])
    lines: list[str] = []
    for row, start in zip(rows, starts, strict=True):
        first, *rest = wrap(row[-1], max(24, width - len(start))) or [""]
        lines += [(start + first).rstrip(), *(" " * len(start) + line for line in rest)]
    met = {technique.effect for technique in techniques}
    lines += ["", *table([(str(effect), text) for effect, text in EFFECTS.items() if effect in met])]
    return "\n".join(lines) + "\n"
