"""Redirected writers: the user's files stay, and the program sees what it wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flatout.agent.protocol import SPEC_VARIABLE, Spec

from .driven import AGENT, PYTHON

PROGRAM = """
import os, pathlib, shutil, tempfile
home = pathlib.Path.cwd()
with open("kept.txt", "a") as file:
    file.write(" and more")
assert open("kept.txt").read() == "there before and more"
os.makedirs("run/deep", exist_ok=True)
pathlib.Path("run/deep/new.txt").write_text("new")
assert os.path.exists("run/deep/new.txt") and (home / "run").is_dir()
assert sorted(os.listdir("run")) == ["deep"]
os.replace("run/deep/new.txt", "run/moved.txt")
assert not os.path.exists("run/deep/new.txt")
assert pathlib.Path("run/moved.txt").read_text() == "new"
os.remove("gone.txt")
assert not os.path.exists("gone.txt")
try:
    open("gone.txt")
    raise SystemExit("still there")
except FileNotFoundError:
    pass
assert sorted(os.listdir(".")) == sorted(["kept.txt", "run", "old", "program.py"])
shutil.rmtree("old")
assert not os.path.exists("old") and not os.path.exists("old/inside.txt")
os.mkdir("old")
assert os.listdir("old") == []
os.rename("kept.txt", "renamed.txt")
assert open("renamed.txt").read() == "there before and more"
assert [p.name for p in home.glob("*.txt")] == ["renamed.txt"]
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "x").write_text("x")
try:
    open("nowhere/x.txt", "w")
    raise SystemExit("no error")
except FileNotFoundError:
    pass
"""


def run(home: Path, mirror: Path, code: str, python: str = PYTHON) -> subprocess.CompletedProcess[str]:
    trial = mirror.parent / "trial"
    trial.mkdir()
    spec = Spec(trial_dir=str(trial), redirect_dir=str(mirror))
    (trial / "spec.json").write_text(spec.to_json())
    (home / "program.py").write_text(code)
    return subprocess.run(
        [python, "-B", "program.py"],
        cwd=home,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "PYTHONPATH": str(AGENT / "sitecustomize_dir"),
            SPEC_VARIABLE: str(trial / "spec.json"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "old").mkdir(parents=True)
    (home / "kept.txt").write_text("there before")
    (home / "gone.txt").write_text("to be removed")
    (home / "old" / "inside.txt").write_text("inside")
    return home


def contents(home: Path) -> dict[str, str]:
    return {
        str(path.relative_to(home)): path.read_text()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name != "program.py"
    }


def test_files_are_written_elsewhere_and_read_back(home: Path, tmp_path: Path) -> None:
    before = contents(home)
    done = run(home, tmp_path / "mirror", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert contents(home) == before
    assert not (home / "run").exists()
    assert (tmp_path / "mirror" / str(home)[1:] / "run" / "moved.txt").read_text() == "new"


PATHLIB_PROGRAM = """
from pathlib import Path
path = Path("kept.txt")
path.write_text("changed")
Path("gone.txt").unlink()
assert not Path("gone.txt").exists()
Path("a/b").mkdir(parents=True)
Path("a/b/c.txt").touch()
path.rename("renamed.txt")
assert [one.name for one in Path(".").iterdir() if one.suffix == ".txt"] == ["renamed.txt"]
assert Path("renamed.txt").read_text() == "changed"
assert Path("old/inside.txt").open().read() == "inside"
"""
OTHER_PYTHONS = [
    str(path)
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    if int(path.parts[-3].split(".")[1]) >= 9
]


@pytest.mark.parametrize("python", [PYTHON, *OTHER_PYTHONS])
def test_pathlib_writes_elsewhere_in_every_python_at_hand(python: str, home: Path, tmp_path: Path) -> None:
    before = contents(home)
    done = run(home, tmp_path / "mirror", PATHLIB_PROGRAM, python=python)
    assert done.returncode == 0, done.stderr
    assert contents(home) == before


@pytest.mark.torch
def test_checkpoints_go_elsewhere_and_come_back(home: Path, tmp_path: Path) -> None:
    before = contents(home)
    code = (
        "import torch, numpy, os\n"
        "torch.save({'a': torch.ones(3)}, 'model.pt')\n"
        "assert torch.load('model.pt')['a'].sum() == 3\n"
        "numpy.save('array.npy', numpy.ones(2)); assert numpy.load('array.npy').sum() == 2\n"
        "import subprocess, sys\n"
        'subprocess.run([sys.executable, \'-c\', \'open("child.txt", "w").write("c")\'], check=True)\n'
        "assert open('child.txt').read() == 'c'\n"
    )
    if sys.executable == PYTHON:
        code += (
            "from safetensors.torch import save_file, load_file\n"
            "save_file({'a': torch.ones(2)}, 'm.safetensors')\n"
            "assert load_file('m.safetensors')['a'].sum() == 2\n"
        )
    done = run(home, tmp_path / "mirror", code)
    assert done.returncode == 0, done.stderr
    assert contents(home) == before
