"""Live programs under flatout's agent, without a search: what a benchmark times or reads by hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import searching  # noqa: F401  (puts flatout's source folder on the path)


def runner_for(
    command: Sequence[str], *, cwd: Path, environment: dict[str, str] | None = None, out: Path
) -> Any:
    """flatout's local runner for ``command``, a context manager; its trials lie below ``out``."""
    from flatout.errors import CommandNotFound
    from flatout.interpreter import ask, check, named_by_command
    from flatout.runners.local import LocalRunner
    from flatout.workload import Workload

    workload = Workload(
        command=tuple(command),
        cwd=str(cwd),
        environment=dict(environment if environment is not None else os.environ),
    )
    named = named_by_command(workload)
    if named is None:
        raise CommandNotFound(f"{command[0]} names no Python; a benchmark's command must")
    return LocalRunner(workload=workload, interpreter=check(ask(named, str(cwd))), out_dir=out)


def request(key: str, *, plan: Any = None, discovery: Any = None, seed: int | None = None) -> Any:
    """What to start: ``plan`` (None: the empty one) and what a search found out about the program."""
    from flatout.plan import Plan
    from flatout.runners import Request

    return Request(key=key, plan=plan or Plan(), discovery=discovery, seed=seed)
