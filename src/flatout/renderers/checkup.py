"""What doctor found, for a terminal or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flatout.checkup import Check, State
from flatout.codec import to_plain
from flatout.renderers.terminal import painter
from flatout.renderers.text import plain, wrap

_STYLES = {State.OK: "good", State.NOTE: "bold", State.MISSING: "bad"}


def render_checkup(checks: Sequence[Check], *, width: int = 100, colour: bool = False) -> str:
    """One line a check (ok, note or missing), with how to get it below where it is not ok."""
    paint = painter(colour)
    name_width = max(len(check.name) for check in checks)
    lines: list[str] = []
    for place, check in enumerate(checks):
        if place == 0 or checks[place - 1].group != check.group:
            lines += [*([""] if lines else []), paint(check.group, "bold")]
        indent = " " * (name_width + 13)
        state = paint(f"{check.state.value:<7}", _STYLES[check.state])
        first, *rest = wrap(plain(check.detail), width - len(indent)) or [""]
        lines.append(f"  {state}  {plain(check.name):<{name_width}}  {first}".rstrip())
        lines += [indent + line for line in rest]
        if check.remedy:
            remedy = wrap(f"to get it: {plain(check.remedy)}", width - len(indent))
            lines += [indent + line for line in remedy]
    return "\n".join(lines) + "\n"


def render_checkup_json(checks: Sequence[Check]) -> str:
    return json.dumps({"format": 1, "checks": to_plain(list(checks), tagged=False)}, indent=2) + "\n"
