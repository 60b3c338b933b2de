"""Unchanged processes beside the first: started together where there is room, and as many as the budget
allows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flatout.ledger import Ledger
from flatout.runners.mock import DISCOVERY, MockProgram, MockRunner
from flatout.search.options import SearchOptions
from flatout.search.shifts import unchanged

from .played import GPU_HOST, HOST, PLANTED, play

QUIET = {"noise": 0.001, "process_noise": 0.0005, "drift": 0.0, "spike_chance": 0.0}


def slow(**changes: object) -> MockProgram:
    cuda = replace(DISCOVERY, device="cuda")
    return MockProgram(techniques=PLANTED, discovery=cuda, start_seconds=10.0, step_seconds=0.3, **changes)  # type: ignore[arg-type]


class Noted(MockRunner):
    """Notes when each process was started."""

    def start(self, request, tell=lambda _: None):
        self.at = {**getattr(self, "at", {}), request.key: self.now}
        return super().start(request, tell)


def test_they_start_together_where_there_is_room(tmp_path: Path) -> None:
    times = {}
    for name, host in (("together", GPU_HOST), ("in turn", replace(GPU_HOST, cpu_count=2))):
        (tmp_path / name).mkdir()
        runner = Noted(slow(**QUIET))
        options = SearchOptions(budget_seconds=600.0)
        report = play(tmp_path / name, runner.program, runner=runner, host=host, options=options)
        assert sum(unchanged(one) for one in report.verdicts) == 3
        times[name] = [runner.at[key] for key in ("again", "again~2", "again~3")]
    assert len(set(times["together"])) == 1
    assert times["in turn"][1] > times["in turn"][0] + 20.0


@pytest.mark.parametrize(("budget", "least"), [(100.0, 1), (210.0, 2), (480.0, 3)])
def test_there_are_as_many_as_the_budget_allows(tmp_path: Path, budget: float, least: int) -> None:
    options = SearchOptions(budget_seconds=budget)
    report = play(tmp_path, slow(**QUIET), host=GPU_HOST, options=options)
    assert sum(unchanged(one) for one in report.verdicts) == least


def test_of_a_search_that_goes_on_none_is_compared_again(tmp_path: Path) -> None:
    options = SearchOptions(budget_seconds=210.0)
    first = play(tmp_path, slow(**QUIET), host=GPU_HOST, options=options)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_state(1, "running")
    runner = Noted(slow(**QUIET))
    again = play(tmp_path, runner.program, runner=runner, host=GPU_HOST, options=options)
    assert again.plan == first.plan
    assert not any(key.startswith("again") for key in getattr(runner, "at", {}))


def test_noise_in_the_turns_costs_further_processes_and_not_the_budget(tmp_path: Path) -> None:
    options = SearchOptions(budget_seconds=120.0)
    program = MockProgram(techniques=PLANTED, noise=0.05, start_seconds=4.0, step_seconds=0.3)
    report = play(tmp_path, program, host=HOST, options=options)
    found = [one for one in report.verdicts if unchanged(one)]
    assert [len(one.process_pairs) for one in found] == [1] * len(found)
    assert 1 <= len(found) <= 2
