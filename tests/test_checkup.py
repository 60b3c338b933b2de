"""What doctor looks at, on machines that are written down here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flatout.checkup import (
    CAP_SYS_ADMIN,
    Check,
    State,
    capabilities,
    check_compiler,
    check_disk,
    check_gpus,
    check_interpreter,
    check_machine,
    check_namespaces,
    check_profiling,
    check_triton,
)
from flatout.host import Gpu, Host, Interpreter
from flatout.renderers.checkup import render_checkup, render_checkup_json

GPU = Gpu(name="NVIDIA H200", uuid="GPU-1", memory_bytes=141 << 30, compute_capability=(9, 0))
HOST = Host(
    system="Linux 6.1",
    cpu="EPYC",
    cpu_count=4,
    memory_bytes=8 << 30,
    gpus=(GPU,),
    driver="580",
    cuda="13.0",
)
PYTHON = Interpreter(
    executable="/usr/bin/python3",
    version="3.11.2",
    site_packages=(),
    torch_version="2.13.0+cpu",
    packages={"torch": "2.13.0+cpu", "transformers": "5.1"},
)


def test_gpu() -> None:
    checks = check_gpus(HOST, {})
    assert [check.state for check in checks] == [State.OK, State.OK]
    assert "compute capability 9.0" in checks[0].detail
    assert "13.0" in checks[1].detail


def test_gpu_that_is_old_split_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(HOST, gpus=(replace(GPU, compute_capability=(7, 5)),))
    assert check_gpus(old, {})[0].state is State.NOTE
    assert "MIG" in check_gpus(HOST, {"GPU-1": True})[0].detail
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (absent,) = check_gpus(replace(HOST, gpus=()), {})
    assert absent.state is State.MISSING
    assert "CUDA_VISIBLE_DEVICES" in absent.detail


@pytest.mark.parametrize(
    ("text", "held", "state"),
    [
        ("RmProfilingAdminOnly: 0\n", 0, State.OK),
        ("RmProfilingAdminOnly: 1\n", 0, State.NOTE),
        ("RmProfilingAdminOnly: 1\n", 1 << CAP_SYS_ADMIN, State.OK),
        ("EnableMSI: 1\n", 0, State.NOTE),
    ],
)
def test_profiling(tmp_path: Path, text: str, held: int, state: State) -> None:
    params = tmp_path / "params"
    params.write_text(text)
    check = check_profiling(params, held)
    assert check.state is state
    assert bool(check.remedy) == (state is not State.OK)


def test_profiling_without_a_driver(tmp_path: Path) -> None:
    assert check_profiling(tmp_path / "nowhere").state is State.MISSING


def test_capabilities(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t000001ffffffffff\n")
    assert capabilities(status) & 1 << CAP_SYS_ADMIN
    assert capabilities(tmp_path / "nowhere") == 0


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ({"user/max_user_namespaces": "1000"}, State.OK),
        ({"user/max_user_namespaces": "0"}, State.NOTE),
        ({"user/max_user_namespaces": "9", "kernel/unprivileged_userns_clone": "0"}, State.NOTE),
        (
            {"user/max_user_namespaces": "9", "kernel/apparmor_restrict_unprivileged_userns": "1"},
            State.NOTE,
        ),
        ({}, State.MISSING),
    ],
)
def test_namespaces(tmp_path: Path, settings: dict[str, str], state: State) -> None:
    for name, value in settings.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(value + "\n")
    check = check_namespaces(tmp_path)
    assert check.state is state
    assert bool(check.remedy) == (state is not State.OK)


def test_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_compiler(False).state is State.MISSING
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert check_compiler(False).state is State.MISSING
    assert check_compiler(True).state is State.OK
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    assert check_compiler(False).state is State.OK


def test_triton(tmp_path: Path) -> None:
    assert check_triton(PYTHON, gpu=False).state is State.OK
    assert check_triton(PYTHON, gpu=True).state is State.MISSING
    (tmp_path / "triton").mkdir()
    assert check_triton(replace(PYTHON, site_packages=(str(tmp_path),)), gpu=True).state is State.OK


@pytest.mark.parametrize(
    ("python", "torch", "states"),
    [
        ("3.11.2", "2.13.0+cpu", ["ok", "ok"]),
        ("3.9.18", "2.4.1", ["ok", "ok"]),
        ("3.8.18", "2.4.1", ["missing", "ok"]),
        ("3.11.2", "2.3.1", ["ok", "missing"]),
        ("3.11.2", "1.13", ["ok", "missing"]),
        ("3.11.2", None, ["ok", "missing"]),
    ],
)
def test_interpreter(python: str, torch: str | None, states: list[str]) -> None:
    checks = check_interpreter(replace(PYTHON, version=python, torch_version=torch))
    assert [check.state for check in checks[:2]] == states
    assert "transformers 5.1" in checks[-1].detail


def test_disk(tmp_path: Path) -> None:
    check = check_disk(tmp_path / "not" / "yet")
    assert check.state in (State.OK, State.NOTE)
    assert str(tmp_path / "not" / "yet") in check.detail


def test_rendered() -> None:
    checks = [
        *check_machine(HOST),
        Check(
            group="isolation",
            name="overlay",
            state=State.MISSING,
            detail="no\x1b[2J right",
            remedy="be root",
        ),
    ]
    text = render_checkup(checks, width=80)
    assert "to get it: be root" in text
    assert "\x1b" not in text
    assert "\x1b" in render_checkup(checks, colour=True)
    plain = json.loads(render_checkup_json(checks))
    assert plain["checks"][-1]["state"] == "missing"
    assert set(plain["checks"][0]) == {"group", "name", "state", "detail", "remedy"}
