"""While one program is measured the other stands still: its threads, its workers and what they prefetch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flatout.errors import IsolationError
from flatout.isolation import processes
from flatout.runners.local import LocalRunner
from flatout.runners.session import LocalSession
from flatout.runners.still import Still
from isolation.house import House, marked_processes, wait_for

from .test_local import Runners, request
from .test_local_torch import runner_of

PROGRAMS = Path(__file__).parents[1] / "programs"
PARENT = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); {child}"
CHILD = "import time; time.sleep(60)"


@pytest.fixture
def house(tmp_path: Path) -> House:
    made = House(tmp_path)
    made.environment.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    return made


@pytest.fixture
def runner(house: House) -> Iterator[Runners]:
    made = Runners(house)
    yield made
    for one in made.made:
        one.close()


@pytest.fixture
def made() -> Iterator[list[LocalRunner]]:
    runners: list[LocalRunner] = []
    yield runners
    for runner in runners:
        runner.close()


def states(pids: list[int]) -> set[str]:
    return {entry.state for entry in map(processes.process, pids) if entry is not None}


def test_a_process_and_its_children_are_stopped_and_go_on() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT.format(child=CHILD)], start_new_session=True)
    try:
        assert wait_for(lambda: len(processes.descendants(parent.pid)) == 1)
        pids = [parent.pid, *(entry.pid for entry in processes.descendants(parent.pid))]
        still = Still()
        assert not still.stop(os.getpid(), {1 << 22}), "no such process: nothing is stopped"
        assert still.stop(os.getpid(), {parent.pid}) and still
        assert wait_for(lambda: states(pids) == {"T"})
        still.go_on()
        assert wait_for(lambda: states(pids) <= {"S", "R"}) and not still
        still.go_on()
    finally:
        for pid in (*[entry.pid for entry in processes.descendants(parent.pid)], parent.pid):
            os.kill(pid, 9)
        parent.wait()


def test_what_may_not_be_stopped_goes_on_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = subprocess.Popen([sys.executable, "-c", CHILD])
    real = os.kill

    def forbidden(pid: int, number: int) -> None:
        if pid == parent.pid and number == 19:
            raise PermissionError
        real(pid, number)

    try:
        still = Still()
        monkeypatch.setattr("flatout.runners.still.os.kill", forbidden)
        assert not still.stop(os.getpid(), {parent.pid}) and not still and not still.possible
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.parametrize("isolation", ["auto", "landlock", "redirect"])
def test_the_one_that_holds_is_stopped_until_its_turn(runner: Runners, isolation: str) -> None:
    try:
        one = runner(isolation=isolation)
    except IsolationError as error:
        pytest.skip(error.message)
    a, b = one.start(request()), one.start(request(key="again"))
    for _ in range(3):
        a.advance(3)
        b.advance(4)
        (pid,) = marked_of(a)
        assert states([pid]) == {"T"} and states(marked_of(b)) <= {"S", "R"}
    assert a.advance(5).steps == 5
    assert wait_for(lambda: states(marked_of(b)) == {"T"})
    outcome = b.stop()
    assert (outcome.steps, outcome.exit_code) == (12, 0), "a stopped one ends in an orderly way too"
    a.kill()


def test_sessions_driven_by_threads_all_come_on(runner: Runners) -> None:
    """None is stopped after its grant, whichever thread is first."""
    one = runner("seconds=0.0002")
    sessions = [one.start(request(key=f"s{number}")) for number in range(3)]

    def drive(session: LocalSession) -> int:
        for _ in range(60):
            session.advance(2)
        return session.stop().steps

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(drive, sessions, timeout=60)) == [120] * 3


def test_stopped_ones_are_ended_with_the_runner(runner: Runners, house: House) -> None:
    with runner() as one:
        a, b = one.start(request()), one.start(request(key="again"))
        a.advance(3)
        b.advance(3)
        assert states(marked_of(a)) == {"T"}
    assert not marked_processes("fake_program.py")
    assert house.scratch_folders() == []


def test_two_that_wait_for_each_other_are_never_stopped_again(
    runner: Runners, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.runners.session.PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("flatout.runners.session.SOON_SECONDS", 20.0)  # on a busy machine
    lock = house.out / "cache" / "lock"  # what trials share
    one = runner(f"lock={lock}")
    told: list[str] = []
    a, b = one.start(request()), one.start(request(key="again"), told.append)
    a.advance(3)
    assert b.advance(3).steps == 3, "the first one's thread let go of the lock"
    assert any("none is stopped" in line for line in told)
    assert a.advance(2).steps == 2
    b.advance(1)
    assert "T" not in states(marked_of(a))
    assert not one.stops_idle


def marked_of(session: LocalSession) -> list[int]:
    """Processes of the program itself, without its supervisor."""
    supervisor = session._process.pid
    found = processes.descendants(supervisor)
    return [entry.pid for entry in found if b"fake_program" in processes.read_proc(entry.pid, "cmdline")]


# --- with a real loader


def alone(session: LocalSession, steps: int) -> float:
    """Seconds of a step, all of them counted, of a program that is never held."""
    session.advance(20)
    began = time.monotonic()
    session.advance(steps)
    return (time.monotonic() - began) / steps


@pytest.mark.torch
@pytest.mark.parametrize(
    "kind",
    [
        "workers",
        "thread",
        pytest.param("iterable", marks=pytest.mark.real),
        pytest.param("process", marks=pytest.mark.real),
    ],
)
def test_what_is_prefetched_in_a_hold_makes_nothing_faster(
    made: list[LocalRunner], house: House, kind: str
) -> None:
    """A loader of 20 ms behind a step of 1 ms, with room for 8 batches and blocks of 10 steps: a hold that
    lets it run ahead would show 4 ms instead of 20."""
    command = (sys.executable, str(PROGRAMS / "slow_loader.py"), "--kind", kind)
    one = runner_of(made, house, *command)
    a, b = one.start(request()), one.start(request(key="again"))
    expected = alone(a, 20)
    b.advance(20)
    means: dict[str, list[float]] = {"a": [], "b": []}
    for _ in range(4):
        for name, session in (("a", a), ("b", b)):
            block = session.advance(10)
            assert len(block.step_seconds) == 9, "nothing was prepared, so nothing is left out"
            means[name].append(sum(block.step_seconds) / len(block.step_seconds))
    mean_a, mean_b = sum(means["a"]) / 4, sum(means["b"]) / 4
    assert expected > 0.019
    assert mean_a == pytest.approx(expected, rel=0.15) and mean_b == pytest.approx(expected, rel=0.15)
