"""A whole search of a real program with a planted gain: what is left of its plan's step, and equal loss."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flatout.detect import detect_host
from flatout.host import Host, Interpreter
from flatout.ledger import Ledger
from flatout.plan import Plan
from flatout.quality import Equal
from flatout.renderers.json import render_json
from flatout.report import build_report
from flatout.runners.local import LocalRunner
from flatout.runners.seen import find_interpreter
from flatout.search.options import SearchOptions
from flatout.search.train import search
from flatout.technique import Effect, Part
from flatout.workload import Discovery, Workload

pytestmark = [pytest.mark.torch, pytest.mark.real]
PROGRAM = Path(__file__).parents[1] / "programs" / "pauses.py"


@dataclass(frozen=True, kw_only=True)
class NoPause:
    name: str = "no_pause"
    effect: Effect = Effect.EXACT
    title: str = "no pause"
    claimed: str = ""
    slot: str = "planted"
    accepts: Mapping[str, type] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)
    eclipsed_by: tuple[str, ...] = ()
    expected: float = 2.0
    shortens: Part = Part.STEP

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        return None

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        return {}

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        return None if evidence.get("planted") else "it was not planted"

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        return "model.pause = 0"


def test_a_planted_gain_is_divided_and_trains_to_equal_loss(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    out.mkdir()
    workload = Workload(
        command=(sys.executable, str(PROGRAM)),
        cwd=str(work),
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    interpreter = find_interpreter(workload, out_dir=out, isolation="auto")
    with (
        Ledger(out / "ledger.sqlite") as ledger,
        LocalRunner(
            workload=workload,
            interpreter=interpreter,
            out_dir=out,
            has_gpu=False,
            acts_dir=Path(__file__).parent / "acts",
        ) as runner,
    ):
        report = search(
            workload,
            detect_host(),
            interpreter,
            runner,
            ledger,
            SearchOptions(budget_seconds=300.0, quality=3),
            catalogue=[NoPause()],
        )
        assert render_json(build_report(ledger, report.search_id)) == render_json(report)
    assert report.plan.names == ("no_pause",), report.conclusion
    assert report.left is not None and report.left.plan == "no_pause"
    told = sum(part.seconds for part in report.left.parts)
    assert told == pytest.approx(report.plan_step_seconds, rel=1e-9)
    quality = report.quality
    assert quality is not None, report.notes
    assert quality.call is Equal.YES, quality
    assert len(quality.seeds) == 3
    assert len({result.level for result in quality.seeds}) == 3, "each seed trains another model"
    assert quality.time_ratio is not None and quality.time_ratio.value > 2.0
    assert report.elapsed_seconds < 330.0
    assert json.loads(render_json(report))["quality"]["call"] == "equal quality"
