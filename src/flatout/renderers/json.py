"""A report as report.json: the Report's own fields, plus ``format`` in front."""

from __future__ import annotations

import json

from flatout.codec import to_plain
from flatout.report import Report

FORMAT = 1


def render_json(report: Report) -> str:
    """Indented JSON with a newline at its end. Floats that JSON has no word for are text (``"nan"``)."""
    plain = {"format": FORMAT, **to_plain(report, tagged=False)}
    return json.dumps(plain, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
