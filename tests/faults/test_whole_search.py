"""A whole search with planted faults that are truly faster ends without them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from flatout.detect import detect_host
from flatout.ledger import Ledger
from flatout.runners.local import LocalRunner
from flatout.runners.seen import find_interpreter
from flatout.search.options import SearchOptions
from flatout.search.train import search
from flatout.workload import Workload

from .catalogue import ACTS, FAULTS, PROGRAMS

pytestmark = [pytest.mark.torch, pytest.mark.real, pytest.mark.timeout(600)]
FASTER = ("samples_dropped", "samples_dropped_later")


def test_the_plan_is_without_them(tmp_path: Path) -> None:
    """One is wrong from the first step on, the other after all that the cheap probe sees."""
    work = tmp_path / "work"
    work.mkdir()
    workload = Workload(
        command=(sys.executable, str(PROGRAMS / "gpt.py"), "--size", "medium"),
        cwd=str(work),
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    out = tmp_path / "out"
    out.mkdir()
    interpreter = find_interpreter(workload, out_dir=out, isolation="auto")
    catalogue = [fault for fault in FAULTS if fault.name in FASTER]
    with (
        Ledger(out / "ledger.sqlite") as ledger,
        LocalRunner(
            workload=workload, interpreter=interpreter, out_dir=out, has_gpu=False, acts_dir=ACTS
        ) as runner,
    ):
        report = search(
            workload,
            detect_host(),
            interpreter,
            runner,
            ledger,
            SearchOptions(budget_seconds=400.0),
            catalogue=catalogue,
        )
    assert report.plan.names == ()
    rows = {row.name: row for row in report.techniques}
    for fault in catalogue:
        row = rows[fault.name]
        assert str(row.standing) == "refused", row
        assert re.search("other samples|the loss is", row.reason), row
    assert report.ratio is None or report.low is None or report.low <= 1.0
