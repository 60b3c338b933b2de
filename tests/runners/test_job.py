"""The real job: everything passes through, and the plan is never silently absent."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

import flatout
from isolation.house import marked_processes, wait_for

SOURCE = str(Path(flatout.__file__).parents[1])
HERE = Path(__file__).parent
MAPS_TORCH = """
import mmap, pathlib, sys, time
path = pathlib.Path("libtorch_cpu.so"); path.write_bytes(bytes(4096))
file = path.open("r+b"); kept = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
time.sleep(float(sys.argv[1]))
"""


class Jobs:
    """Starts jobs in one folder; each carries the folder's name, by which its processes are found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.txt"

    def words(
        self,
        *options: str,
        techniques: str = "fused_optimizer",
        flags: str = "",
        degrade: bool = False,
        never_entered_seconds: float = 60.0,
        direct: bool = True,
        command: tuple[str, ...] = (),
    ) -> list[str]:
        program = (sys.executable, str(HERE / "fake_program.py"), SOURCE)
        words = command or (*program, *(f"--{option}" for option in options), f"--folder={self.folder}")
        return [
            *(sys.executable, str(HERE / "job_driver.py"), str(self.folder / "out"), techniques, flags),
            *(
                "degrade" if degrade else "strict",
                str(never_entered_seconds),
                "direct" if direct else "seen",
            ),
            *("--", *words),
        ]

    def run(self, *options: str, stdin: str = "", **changes: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": "", **changes.pop("environment", {})}  # type: ignore[dict-item]
        return subprocess.run(
            self.words(*options, **changes),  # type: ignore[arg-type]
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.folder,
            env=environment,
        )

    def start(self, *options: str, **changes: object) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                self.words(*options, **changes),  # type: ignore[arg-type]
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def stepping(self) -> bool:
        return "stepping" in self.log.read_text()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    yield Jobs(tmp_path)
    for pid in marked_processes(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def test_input_output_and_exit_code_pass_through(jobs: Jobs) -> None:
    done = jobs.run("stdin", "exit=7", stdin="typed by a person")
    assert done.returncode == 7, done.stderr
    assert "read typed by a person" in done.stdout
    assert "told: fused_optimizer is applied" in done.stderr
    assert "told: step 3: nan_loss: the loss is nan" in done.stderr


def test_a_signal_that_ends_the_program_is_told_as_shells_do(jobs: Jobs) -> None:
    done = jobs.run(command=("sh", "-c", "kill -SEGV $$"))
    assert done.returncode == 128 + signal.SIGSEGV


def test_a_plan_in_a_place_of_others_can_be_run(jobs: Jobs) -> None:
    (jobs.folder / "out").write_text("in the way of a folder")
    done = jobs.run("exit=5")
    assert done.returncode == 5, done.stderr
    assert "told: fused_optimizer is applied" in done.stderr


def test_writes_are_real_and_the_compile_cache_is_the_plans(jobs: Jobs) -> None:
    (jobs.folder / "out" / "cache").mkdir(parents=True)
    done = jobs.run(command=("sh", "-c", "echo x > kept; echo $TORCHINDUCTOR_CACHE_DIR"))
    assert (jobs.folder / "kept").read_text() == "x\n"
    assert done.stdout.strip() == str(jobs.folder / "out" / "cache" / "inductor")
    own = jobs.run(
        command=("sh", "-c", "echo $TORCHINDUCTOR_CACHE_DIR"),
        environment={"TORCHINDUCTOR_CACHE_DIR": "/own"},
    )
    assert own.stdout.strip() == "/own"


def test_refusal_stops_the_job_unless_degraded(jobs: Jobs) -> None:
    stopped = jobs.run("refuse", f"mark={jobs.folder}")
    assert stopped.returncode == 23
    assert "TechniqueInactive" in stopped.stderr and "no such thing" in stopped.stderr
    assert marked_processes(str(jobs.folder)) == []
    gone_on = jobs.run("refuse", degrade=True)
    assert gone_on.returncode == 0 and "stepping" in gone_on.stdout
    assert "going on without fused_optimizer" in gone_on.stderr


def test_torch_without_the_agent_is_noticed(jobs: Jobs) -> None:
    (jobs.folder / "maps.py").write_text(MAPS_TORCH)
    command = (sys.executable, "-S", "maps.py", "30")
    stopped = jobs.run(command=command, never_entered_seconds=0.3)
    assert stopped.returncode == 23, stopped.stderr
    assert "never entered" in stopped.stderr and "maps.py" in stopped.stderr
    gone_on = jobs.run(command=(*command[:3], "3"), never_entered_seconds=0.3, degrade=True)
    assert gone_on.returncode == 0
    assert "going on without the plan" in gone_on.stderr


def test_a_program_that_never_trained_is_told_of(jobs: Jobs) -> None:
    done = jobs.run(command=("true",))
    assert done.returncode == 0
    assert "never took a step under the plan" in done.stderr


def test_isolated_python_without_namespaces_is_not_started(jobs: Jobs) -> None:
    command = ("sh", "-c", "echo started")
    stopped = jobs.run(command=command, flags="-I", environment={"NO_NAMESPACES": "1"})
    assert stopped.returncode == 23 and "started" not in stopped.stdout
    assert "-I" in stopped.stderr
    gone_on = jobs.run(command=command, flags="-I", degrade=True, environment={"NO_NAMESPACES": "1"})
    assert gone_on.returncode == 0 and "started" in gone_on.stdout


@pytest.mark.root
def test_the_pth_reaches_a_wrapper(jobs: Jobs) -> None:
    from flatout.isolation import entrance

    site = next(path for path in sys.path if path.endswith("site-packages"))
    if not any(entrance.works(str(jobs.folder), site, user_namespace=user) for user in (False, True)):
        pytest.skip("no mount namespace is permitted here")
    done = jobs.run(command=("sh", "-c", f"ls {site} | grep flatout_agent; echo real > kept"), direct=False)
    assert done.stdout.strip() == "flatout_agent.pth"
    assert (jobs.folder / "kept").read_text() == "real\n"
    assert not Path(site, "flatout_agent.pth").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_flatout_reaches_the_program_once(jobs: Jobs, number: signal.Signals) -> None:
    with jobs.start("until-signal", "lasts=30", "exit=3") as job:
        assert wait_for(jobs.stepping)
        os.kill(job.pid, number)
        assert job.wait(timeout=20) == 3
    assert f"caught ['{number.name}']" in jobs.log.read_text()


def test_a_signal_to_the_whole_group_reaches_the_program_once(jobs: Jobs) -> None:
    with jobs.start("until-signal", "lasts=30") as job:
        assert wait_for(jobs.stepping)
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(timeout=20) == 0
    assert "caught ['SIGINT']" in jobs.log.read_text()


def test_orphans_of_the_program_leave_no_zombies(jobs: Jobs) -> None:
    code = (
        "import os, pathlib, subprocess, time\n"
        "for _ in range(3): subprocess.run(['sh', '-c', 'sleep 0.1 &'])\n"
        "time.sleep(1.5)\n"
        "zombies = 0\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
        "    try: row = path.read_text().rpartition(')')[2].split()\n"
        "    except OSError: continue\n"
        "    zombies += row[:2] == ['Z', str(os.getppid())]\n"
        "print('zombies', zombies)\n"
    )
    done = jobs.run(techniques="", command=(sys.executable, "-c", code))
    assert "zombies 0" in done.stdout, done.stderr


def test_ctrl_c_in_a_terminal_reaches_the_program_once(jobs: Jobs) -> None:
    leader, terminal = os.openpty()
    try:
        job = subprocess.Popen(
            jobs.words("until-signal", "lasts=30"),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=jobs.folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads here
        )
        shown = b""
        while b"stepping" not in shown:
            shown += os.read(leader, 1000)
        os.write(leader, b"\x03")
        while b"caught" not in shown or not shown.endswith(b"\n"):
            shown += os.read(leader, 1000)
        assert job.wait(timeout=20) == 0
    finally:
        os.close(terminal)
        os.close(leader)
    assert b"caught ['SIGINT']" in shown


def test_ctrl_z_in_a_terminal_stops_both_and_both_go_on(jobs: Jobs) -> None:
    """The shell must see flatout stopped; when it is continued, so is the program."""
    leader, terminal = os.openpty()
    try:
        job = subprocess.Popen(
            jobs.words("lasts=3"),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=jobs.folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads here
        )
        shown = b""
        while b"stepping" not in shown:
            shown += os.read(leader, 1000)
        # an orphaned group is not stopped by a terminal, so the signal is sent as the terminal would
        program = marked_processes("fake_program.py")
        programs = [pid for pid in program if pid != job.pid and os.getpgid(pid) == pid]
        os.killpg(programs[-1], signal.SIGSTOP)
        _, status = os.waitpid(job.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(job.pid, signal.SIGCONT)
        assert job.wait(timeout=20) == 0
    finally:
        os.close(terminal)
        os.close(leader)


def test_kill_9_of_flatout_ends_the_program(jobs: Jobs) -> None:
    with jobs.start("lasts=60", "until-signal") as job:
        assert wait_for(jobs.stepping)
        os.kill(job.pid, signal.SIGKILL)
    assert wait_for(lambda: marked_processes(str(jobs.folder)) == [])
