"""The interpreter behind a shell script, seen in its process tree."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flatout.errors import AgentDidNotEnter, CommandNotFound
from flatout.runners.seen import find_interpreter, interpreter_seen
from flatout.workload import Workload
from isolation.house import House, marked_processes, tree_hash

TORCH = "2.9.0"


@pytest.fixture
def house(tmp_path: Path) -> House:
    made = House(tmp_path)
    (made.work / "torch").mkdir()
    (made.work / "torch" / "version.py").write_text(f"__version__ = '{TORCH}'\n")
    (made.work / "torch" / "__init__.py").write_text("")
    (made.work / "train.py").write_text(
        "import mmap, time\nfile = open('libtorch_cpu.so', 'w+b')\nfile.truncate(4096)\n"
        "kept = mmap.mmap(file.fileno(), 4096)\ntime.sleep(60)\n"
    )
    return made


def workload(house: House, *command: str) -> Workload:
    return Workload(command=command, cwd=str(house.work), environment=dict(house.environment))


def test_a_script_is_looked_through(house: House) -> None:
    script = house.work / "run.sh"
    script.write_text(f'#!/bin/sh\n{sys.executable} -c "pass"\nexec {sys.executable} -E train.py "$@"\n')
    script.chmod(0o755)
    before = tree_hash(house.work, house.home)
    found = find_interpreter(workload(house, "./run.sh"), out_dir=house.out)
    assert found.executable == sys.executable
    assert found.flags == ("-E",) and not found.direct
    assert found.torch_version == TORCH
    assert marked_processes(str(house.work)) == []
    if not (house.work / "libtorch_cpu.so").exists():
        assert tree_hash(house.work, house.home) == before


def test_a_name_that_leads_through_the_path(house: House) -> None:
    house.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = interpreter_seen(workload(house, "sh", "-c", f"{Path(sys.executable).name} train.py; true"))
    assert found.executable == sys.executable, (
        "by the name it was started with, which tells the environment"
    )


def test_a_program_that_ends_at_once_is_still_asked(house: House) -> None:
    (house.work / "train.py").write_text("import time\ntime.sleep(0.3)\n")
    found = interpreter_seen(
        workload(house, "sh", "-c", f"{sys.executable} train.py; true"), out_dir=house.out
    )
    assert found.torch_version == TORCH


def test_no_python_at_all_is_said_with_its_own_error(house: House) -> None:
    with pytest.raises(AgentDidNotEnter) as error:
        interpreter_seen(workload(house, "sh", "-c", "echo 'no such data' >&2; exit 3"), out_dir=house.out)
    assert error.value.child_error == "no such data"
    with pytest.raises(CommandNotFound):
        interpreter_seen(workload(house, "/nowhere/run"), out_dir=house.out)


def test_a_remembered_one_spares_the_start(house: House) -> None:
    script = "echo started > started; exit 1"
    found = find_interpreter(
        workload(house, "sh", "-c", script), out_dir=house.out, remembered=sys.executable
    )
    assert found.executable == sys.executable and not found.direct
