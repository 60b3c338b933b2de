"""What train and run do first: the command as a Workload, a folder to write to."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import DiskFull, UsageError
from flatout.workload import Workload

IGNORE_FILE = "# Made by flatout: nothing in here belongs under version control.\n*\n"


def workload_of(command: Sequence[str], name: str) -> Workload:
    """The command as its owner types it, here and now. Raises UsageError where there is none."""
    if not command:
        raise UsageError(
            f"`flatout {name}` needs the command that trains",
            hint=f"Put it behind --: `flatout {name} -- python train.py --its-own args`.",
        )
    try:
        cwd = os.getcwd()  # noqa: PTH109 - Path.cwd() is the same call under another name
    except FileNotFoundError:
        raise UsageError(
            "the working folder is no longer there", hint="cd to one that is, then start again."
        ) from None
    return Workload(command=tuple(command), cwd=cwd, environment=dict(os.environ))


def prepare_out(out: Path) -> Path:
    """The output folder as an absolute path, made where it was not there, kept out of version control.

    Raises UsageError where it cannot be one or holds files of the user's that a search would overwrite,
    DiskFull where it cannot be written.
    """
    out = out.absolute()
    try:
        new = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        theirs = [] if new else _not_ours(out)
        if theirs:
            raise UsageError(
                f"{out} holds a {theirs[0]} that no search of flatout's has left there",
                hint="It would be overwritten. Choose another --out, or move it away.",
            )
        if new:
            (out / ".gitignore").write_text(IGNORE_FILE, encoding="utf-8")
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f"{out} cannot be a folder: a file is in its place", hint="Choose another --out."
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no space left for {out}", hint="Choose another --out.") from error
        raise UsageError(f"{out} cannot be made: {error.strerror}", hint="Choose another --out.") from error
    return out


def _not_ours(out: Path) -> list[str]:
    """Names that a search writes, of files that are there and not from one."""
    mark = out / ".gitignore"
    if (out / "ledger.sqlite").exists() or (mark.is_file() and mark.read_bytes() == IGNORE_FILE.encode()):
        return []
    found = [name for name in ("report.json", "report.md", "report.html") if (out / name).exists()]
    plan = out / "plan.toml"
    if plan.exists() and not (plan.is_file() and b"flatout" in plan.read_bytes()[:200]):
        found.append("plan.toml")
    return found
