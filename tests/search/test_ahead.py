"""Processes started before their turn: sooner done, the same plan, and nothing timed beside a start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flatout.ledger import Ledger
from flatout.runners.mock import DISCOVERY, MockProgram, MockRunner, MockTechnique
from flatout.search.standing import Standing
from flatout.trial import State

from .played import GPU_HOST, PLANTED, play

CUDA = replace(DISCOVERY, device="cuda")
FEW_CORES = replace(GPU_HOST, cpu_count=2)


def program(**changes: Any) -> MockProgram:
    return MockProgram(**{"techniques": PLANTED, "discovery": CUDA, "start_seconds": 10.0, **changes})


class Watched(MockRunner):
    """Notes how many processes are on their way to their first step, and who is timed meanwhile."""

    def __init__(self, played: MockProgram, *, seed: int = 0) -> None:
        super().__init__(played, seed=seed)
        self.most_starting = 0
        self.beside_a_start: list[str] = []
        self.before = self._look

    def _look(self, what: str, session: Any) -> None:
        starting = [other for other in self.live if not other._steps]
        self.most_starting = max(self.most_starting, len(starting))
        if what == "advance" and session._steps and starting:
            self.beside_a_start.append(session._request.key)


def test_a_search_is_done_sooner_with_the_same_plan(tmp_path: Path) -> None:
    alone, together = Watched(program()), Watched(program())
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    slow = play(tmp_path / "a", alone.program, runner=alone, host=FEW_CORES)
    soon = play(tmp_path / "b", together.program, runner=together, host=GPU_HOST)
    assert slow.plan.names == soon.plan.names
    assert alone.most_starting == 1 and together.most_starting >= 3
    assert soon.elapsed_seconds < slow.elapsed_seconds - 2 * 10.0
    assert not together.beside_a_start
    assert not together.live


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"discovery": DISCOVERY}, GPU_HOST),
        ({"discovery": replace(CUDA, world_size=8)}, GPU_HOST),
        (
            {"peak_bytes": 30 << 30},
            replace(GPU_HOST, gpus=(replace(GPU_HOST.gpus[0], memory_bytes=80 << 30),)),
        ),
    ],
    ids=["on a CPU", "many ranks", "little memory"],
)
def test_without_room_each_starts_in_its_turn(changes: dict[str, Any], host: Any, tmp_path: Path) -> None:
    runner = Watched(program(**changes))
    report = play(tmp_path, runner.program, runner=runner, host=host)
    assert report.plan.names
    assert runner.most_starting == 1


def test_one_that_fails_on_its_way_is_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    techniques = {**PLANTED, "sdpa": MockTechnique(refuses="no attention after all", expected=1.5)}
    runner = Watched(program(techniques=techniques))
    report = play(tmp_path, runner.program, runner=runner, host=GPU_HOST)
    standings = {row.name: row.standing for row in report.techniques}
    assert standings["sdpa"] is Standing.REFUSED
    assert "compile" in report.plan.names
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        failed = [trial for trial in ledger.trials(1).values() if trial.outcome.state is State.FAILED]
    assert [trial.plan.names for trial in failed] == [("sdpa",)]


@pytest.mark.parametrize("moment", [8, 15, 25, 40, 80, 160])
def test_ended_at_any_moment_it_goes_on_to_the_same_plan(moment: int, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "ended").mkdir()
    whole = play(tmp_path / "whole", program(), runner=MockRunner(program()), host=GPU_HOST)
    runner = MockRunner(program())
    count = 0

    def end(what: str, session: Any) -> None:
        nonlocal count
        count += 1
        if count == moment:
            raise KeyboardInterrupt

    runner.before = end
    play(tmp_path / "ended", runner.program, runner=runner, host=GPU_HOST)
    assert not runner.live
    again = play(tmp_path / "ended", program(), runner=MockRunner(program()), host=GPU_HOST)
    assert again.plan.names == whole.plan.names


def guarded(
    changes: dict[str, Any], host: Any, folder: Path, dies: tuple[str, ...] = ()
) -> tuple[Any, Any]:
    from .test_guarding import GuardedRunner

    class Both(Watched, GuardedRunner):
        def __init__(self, played: MockProgram) -> None:
            GuardedRunner.__init__(self, played, dies=lambda request: request.key in dies)
            self.most_starting = 0
            self.beside_a_start = []
            self.before = self._look

    runner = Both(program(**changes))
    return runner, play(folder, runner.program, runner=runner, host=host)


def test_the_next_candidate_starts_beside_the_guard(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    runner, soon = guarded({}, GPU_HOST, tmp_path / "a")
    _, slow = guarded({}, FEW_CORES, tmp_path / "b")
    keys = [request.key for request in runner.requests]
    beside = keys[keys.index("guard:again") + 1 : keys.index("guard:bf16")]
    both = [
        f"{what}:bf16+{names}" for names in ("sdpa", "sdpa+fused_optimizer") for what in ("climb", "guard")
    ]
    assert beside == both  # what takes no longer to start than the first, each with its guard's trial
    assert soon.plan.names == slow.plan.names
    assert soon.guard is not None and soon.guard.passed
    assert soon.elapsed_seconds < slow.elapsed_seconds - 30.0
    timed = [key for key in runner.beside_a_start if not key.startswith("guard")]
    assert not timed


def test_the_guards_trial_of_a_plan_that_is_no_faster_leaves_no_trace(tmp_path: Path) -> None:
    techniques = {**PLANTED, "sdpa": replace(PLANTED["sdpa"], factor=1.0)}
    runner, report = guarded({"techniques": techniques}, GPU_HOST, tmp_path)
    keys = [request.key for request in runner.requests]
    assert any(key.startswith("guard:") and "sdpa" in key for key in keys)
    assert "sdpa" not in report.plan.names
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        told = ledger.trials(1)
    assert not any(key.startswith("guard:") and "sdpa" in key for key in told)
    assert not runner.live


def test_a_guard_trial_that_dies_on_its_way_is_tried_once_more_alone(tmp_path: Path) -> None:
    runner, report = guarded({}, GPU_HOST, tmp_path, dies=("guard:bf16+sdpa",))
    keys = [request.key for request in runner.requests]
    assert keys.index("guard:bf16+sdpa") < keys.index("guard:bf16")
    assert "guard:bf16+sdpa~2" in keys
    assert "sdpa" in report.plan.names
    assert report.guard is not None and report.guard.passed


def test_the_idle_untouched_program_makes_room_for_the_guards_reference(tmp_path: Path) -> None:
    """20 GiB a process, 52 in FP64, and 140 in all."""
    runner, report = guarded({"peak_bytes": 20 << 30}, GPU_HOST, tmp_path)
    keys = [request.key for request in runner.requests]
    assert report.guard is not None and report.guard.passed
    assert keys.index("guard:again") == keys.index("guard:baseline") + 2
    # it was started once more for the last proof, beside the guard of the last technique
    shares = [place for place, key in enumerate(keys) if key.startswith("share:")]
    assert keys.index("climb:bf16+sdpa+compile+fused_optimizer") < keys.index("baseline~2") < min(shares)


def test_one_that_found_no_memory_beside_others_starts_once_more(tmp_path: Path) -> None:
    """The estimate is the untouched program's memory; ``tf32`` takes five times as much."""
    techniques = {**PLANTED, "tf32": replace(PLANTED["tf32"], memory_factor=5.0)}
    changes = {"techniques": techniques, "peak_bytes": 16 << 30, "device_bytes": 140 << 30}
    runner = Watched(program(**changes))
    report = play(tmp_path, runner.program, runner=runner, host=GPU_HOST)
    assert any(request.key.endswith("~2") and "screen" in request.key for request in runner.requests)
    assert not any(row.standing is Standing.FAILED for row in report.techniques)
    assert "bf16" in report.plan.names
