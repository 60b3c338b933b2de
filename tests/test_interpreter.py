"""Which Python a command starts, and what is asked of it."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from flatout.errors import AgentDidNotEnter, CommandNotFound, TorchUnsupported
from flatout.host import Interpreter
from flatout.interpreter import Named, ask, check, find_program, named_by_command, python_flags
from flatout.workload import Workload

PROGRAMS = Path(__file__).parent / "programs"


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def named(folder: Path, *command: str, **environment: str) -> Named | None:
    values = {"PATH": os.environ["PATH"], **environment}
    return named_by_command(Workload(command=command, cwd=str(folder), environment=values))


def test_python_and_its_flags(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.py").write_text("")
    found = named(tmp_path, sys.executable, "-uI", "-W", "ignore", "sub/x.py", "-S")
    assert found is not None
    assert (found.program, found.flags, found.first_path) == (sys.executable, ("-I",), "")
    plain = named(tmp_path, sys.executable, "-X", "dev", "sub/x.py")
    assert plain is not None and plain.flags == () and plain.first_path == str(tmp_path / "sub")
    module = named(tmp_path, sys.executable, "-E", "-m", "pkg", "-I")
    assert module is not None and module.flags == ("-E",) and module.first_path == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["-S", "-c", "pass", "-I"], ("-S",)),
        (["-Wignore", "-OO", "-mpkg"], ()),
        (["-BE", "-Xdev", "-c", "pass"], ("-E",)),
        (["--check-hash-based-pycs", "always", "-I", "-m", "a"], ("-I",)),
        ([], ()),
    ],
)
def test_flags(arguments: list[str], flags: tuple[str, ...], tmp_path: Path) -> None:
    assert python_flags(arguments, str(tmp_path))[0] == flags


def test_console_scripts_by_their_first_line(tmp_path: Path) -> None:
    for number, first in enumerate(
        (
            f"#!{sys.executable} -E\n",
            f"#!/bin/sh\n'''exec' {sys.executable} \"$0\" \"$@\"\n' '''\n",
            f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n",
        )
    ):
        script = executable(tmp_path / "bin" / f"torchrun{number}", first + "print()\n")
        found = named(tmp_path, script.name, "--nproc-per-node", "2", "x.py", PATH=str(script.parent))
        assert found is not None and found.program == sys.executable
        assert found.flags == (("-E",) if number == 0 else ())


def test_env_in_the_command_and_in_the_first_line(tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    script = executable(tmp_path / "train.py", f"#!/usr/bin/env {Path(sys.executable).name}\n")
    found = named(tmp_path, "./train.py", PATH=str(folder))
    assert found is not None and found.program == sys.executable
    found = named(tmp_path, "env", "-u", "HOME", "A=1", sys.executable, str(script), HOME="/h")
    assert found is not None and found.environment["A"] == "1" and "HOME" not in found.environment


def test_shell_scripts_and_compiled_launchers_do_not_tell(tmp_path: Path) -> None:
    script = executable(tmp_path / "run.sh", "#!/bin/sh\npython train.py\n")
    assert named(tmp_path, "./run.sh") is None
    assert named(tmp_path, "sh", str(script)) is None
    executable(tmp_path / "bin" / "poetry", f"#!{sys.executable}\n")
    assert named(tmp_path, "poetry", "run", "python", "x.py", PATH=str(tmp_path / "bin")) is None


def test_what_does_not_exist_is_said_with_what_is_near(tmp_path: Path) -> None:
    executable(tmp_path / "train.py", "")
    (tmp_path / "plain.py").write_text("")
    cases = {
        ("pyhton3", "train.py"): "python3",
        (sys.executable, "trian.py"): "train.py",
        ("./plain.py",): "python ./plain.py",
        ("./trainn.py",): "train.py",
        ("OMP_NUM_THREADS=1", "python"): "env OMP_NUM_THREADS=1",
        ("plain.py",): "python plain.py",
        (): "--",
    }
    for command, hint in cases.items():
        with pytest.raises(CommandNotFound) as error:
            named(tmp_path, *command)
        assert hint in error.value.hint, (command, error.value.hint)
    with pytest.raises(CommandNotFound, match="folder"):
        find_program("./", str(tmp_path), {})


def test_the_interpreter_is_asked_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.9.1+cu130'\n"
    )
    (tmp_path / "email.py").write_text("raise SystemExit('shadowed')\n")
    (tmp_path / "x.py").write_text("")
    found = named(tmp_path, sys.executable, "x.py")
    assert found is not None
    interpreter = ask(found, str(tmp_path))
    assert interpreter.torch_version == "2.9.1+cu130"
    assert interpreter.version == ".".join(map(str, sys.version_info[:3]))
    assert interpreter.executable == sys.executable and interpreter.direct
    assert any(path.endswith("site-packages") for path in interpreter.site_packages)
    assert not (tmp_path / "__pycache__").exists(), "nothing is written beside the user's files"


def test_what_is_no_python_is_said(tmp_path: Path) -> None:
    fake = executable(tmp_path / "python", "#!/bin/sh\necho oops >&2\n")
    with pytest.raises(AgentDidNotEnter) as error:
        ask(Named(program=str(fake), flags=(), first_path="", environment={}), str(tmp_path))
    assert error.value.child_error == "oops"


def interpreter(**changes: object) -> Interpreter:
    values: dict[str, object] = {
        "executable": "/p",
        "version": "3.11.2",
        "site_packages": (),
        "torch_version": "2.4.0",
    }
    return Interpreter(**{**values, **changes})  # type: ignore[arg-type]


def test_check() -> None:
    assert check(interpreter()) == interpreter()
    assert check(interpreter(torch_version="2.14.1a0+git")) and check(interpreter(torch_version="unknown"))
    with pytest.raises(TorchUnsupported, match="not installed"):
        check(interpreter(torch_version=None))
    with pytest.raises(TorchUnsupported, match=r"2\.3\.1.*too old"):
        check(interpreter(torch_version="2.3.1+cu121"))
    with pytest.raises(AgentDidNotEnter, match="-S"):
        check(interpreter(flags=("-S",)))
    with pytest.raises(AgentDidNotEnter, match=r"3\.8\.1"):
        check(interpreter(version="3.8.1"))


def test_only_a_slip_of_a_letter_is_taken_for_another_program(tmp_path: Path) -> None:
    for name in ("python3.11", "nextest", "nohup"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    found = {}
    for name in ("nonexist", "pyhton3.11"):
        with pytest.raises(CommandNotFound) as error:
            find_program(name, str(tmp_path), {"PATH": str(tmp_path)})
        found[name] = error.value.hint
    assert found["nonexist"].startswith("Check the spelling")
    assert found["pyhton3.11"] == "Did you mean python3.11?"
