"""Searches over played programs: what the benchmarks that time nothing real have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import searching  # noqa: F401  (puts flatout's source folder on the path)

NOISE = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "noise"
START_SECONDS = 6.0
"""Of a played process."""


def recordings(path: Path) -> dict[str, Any]:
    """Name -> recording of step times: of one file, or of all in a folder."""
    from flatout.runners.playback import load

    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return {file.stem: load(file) for file in files}


def nouns(folder: Path) -> tuple[Any, Any, Any]:
    """(workload, host, interpreter) of a played program."""
    from flatout.host import Host, Interpreter
    from flatout.workload import Workload

    return (
        Workload(command=("python", "train.py"), cwd=str(folder)),
        Host(system="played", cpu="played", cpu_count=2, memory_bytes=1 << 40),
        Interpreter(executable="python", version="3.12.1", site_packages=(), torch_version="2.13.0"),
    )


def play(
    folder: Path,
    runner: Any,
    options: Any,
    *,
    host: Any = None,
    tell: Callable[[Any], None] = lambda _: None,
) -> Any:
    """The report of a search over what ``runner`` plays. Its ledger is left in ``folder``, where one that
    was killed goes on."""
    from flatout.ledger import Ledger
    from flatout.search.train import search

    workload, usual, interpreter = nouns(folder)
    with Ledger(folder / "ledger.sqlite") as ledger:
        return search(
            workload,
            host or usual,
            interpreter,
            runner,
            ledger,
            options,
            tell,
            catalogue=runner.program.catalogue(),
            clock=runner.clock,
        )
