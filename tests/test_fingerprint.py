"""Which file a command runs, and what makes two workloads the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.fingerprint import find_script, fingerprint
from flatout.workload import Workload
from search.played import HOST, INTERPRETER


@pytest.fixture
def folder(tmp_path):
    for name in ("train.py", "run.sh", "data.bin", "pkg/__init__.py", "pkg/main.py", "mod/__main__.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 1", "train.py"),
        ("python -u -X dev train.py", "train.py"),
        ("torchrun --nproc-per-node 2 train.py --data data.bin", "train.py"),
        ("accelerate launch train.py", "train.py"),
        ("python -m pkg.main --steps 3", "pkg/main.py"),
        ("python -m mod", "mod/__main__.py"),
        ("bash run.sh", "run.sh"),
        ("./run.sh train.py", "train.py"),
        ("./run.sh", "run.sh"),
        ("trainer --config data.bin", None),
        ("python -c pass", None),
        ("python missing.py", None),
    ],
)
def test_find_script(folder, command, script):
    found = find_script(Workload(command=tuple(command.split()), cwd=str(folder)))
    assert (None if found is None else str(found.relative_to(folder))) == script


def test_same_workload_same_fingerprint(folder):
    workload = Workload(command=("python", "train.py"), cwd=str(folder), environment={"A": "1"})
    first = fingerprint(workload, HOST, INTERPRETER)
    assert fingerprint(replace(workload, environment={"B": "2"}), HOST, INTERPRETER) == first
    assert fingerprint(replace(workload, command=("python", "train.py", "-x")), HOST, INTERPRETER) != first
    assert fingerprint(workload, replace(HOST, driver="9"), INTERPRETER) != first
    assert fingerprint(workload, HOST, replace(INTERPRETER, torch_version="2.4")) != first
    (folder / "data.bin").write_text("other", encoding="utf-8")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.py").write_text("", encoding="utf-8")
    assert fingerprint(workload, HOST, INTERPRETER) == first
    (folder / "not-utf-8-\udcff.py").write_text("", encoding="utf-8")
    assert (named := fingerprint(workload, HOST, INTERPRETER)) != first
    (folder / "not-utf-8-\udcff.py").unlink()
    assert named != fingerprint(workload, HOST, INTERPRETER) == first
    (folder / "pkg" / "main.py").write_text("edited", encoding="utf-8")
    assert fingerprint(workload, HOST, INTERPRETER) != first
