"""Searches over played programs, for the tests of search, report and resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flatout.host import Gpu, Host, Interpreter
from flatout.ledger import Ledger
from flatout.report import Report
from flatout.runners.mock import MockProgram, MockRunner, MockTechnique
from flatout.search.options import SearchOptions
from flatout.search.progress import Progress
from flatout.search.train import search
from flatout.technique import Effect
from flatout.workload import Workload

HOST = Host(system="Linux 6.1", cpu="played", cpu_count=2, memory_bytes=64 << 30)
GPU_HOST = Host(
    system="Linux 6.1",
    cpu="played",
    cpu_count=16,
    memory_bytes=256 << 30,
    gpus=(Gpu(name="NVIDIA H200", uuid="GPU-0", memory_bytes=140 << 30, compute_capability=(9, 0)),),
    driver="580.1",
    cuda="13.0",
)
INTERPRETER = Interpreter(
    executable="/usr/bin/python3", version="3.12.1", site_packages=(), torch_version="2.13.0"
)
PLANTED = {
    "tf32": MockTechnique(
        factor=0.6, effect=Effect.APPROXIMATE, slot="precision", gradients_db=45.0, expected=2.0
    ),
    "bf16": MockTechnique(
        factor=0.4, effect=Effect.APPROXIMATE, slot="precision", gradients_db=25.0, expected=2.5
    ),
    "sdpa": MockTechnique(factor=0.8, gradients_db=80.0, expected=1.5),
    "compile": MockTechnique(factor=0.7, gradients_db=90.0, start_seconds=20.0, expected=1.4),
    "fused_optimizer": MockTechnique(factor=0.95, gradients_db=None, expected=1.03),
}


def workload(folder: Path) -> Workload:
    script = folder / "train.py"
    if not script.exists():
        script.write_text("print('trains')\n", encoding="utf-8")
    return Workload(command=("python", "train.py"), cwd=str(folder), environment={"HOME": "/root"})


def play(
    folder: Path,
    program: MockProgram,
    *,
    seed: int = 0,
    options: SearchOptions | None = None,
    host: Host = HOST,
    tell: Callable[[Progress], None] = lambda _: None,
    runner: MockRunner | None = None,
) -> Report:
    """One search over a played program, its ledger in ``folder``."""
    runner = runner or MockRunner(program, seed=seed)
    with Ledger(folder / "ledger.sqlite") as ledger:
        return search(
            workload(folder),
            host,
            INTERPRETER,
            runner,
            ledger,
            options or SearchOptions(),
            tell,
            catalogue=program.catalogue(),
            clock=runner.clock,
        )
