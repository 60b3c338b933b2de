"""Two programs of two ranks each, side by side: all ranks of one side take their turn together."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.isolation import processes
from flatout.runners import SessionEnded
from flatout.runners.local import LocalRunner
from flatout.runners.session import LocalSession
from flatout.trial import State
from isolation.house import House, marked_processes, wait_for

from .test_local_torch import request, runner_of

pytestmark = pytest.mark.torch
PROGRAMS = Path(__file__).parents[1] / "programs"
TORCHRUN = Path(sys.executable).with_name("torchrun")


@pytest.fixture
def house(tmp_path: Path) -> House:
    made = House(tmp_path)
    made.environment.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    return made


@pytest.fixture
def made() -> Iterator[list[LocalRunner]]:
    runners: list[LocalRunner] = []
    yield runners
    for runner in runners:
        runner.close()


def states(session: LocalSession) -> dict[str, list[str]]:
    """States of the ranks and of their launcher."""
    found: dict[str, list[str]] = {"ranks": [], "launcher": []}
    for entry in processes.descendants(session._process.pid):
        line = processes.read_proc(entry.pid, "cmdline")
        if b"torchrun" in line:
            found["launcher"].append(entry.state)
        elif b"ddp.py" in line:
            found["ranks"].append(entry.state)
    return found


def test_ranks_of_both_sides_take_turns_and_one_that_dies_ends_its_side(
    made: list[LocalRunner], house: House
) -> None:
    if not TORCHRUN.exists():
        pytest.skip("torchrun is not beside this Python")
    fuse = house.out / "cache" / "fuse"  # what trials share
    options = ("--bucket-mb", "0.001", "--layers", "6", "--slow-rank", "1", "--fail-when", str(fuse))
    command = (str(TORCHRUN), "--standalone", "--nproc-per-node", "2", str(PROGRAMS / "ddp.py"), *options)
    runner = runner_of(made, house, *command)
    a, b = runner.start(request()), runner.start(request(key="again"))
    for steps in (3, 5, 7):
        blocks = [session.advance(steps) for session in (a, b)]
        assert [block.steps for block in blocks] == [steps, steps]
        assert states(a)["ranks"] == ["T", "T"] and "T" not in states(a)["launcher"]
        assert "T" not in states(b)["ranks"]
        for session in (a, b):
            # every rank holds at the same step, and neither side is ahead of the other
            assert session._taken() == (a._granted, a._granted), session._taken()
    # the slow rank makes the step, whichever rank one looks at
    assert all(min(block.step_seconds) >= 0.02 for block in blocks)
    assert set(a.ranks.logs) == {0, 1} == set(b.ranks.logs)
    fuse.write_text("")
    with pytest.raises(SessionEnded) as end:
        b.advance(4)
    assert end.value.outcome.error == "ProgramCrashed"
    assert "ValueError: rank 1 found" in end.value.outcome.reason
    assert "ChildFailedError" not in end.value.outcome.child_error, "its own error, not its launcher's"
    fuse.unlink()
    assert a.advance(4).steps == 4, "the other side goes on"
    outcome = a.stop()
    assert (outcome.state, outcome.steps) == (State.COMPLETED, 19)
    assert outcome.discovery is not None and outcome.discovery.world_size == 2
    assert wait_for(lambda: marked_processes(str(house.root)) == [])
