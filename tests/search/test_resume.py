"""A search that is killed goes on where it was and ends with the same plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.ledger import Ledger
from flatout.runners.mock import MockProgram, MockRunner, MockSession
from flatout.search.options import SearchOptions
from flatout.search.progress import Phase, Progress

from .played import PLANTED, play

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "resume.py"


def test_killed_with_sigkill_at_random_moments():
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--kills", "5", "--seed", "3"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] == 5
    assert result["resumed"] >= 1
    assert result["same_plan"]


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of the search's own handling sees it."""


@pytest.mark.parametrize("after", range(3, 190, 11))
def test_stopped_dead_at_every_stage(tmp_path, after):
    program = MockProgram(techniques=PLANTED)
    runner = MockRunner(program)
    calls = 0

    def kill(_what: str, _session: MockSession) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Killed

    runner.before = kill
    try:
        first = play(tmp_path, program, runner=runner)
    except Killed:
        first = None
    if first is not None:
        pytest.skip("the search was over before")
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        trials, verdicts = ledger.trials(1), ledger.verdicts(1)
    again = MockRunner(program)
    report = play(tmp_path, program, runner=again)
    assert report.search_id == 1
    assert set(report.plan.names) == {"bf16", "sdpa", "compile", "fused_optimizer"}
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        assert {key: ledger.trials(1)[key] for key in trials} == trials
        assert {key: ledger.verdicts(1)[key] for key in verdicts} == verdicts
    # what was measured is not measured again
    repeated = {request.key for request in again.requests} & set(trials)
    assert not repeated


@pytest.mark.parametrize("budget", [160.0, 170.0, 180.0, 200.0])
def test_what_was_ordered_by_the_time_left_stays_in_that_order(tmp_path, budget):
    program = MockProgram(techniques=PLANTED, start_seconds=5.0)
    options = SearchOptions(budget_seconds=budget)
    (tmp_path / "whole").mkdir()
    (tmp_path / "ended").mkdir()
    play(tmp_path / "whole", program, options=options)

    def kill(progress: Progress) -> None:
        if progress.phase is Phase.CLIMBING and progress.done >= 2:
            raise Killed

    with pytest.raises(Killed):
        play(tmp_path / "ended", program, options=options, tell=kill)
    play(tmp_path / "ended", program, options=options)
    orders = []
    for folder in ("whole", "ended"):
        with Ledger(tmp_path / folder / "ledger.sqlite", writable=False) as ledger:
            (event,) = ledger.events(1, "order")
            tried = [key for key in ledger.verdicts(1) if key.startswith("climb:")]
        orders.append((event.data["order"], tried[:2]))
    assert orders[0] == orders[1]
