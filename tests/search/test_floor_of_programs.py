"""What is left of a real program's step, from the agent to the parts: they sum to it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout.host import Host
from flatout.plan import Plan
from flatout.runners import Request
from flatout.runners.local import LocalRunner
from flatout.runners.seen import find_interpreter
from flatout.search.floor import divide_step
from flatout.stats import median
from flatout.workload import Workload
from isolation.house import House

PROGRAM = Path(__file__).parents[1] / "programs" / "hand_attention.py"


@pytest.mark.torch
def test_the_step_of_a_program_is_divided_whole(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.environment.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    workload = Workload(
        command=(sys.executable, str(PROGRAM)), cwd=str(house.work), environment=dict(house.environment)
    )
    with LocalRunner(
        workload=workload,
        interpreter=find_interpreter(workload, out_dir=house.out),
        out_dir=house.out,
        isolation="auto",
        has_gpu=False,
    ) as runner:
        session = runner.start(Request(key="baseline", plan=Plan(), seed=1, time_limit_seconds=120.0))
        session.advance(8)
        block = session.advance(8)
        profile = session.profile()
        discovery = session.discovery
        session.stop()
    assert profile is not None and discovery is not None
    assert not profile.missing
    told = sum(row.seconds for row in profile.work) + sum(profile.gaps.values())
    assert told == pytest.approx(profile.span_seconds, rel=1e-6)
    assert profile.peaks["float32"] > 1e9 and profile.peaks["bytes"] > 1e8
    step = median(block.step_seconds)
    remains = divide_step(
        profile,
        plan="baseline",
        step_seconds=step,
        loader_wait_seconds=0.0,
        discovery=discovery,
        host=Host(system="", cpu="", cpu_count=1, memory_bytes=0),
    )
    assert remains is not None
    causes = {part.cause for part in remains.parts}
    assert {"floor", "launches"} <= causes
    assert sum(part.seconds for part in remains.parts) == pytest.approx(step, rel=1e-9)
    products = [row for row in profile.work if row.operator in {"aten::mm", "aten::bmm", "aten::addmm"}]
    assert products and all(len(row.inputs) >= 2 for row in products)
