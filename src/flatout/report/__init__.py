"""Report: everything that a renderer may show about a search, as data.

``build_report`` makes it from the ledger alone, so that it can be made again from a file that came
from another machine, and always says the same; ``plan_file`` makes plan.toml's content likewise.
"""

from __future__ import annotations

from flatout.report.build import build_report, plan_file
from flatout.report.nouns import CompileCost, Noise, Report, Spent, TechniqueRow, TrialRow
from flatout.search.floor import Above, Part, Remains
from flatout.search.limits import Limit
from flatout.search.standing import Standing

__all__ = [
    "Above",
    "CompileCost",
    "Limit",
    "Noise",
    "Part",
    "Remains",
    "Report",
    "Spent",
    "Standing",
    "TechniqueRow",
    "TrialRow",
    "build_report",
    "plan_file",
]
