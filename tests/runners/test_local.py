"""Sessions of programs that play the agent's part, without torch: quick, and every end that there is."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import flatout
from flatout.errors import DiskFull, IsolationError, UsageError
from flatout.host import Interpreter
from flatout.plan import Choice, Plan
from flatout.runners import Request, SessionEnded
from flatout.runners.local import LocalRunner
from flatout.runners.session import LocalSession
from flatout.trial import Outcome, State
from flatout.workload import Discovery, Workload
from isolation.house import House, marked_processes, tree_hash, wait_for

SOURCE = str(Path(flatout.__file__).parents[1])
PROGRAM = str(Path(__file__).with_name("fake_program.py"))


class Runners:
    """Makes runners in one house, and ends them."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.made: list[LocalRunner] = []

    def __call__(
        self, *options: str, command: tuple[str, ...] | None = None, **changes: object
    ) -> LocalRunner:
        words = command or (sys.executable, PROGRAM, SOURCE, *(f"--{option}" for option in options))
        workload = Workload(
            command=words, cwd=str(self.house.work), environment=dict(self.house.environment)
        )
        interpreter = Interpreter(
            executable=sys.executable, version="3.11.0", site_packages=(), torch_version="2.13.0",
            flags=changes.pop("flags", ()),  # type: ignore[arg-type]
        )  # fmt: skip
        runner = LocalRunner(
            workload=workload, interpreter=interpreter, out_dir=self.house.out, **changes  # type: ignore[arg-type]
        )  # fmt: skip
        self.made.append(runner)
        return runner


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def runner(house: House) -> Iterator[Runners]:
    made = Runners(house)
    yield made
    for one in made.made:
        one.close()


def request(**changes: object) -> Request:
    values: dict[str, object] = {"key": "baseline", "plan": Plan(), "time_limit_seconds": 60.0}
    return Request(**{**values, **changes})  # type: ignore[arg-type]


def end_of(session: LocalSession, *steps: int) -> Outcome:
    with pytest.raises(SessionEnded) as ended:
        for count in steps or (5, 100000):
            session.advance(count)
    return ended.value.outcome


def test_steps_are_granted_and_blocks_come_back(runner: Runners) -> None:
    session = runner().start(request())
    first = session.advance(1)
    assert (first.first_step, first.steps, first.step_seconds) == (1, 1, ())
    second = session.advance(10)
    assert (second.first_step, second.steps, len(second.step_seconds)) == (2, 10, 9)
    assert all(seconds > 0.001 for seconds in second.step_seconds)
    assert second.losses[0] == (2, 0.5)
    assert second.loader_wait_seconds == pytest.approx(0.25 * second.wall_seconds)
    discovery = session.discovery
    assert isinstance(discovery, Discovery)
    assert discovery.units[0].class_name == "Net"
    time.sleep(0.1)
    third = session.advance(4)
    assert third.first_step == 12, "nothing was taken meanwhile"
    peeked = session.peek()
    assert peeked.steps == 15 and peeked.recompiles == 3 and peeked.peak_bytes == 1000
    outcome = session.stop()
    assert outcome.state is State.COMPLETED and not outcome.reason and not outcome.error
    assert outcome.steps == 15 and outcome.exit_code == 0
    assert len(outcome.step_seconds) == 9 + 3, "the first step after a hold is not counted"
    assert 0 < outcome.startup_seconds <= outcome.warmup_seconds
    assert outcome.host_peak_bytes > 0
    assert [step for step, _ in outcome.losses] == list(range(1, 16))
    assert session.stop() == outcome, "safe to ask again"
    session.kill()
    with pytest.raises(SessionEnded):
        session.advance(1)


def test_spec_and_folder_tell_what_was_asked(runner: Runners, house: House) -> None:
    from flatout.agent.protocol import Spec

    discovery = Discovery(step_unit="backward", anchor=None, backwards_per_step=1.0, device="cpu")
    plan = Plan(choices=(Choice(name="bf16"), Choice(name="compile", settings={"dynamic": True})))
    session = runner().start(
        request(
            key="climb:bf16+compile(dynamic=True)",
            plan=plan,
            seed=3,
            discovery=discovery,
            reference_role="save",
        )
    )
    spec = Spec.load(str(session.folder / "spec.json"))
    assert session.folder.parent == house.out / "trials"
    assert session.folder.name.startswith("0001-climb-bf16+compile")
    assert spec.techniques[1] == {"name": "compile", "settings": {"dynamic": True}}
    assert (spec.seed, spec.step_unit, spec.reference_role) == (3, "backward", "save")
    assert spec.reference_path == str(house.out / "reference" / "gradients.pt")
    session.advance(5)
    assert session.stop().active == {"bf16": {"ran": True}, "compile": {"ran": True}}


def test_two_sessions_take_turns(runner: Runners) -> None:
    one = runner()
    a, b = one.start(request()), one.start(request(key="again"))
    for _ in range(3):
        assert a.advance(3).steps == b.advance(4).steps - 1
    assert (a.stop().steps, b.stop().steps) == (9, 12)


def test_own_end_is_no_failure_and_its_steps_count(runner: Runners) -> None:
    session = runner("steps=7").start(request())
    assert session.advance(5).steps == 5
    last = session.advance(5)
    assert (last.first_step, last.steps) == (6, 2)
    outcome = end_of(session, 5)
    assert outcome.state is State.COMPLETED and not outcome.error
    assert outcome.steps == 7 and "7 steps" in outcome.reason


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (("crash=20",), "ProgramCrashed", "ValueError: bad batch"),
        (("crash-at-start",), "ProgramCrashed", "No module named 'somebody'"),
        (("input",), "NeedsInput", "standard input"),
        (("never",), "NeverStepped", "without one training step"),
        (("oom=20",), "OutOfMemory", "out of memory"),
        (("killed=20",), "OutOfMemory", "SIGKILL"),
        (("hang=20",), "Hung", "after step 19"),
        (("never=1000",), "NeverStepped", "ran on for 2 s"),
        (("daemon",), "DetachedProgram", "foreground"),
    ],
)  # fmt: skip
def test_ends(runner: Runners, options: tuple[str, ...], error: str, words: str) -> None:
    session = runner(*options).start(request(step_limit_seconds=2.0))
    outcome = end_of(session)
    assert outcome.state is State.FAILED
    assert outcome.error == error, outcome
    assert words in outcome.reason
    assert wait_for(lambda: not marked_processes(PROGRAM))
    if error == "ProgramCrashed":
        assert outcome.child_error.startswith("Traceback")
        assert outcome.exit_code == 1


def test_a_program_that_is_known_to_train_is_not_told_to(runner: Runners) -> None:
    known = Discovery(step_unit="optimizer", anchor=0, backwards_per_step=1.0, device="cpu")
    session = runner("never=1000").start(request(step_limit_seconds=2.0, discovery=known))
    outcome = end_of(session)
    assert outcome.error == "Hung" and "ran on for 2 s without one training step" in outcome.reason
    assert "the command that trains" not in outcome.reason


def test_time_limit(runner: Runners) -> None:
    outcome = end_of(runner().start(request(time_limit_seconds=1.0)))
    assert outcome.error == "TooFewSteps" and "1 s" in outcome.reason


def test_refusal_ends_the_trial(runner: Runners) -> None:
    outcome = end_of(runner("refuse").start(request(plan=Plan(choices=(Choice(name="sdpa"),)))))
    assert outcome.error == "TechniqueInactive"
    assert "sdpa" in outcome.reason and "no such thing" in outcome.reason


def test_writes_are_thrown_away_and_told(runner: Runners, house: House) -> None:
    before = tree_hash(house.work, house.home)
    one = runner("write=4")
    if one.way.name == "redirect":
        pytest.skip("the fake program's writes are not redirected, since the agent is not in it")
    session = one.start(request())
    session.advance(5)
    outcome = session.stop()
    assert tree_hash(house.work, house.home) == before
    assert (f"{house.work}/checkpoint.bin", 1000) in outcome.thrown_away
    assert outcome.thrown_away_count >= 1 and outcome.thrown_away_bytes >= 1000
    assert outcome.isolation == one.way.name


def test_gigabyte_writer(runner: Runners, house: House) -> None:
    one = runner("write=4", "bytes=80000000", write_limit_bytes=10_000_000)
    if one.way.name == "redirect":
        pytest.skip("the fake program's writes are not redirected, since the agent is not in it")
    outcome = end_of(one.start(request()))
    assert outcome.error == "WroteTooMuch"
    assert house.scratch_folders() == []


@pytest.mark.parametrize("isolation", ["landlock", "redirect"])
def test_the_weaker_ways(runner: Runners, house: House, isolation: str) -> None:
    try:
        one = runner("steps=9", isolation=isolation)
    except IsolationError as error:
        pytest.skip(error.message)
    session = one.start(request())
    assert session.advance(4).steps == 4
    outcome = session.stop()
    assert outcome.isolation == isolation and outcome.steps == 4
    assert house.scratch_folders() == []


def test_a_weaker_way_is_taken_when_the_stronger_does_not_hold(
    runner: Runners, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner("steps=9")
    if one.way.name == "redirect":
        pytest.skip("no stronger way here")
    stronger = one.way.name
    start = LocalSession.launch

    def launch(session: LocalSession) -> None:
        if session._runner.way.name == stronger:
            raise IsolationError("it was taken away")
        start(session)

    monkeypatch.setattr(LocalSession, "launch", launch)
    told: list[str] = []
    session = one.start(request(), told.append)
    assert one.way.name != stronger
    assert one.way.why_not[stronger] == "it was taken away"
    assert any("it was taken away" in line for line in told)
    assert session.advance(2).steps == 2


def test_a_write_that_landlock_forbids_leads_to_redirection(
    runner: Runners, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.isolation import choose

    monkeypatch.setattr(choose, "_try_overlay", lambda *_: None)
    outside = house.root / "outside.txt"
    one = runner(f"outside={outside}")
    if one.way.name != "landlock":
        pytest.skip(f"no Landlock here: {one.way.why_not}")
    told: list[str] = []
    session = one.start(request(), told.append)
    assert session.advance(2).first_step == 1
    block = session.advance(8)
    assert (block.first_step, block.steps) == (3, 8), "the new process took the earlier steps as well"
    outcome = session.stop()
    assert outcome.isolation == "redirect" and not outside.exists()
    assert (str(outside), 7) in outcome.thrown_away
    assert any("outside.txt" in line for line in told), told
    assert one.start(request()).stop().isolation == "redirect", "later trials begin there"


def test_flags_that_keep_the_agent_out(runner: Runners) -> None:
    outcome = end_of(runner(flags=("-S",)).start(request()))
    assert outcome.error == "AgentDidNotEnter" and "-S" in outcome.reason
    outcome = end_of(runner(flags=("-I",), isolation="redirect").start(request()))
    assert outcome.error == "AgentDidNotEnter" and "overlay" in outcome.reason


def test_a_command_that_cannot_be_executed(runner: Runners) -> None:
    outcome = end_of(runner(command=("/nowhere/at/all",)).start(request()))
    assert outcome.error == "CommandNotFound" and "No such file" in outcome.reason


def test_leaving_the_runner_ends_everything(runner: Runners, house: House) -> None:
    with runner() as one:
        session = one.start(request())
        session.advance(2)
        assert marked_processes(PROGRAM)
    assert not marked_processes(PROGRAM)
    assert end_of(session).reason == "killed"
    assert house.scratch_folders() == []


def test_ranks_are_waited_for_and_the_slowest_counts(runner: Runners) -> None:
    one = f'"{sys.executable}" "{PROGRAM}" "{SOURCE}" --world=2'
    script = f"{one} --rank=0 --seconds=0.001 & {one} --rank=1 --seconds=0.02 & wait"
    session = runner(command=("sh", "-c", script)).start(request())
    session.advance(4)
    block = session.advance(6)
    assert block.steps == 6 and min(block.step_seconds) > 0.015
    outcome = session.stop()
    assert outcome.steps == 10 and outcome.peak_bytes == 1001


@pytest.mark.parametrize(
    "number, error, words",
    [
        (errno.ENOTDIR, UsageError, "cannot be written: Not a directory"),
        (errno.EACCES, UsageError, "cannot be written: Permission denied"),
        (errno.ENOSPC, DiskFull, "no space left for"),
    ],
)
def test_out_folder_that_cannot_be_written_is_said(
    house: House, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception], words: str
) -> None:
    def forbidden(self: Path, *_args: object, **_names: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    (house.root / "file").write_text("")
    if number != errno.ENOTDIR:
        monkeypatch.setattr("flatout.runners.local.Path.mkdir", forbidden)
    with pytest.raises(error, match=words):
        LocalRunner(
            workload=Workload(command=("true",), cwd=str(house.work)),
            interpreter=Interpreter(executable="", version="", site_packages=(), torch_version=None),
            out_dir=house.root / "file" / "out",
        )
    assert house.work.is_dir()
