"""Real programs with the real agent, in each way of isolation and with each way of starting."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.errors import IsolationError
from flatout.plan import Choice, Plan
from flatout.runners import Request, SessionEnded
from flatout.runners.local import LocalRunner
from flatout.runners.seen import find_interpreter
from flatout.trial import Outcome, State
from flatout.workload import Workload
from isolation.house import House, marked_processes, tree_hash, wait_for

pytestmark = pytest.mark.torch
PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.fixture
def house(tmp_path: Path) -> House:
    made = House(tmp_path)
    made.environment.update(OMP_NUM_THREADS="1", PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="")
    return made


@pytest.fixture
def made() -> Iterator[list[LocalRunner]]:
    runners: list[LocalRunner] = []
    yield runners
    for runner in runners:
        runner.close()


def runner_of(made: list[LocalRunner], house: House, *command: str, isolation: str = "auto") -> LocalRunner:
    workload = Workload(command=command, cwd=str(house.work), environment=dict(house.environment))
    interpreter = find_interpreter(workload, out_dir=house.out, isolation=isolation)
    try:
        runner = LocalRunner(
            workload=workload,
            interpreter=interpreter,
            out_dir=house.out,
            isolation=isolation,
            has_gpu=False,
        )
    except IsolationError as error:
        pytest.skip(error.message)
    made.append(runner)
    return runner


def request(**changes: object) -> Request:
    values = {"key": "baseline", "plan": Plan(), "seed": 1, "time_limit_seconds": 120.0, **changes}
    return Request(**values)  # type: ignore[arg-type]


def ended(runner: LocalRunner, **changes: object) -> Outcome:
    session = runner.start(request(**changes))
    with pytest.raises(SessionEnded) as end:
        session.advance(5)
        session.advance(10**9)
    return end.value.outcome


@pytest.mark.root
@pytest.mark.parametrize("isolation", ["overlay", "landlock", "redirect"])
def test_checkpoints_are_thrown_away_and_never_resumed_from(
    made: list[LocalRunner], house: House, isolation: str
) -> None:
    """torch.save, safetensors, a native writer and a child process; a second trial starts afresh."""
    folder = house.work / "checkpoints" if isolation == "landlock" else house.root / "checkpoints"
    folder.mkdir()
    # landlock forbids what is outside the working folder, which the program would have to bear
    shown = "checkpoints" if isolation == "landlock" else str(folder)
    if isolation == "landlock":
        house.environment["HOME"] = "."
    (house.work / "precious.txt").write_text("mine")
    runner = runner_of(
        made,
        house,
        sys.executable,
        str(PROGRAMS / "checkpoints.py"),
        "--folder",
        shown,
        isolation=isolation,
    )
    before = tree_hash(house.work, house.home, folder)
    first = runner.start(request())
    first.advance(8)
    one = first.stop()
    second = runner.start(request(key="again"))
    second.advance(8)
    two = second.stop()
    assert one.state is State.COMPLETED is two.state, (one, two)
    assert "resumed" not in (second.folder / "stdout.txt").read_text()
    assert one.losses == two.losses
    listed = dict(one.thrown_away)
    assert any(path.endswith("checkpoint.pt") for path in listed), listed
    assert any(path.endswith("guest.safetensors") for path in listed), listed
    if isolation == "redirect":
        return  # the child's writes are real, which is why this way is the last one
    assert tree_hash(house.work, house.home, folder) == before
    assert any(path.endswith("guest.native.pt") for path in listed), listed
    assert f"{house.work}/precious.txt (deleted)" in listed
    assert f"{house.work}/guest.child" in listed


@pytest.mark.parametrize("wrapper", ["run.sh", "isolated.sh"])
def test_wrappers_that_keep_pythonpath_out(made: list[LocalRunner], house: House, wrapper: str) -> None:
    runner = runner_of(made, house, str(PROGRAMS / wrapper))
    if runner.way.name != "overlay":
        pytest.skip(f"needs a mount namespace: {runner.way.why_not}")
    session = runner.start(request())
    assert session.advance(5).steps == 5
    assert session.stop().state is State.COMPLETED


def test_torchrun_stops_all_ranks_at_one_step(made: list[LocalRunner], house: House) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("torchrun is not beside this Python")
    runner = runner_of(
        made, house, str(torchrun), "--standalone", "--nproc-per-node", "2", str(PROGRAMS / "ddp.py")
    )
    session = runner.start(request())
    session.advance(4)
    block = session.advance(6)
    assert block.steps == 6 and len(block.step_seconds) == 5
    outcome = session.stop()
    assert set(session.ranks.logs) == {0, 1}
    assert outcome.discovery is not None and outcome.discovery.world_size == 2
    assert outcome.steps == 10
    assert wait_for(lambda: marked_processes(str(house.root)) == [])


def test_a_plan_is_applied_and_shows_evidence(made: list[LocalRunner], house: House) -> None:
    runner = runner_of(made, house, sys.executable, str(PROGRAMS / "plain.py"))
    baseline = runner.start(request(reference_role="save"))
    baseline.advance(12)
    profile = baseline.profile()
    assert profile is not None and profile.operators
    assert baseline.advance(3).first_step == 14, "the profiled step is no block of its own"
    discovery = baseline.discovery
    assert discovery is not None and discovery.step_unit == "optimizer"
    told = baseline.stop()
    assert (house.out / "reference" / "gradients.pt").exists()
    assert told.profile == profile
    plan = Plan(choices=(Choice(name="fused_optimizer"),))
    fused = runner.start(
        request(key="screen:fused", plan=plan, discovery=discovery, reference_role="compare")
    )
    fused.advance(12)
    outcome = fused.stop()
    assert outcome.active["fused_optimizer"], outcome
    assert outcome.gradients is not None and outcome.gradients.compared > 0
    assert outcome.gradients.equal, "the first step's gradients come before any update"


def test_a_second_process_compiles_from_the_cache(made: list[LocalRunner], house: House) -> None:
    """Through the overlay too: the folder of caches is the one place that trials share."""
    runner = runner_of(made, house, sys.executable, str(PROGRAMS / "plain.py"))
    baseline = runner.start(request())
    baseline.advance(4)
    discovery = baseline.discovery
    baseline.stop()
    plan = Plan(choices=(Choice(name="compile"),))
    shown = []
    for number in range(2):
        session = runner.start(request(key=f"climb:compile~{number}", plan=plan, discovery=discovery))
        session.advance(4)
        shown.append(session.stop().active["compile"])
    first, second = shown
    assert first["cache_misses"] and not first["cache_hits"], first
    assert second["cache_hits"] and not second["cache_misses"], second


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        ("never_steps.py", "NeverStepped", "torch was imported"),
        ("forks_and_exits.py", "DetachedProgram", "foreground"),
        ("few_steps.py", "", "3 steps"),
    ],
)
def test_ends(made: list[LocalRunner], house: House, program: str, error: str, words: str) -> None:
    runner = runner_of(made, house, sys.executable, str(PROGRAMS / program))
    outcome = ended(runner)
    assert outcome.error == error, outcome
    assert words in outcome.reason, outcome
    assert wait_for(lambda: marked_processes(str(PROGRAMS / program)) == [])
    assert house.scratch_folders() == []


def test_memory_that_runs_out_is_a_result(made: list[LocalRunner], house: House) -> None:
    limit = "ulimit -v 4000000; exec "
    runner = runner_of(
        made, house, "sh", "-c", f'{limit} "{sys.executable}" "{PROGRAMS / "eats_memory.py"}"'
    )
    outcome = ended(runner)
    assert outcome.error == "OutOfMemory", outcome
    assert outcome.state is State.FAILED
