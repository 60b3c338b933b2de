"""Say what this machine offers, what is missing and how to get it.

Looks at the GPU and its driver, the ways of keeping your files safe, permissions for profiling,
compilers, disk space, and at the Python and torch that COMMAND would use (without one: those of the
`python` on your PATH). Changes nothing, and starts no training.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatout.checkup import Check
    from flatout.host import Interpreter

USAGE = "[--json] [-- COMMAND...]"
TAKES_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    import shutil
    import sys

    from flatout.renderers.checkup import render_checkup, render_checkup_json
    from flatout.renderers.terminal import wants_colour

    checks = examine(arguments.command)
    if arguments.json:
        text = render_checkup_json(checks)
    else:
        width = max(80, min(shutil.get_terminal_size((100, 24)).columns, 120))
        text = render_checkup(checks, width=width, colour=wants_colour(sys.stdout))
    sys.stdout.write(text)
    return 0


def examine(command: Sequence[str]) -> list[Check]:
    """All checks for a command, or for the ``python`` on the PATH where there is none."""
    from pathlib import Path

    from flatout import checkup
    from flatout.detect import detect_host, mig_modes

    host = detect_host()
    gpu = bool(host.gpus)
    program, interpreter = _program(command)
    return [
        *checkup.check_machine(host),
        *checkup.check_gpus(host, mig_modes()),
        *program,
        checkup.check_compiler(gpu),
        *([checkup.check_triton(interpreter, gpu)] if interpreter else []),
        *_isolation(),
        checkup.check_namespaces(),
        checkup.check_profiling(),
        checkup.check_disk(Path.cwd() / ".flatout"),
    ]


def _program(command: Sequence[str]) -> tuple[list[Check], Interpreter | None]:
    """Checks of the interpreter that a command starts, and that interpreter where it is known."""
    import os
    import shutil

    from flatout.checkup import Check, State, check_interpreter
    from flatout.errors import FlatoutError
    from flatout.interpreter import ask, named_by_command
    from flatout.workload import Workload

    cwd = os.getcwd()  # noqa: PTH109 - the name that the shell gave it, symbolic links and all
    words = tuple(command) or next(
        ((name,) for name in ("python", "python3") if shutil.which(name)), ("python",)
    )
    workload = Workload(command=words, cwd=cwd, environment=dict(os.environ))
    try:
        named = named_by_command(workload)
        if named is None:
            detail = f"only running {words[0]} can tell which Python it starts"
            remedy = "put the python that it starts in its place: flatout doctor -- /path/to/python"
            return [
                Check(group="program", name="Python", state=State.NOTE, detail=detail, remedy=remedy)
            ], None
        interpreter = ask(named, cwd)
    except FlatoutError as error:
        missing = Check(
            group="program", name="Python", state=State.MISSING, detail=error.message, remedy=error.hint
        )
        return [missing], None
    return check_interpreter(interpreter), interpreter


def _isolation() -> list[Check]:
    """Each way of keeping files safe, strongest first, with the reason where it does not work."""
    import os
    import tempfile
    from pathlib import Path

    from flatout.checkup import Check, State
    from flatout.isolation import WAYS, available

    remedies = {
        "overlay": "run as root, or let users make namespaces (see below); container: --cap-add SYS_ADMIN",
        "landlock": "Linux 5.13 or later with landlock among the modules of /sys/kernel/security/lsm",
    }
    with tempfile.TemporaryDirectory(prefix="flatout-doctor-") as folder:
        ways = {way.name: way for way in available(cwd=os.getcwd(), out_dir=Path(folder))}  # noqa: PTH109
    why_not = {name: reason for way in ways.values() for name, reason in way.why_not.items()}
    checks = []
    for name in WAYS:
        if name in ways:
            strongest = next(iter(ways)) == name
            note = not any(way in ways for way in WAYS[:2])
            detail = ways[name].detail.replace(folder, "--out") + (" (would be used)" if strongest else "")
            checks.append(
                Check(
                    group="isolation",
                    name=name,
                    state=State.NOTE if note else State.OK,
                    detail=detail,
                    remedy="get one of the two above" if note else "",
                )
            )
        else:
            reason = why_not.get(name, "does not work here")
            checks.append(
                Check(
                    group="isolation",
                    name=name,
                    state=State.MISSING,
                    detail=reason,
                    remedy=remedies.get(name, ""),
                )
            )
    return checks
