"""The interpreter of a command that does not name one: a shell script, a compiled launcher.

It is seen in the process tree of a first start, which runs in isolation and is ended as soon as a
process has loaded torch; then it is asked as if the command had named it.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from flatout.errors import AgentDidNotEnter, CommandNotFound, FlatoutError
from flatout.host import Interpreter
from flatout.interpreter import Named, ask, check, find_program, is_python, named_by_command, python_flags
from flatout.isolation import available, processes
from flatout.isolation.choose import covered_places
from flatout.isolation.client import Supervised
from flatout.isolation.request import Request
from flatout.runners import endings
from flatout.workload import Workload

PATIENCE_SECONDS = 120.0
"""For a process with torch to appear."""


def find_interpreter(
    workload: Workload,
    *,
    out_dir: Path,
    isolation: str = "auto",
    remembered: str | None = None,
    seconds: float = PATIENCE_SECONDS,
) -> Interpreter:
    """The Python that the workload trains in, with a torch that flatout can work with.

    ``remembered`` is an interpreter seen earlier (in a plan file), used where the command names none, to
    spare the first start. Raises CommandNotFound, TorchUnsupported, AgentDidNotEnter, IsolationError.
    """
    named = named_by_command(workload)
    if named is not None:
        return check(ask(named, workload.cwd))
    if remembered and os.access(remembered, os.X_OK):
        known = Named(program=remembered, flags=(), first_path="", environment=dict(workload.environment))
        return check(ask(known, workload.cwd, direct=False))
    return check(interpreter_seen(workload, out_dir=out_dir, isolation=isolation, seconds=seconds))


def interpreter_seen(
    workload: Workload,
    *,
    out_dir: Path | None = None,
    isolation: str = "auto",
    seconds: float = PATIENCE_SECONDS,
) -> Interpreter:
    """The Python seen in the process tree of a first start, whatever torch it has.

    ``out_dir`` holds the start's output meanwhile; None: a temporary folder. Raises CommandNotFound,
    AgentDidNotEnter where no Python was started, IsolationError.
    """
    if out_dir is None:
        with tempfile.TemporaryDirectory(prefix="flatout-first-start-") as folder_name:
            return interpreter_seen(
                workload, out_dir=Path(folder_name), isolation=isolation, seconds=seconds
            )
    out_dir.mkdir(parents=True, exist_ok=True)
    home = workload.environment.get("HOME")
    cwd = os.path.realpath(workload.cwd)
    way = available(cwd=cwd, out_dir=out_dir, home=home, asked=isolation)[0]
    with tempfile.TemporaryDirectory(prefix="first-start-", dir=out_dir) as name:
        folder = os.path.realpath(name)
        supervised = Supervised(
            Request(
                command=list(workload.command),
                cwd=cwd,
                environment=dict(workload.environment),
                stdout=f"{folder}/stdout.txt",
                stderr=f"{folder}/stderr.txt",
                way=way.name,
                scratch_base=way.scratch_base,
                in_memory=way.in_memory,
                whole=way.whole,
                pid_namespace=way.pid_namespace,
                pass_through=[folder],
                cover=covered_places(cwd, workload.environment),
                leave_out=[os.path.realpath(out_dir)],
                time_limit_seconds=seconds + 60,
            )
        )
        try:
            answer = supervised.wait_until_started()
            if answer["what"] == "cannot_execute":
                raise CommandNotFound(f"{workload.command[0]} cannot be executed: {answer['reason']}")
            found, others = _watch(supervised, seconds)
        finally:
            supervised.kill()
        text = Path(folder, "stderr.txt").read_text(encoding="utf-8", errors="replace")
    return _choose(workload, found, others, endings.last_error(text))


def _watch(supervised: Supervised, seconds: float) -> tuple[Named | None, list[Named]]:
    """(the first interpreter seen with torch in its memory, all others in the order seen)."""
    others: dict[tuple[str, tuple[str, ...]], Named] = {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not supervised.closed:
        for entry in processes.descendants(supervised.pid):
            named = _python_of(entry.pid)
            if named is None:
                continue
            if processes.has_torch(entry.pid):
                return named, list(others.values())
            others.setdefault((named.program, named.flags), named)
        if supervised.said("exited"):
            break
        supervised.poll(0.02)
    return None, list(others.values())


def _python_of(pid: int) -> Named | None:
    """The interpreter that a process runs, as it was started; None where it is no Python."""
    words = processes.command_line(pid)
    if not words or "flatout.isolation.supervise" in " ".join(words[:5]):
        return None
    try:
        executable = str(Path(f"/proc/{pid}/exe").readlink())
        cwd = str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return None
    if not is_python(executable):
        return None
    environment = {}
    for row in processes.read_proc(pid, "environ").split(b"\0"):
        name, found, value = os.fsdecode(row).partition("=")
        if found:
            environment[name] = value
    try:
        # the name that it was started by tells a virtual environment; the executable does not
        program = find_program(words[0], cwd, environment)
    except FlatoutError:
        program = executable
    try:
        flags, first_path = python_flags(list(words[1:]), cwd)
    except FlatoutError:
        flags, first_path = (), ""
    return Named(program=program, flags=flags, first_path=first_path, environment=environment)


def _choose(workload: Workload, found: Named | None, others: list[Named], child_error: str) -> Interpreter:
    if found is not None:
        return ask(found, workload.cwd, direct=False)
    answers = []
    for named in reversed(others):
        try:
            answers.append(ask(named, workload.cwd, direct=False))
        except FlatoutError:
            continue
    for interpreter in answers:
        if interpreter.torch_version is not None:
            return interpreter
    if answers:
        return answers[0]
    raise AgentDidNotEnter(
        f"{workload.command[0]} starts no Python: none was seen in its process tree",
        hint="Give flatout the command that starts Python, such as: flatout train -- python train.py",
        child_error=child_error,
    )
