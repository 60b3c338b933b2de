"""An error as a person reads it: the program's own words first, what happened, what to do."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback

from flatout import __version__
from flatout.errors import FlatoutError
from flatout.renderers.text import plain

CHILD_ERROR_LINES = 30
_RULE = "-" * 78


def render_error(error: FlatoutError) -> str:
    """The lines for standard error. What the user's program said is set off between rules."""
    lines = []
    if error.child_error.strip():
        said = plain(error.child_error.strip("\n"), keep_lines=True).split("\n")
        left_out = len(said) - CHILD_ERROR_LINES
        lines.append(f"--- your program said {_RULE}"[: len(_RULE)])
        if left_out > 0:
            lines.append(f"... ({left_out} lines before these)")
        lines += [*said[-CHILD_ERROR_LINES:], _RULE]
    lines.append(f"flatout: {plain(error.message, keep_lines=True)}")
    if error.hint:
        lines.append(f"  what to do: {plain(error.hint, keep_lines=True)}")
    return "\n".join(lines) + "\n"


def save_fault(fault: BaseException, words: list[str]) -> str | None:
    """Write a fault's whole traceback to a new file; its path, or None where nothing can be written.

    ``words`` are flatout's own words of the command line, without the user's command, which may hold
    secrets.
    """
    text = "".join(traceback.format_exception(fault))
    version = f"flatout {__version__}, Python {sys.version.split()[0]}, {sys.platform}"
    head = f"{version}\nflatout {' '.join(words)}\n\n"
    try:
        descriptor, path = tempfile.mkstemp(prefix="flatout-fault-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(head + text)
    except OSError:
        return None
    return path


def render_fault(fault: BaseException, path: str | None) -> str:
    """The lines for a fault of flatout's own."""
    saw = plain(f"{type(fault).__name__}: {fault}")
    where = f"the full text is in {path}" if path else "nothing could be saved; run again with --traceback"
    return (
        f"flatout: a fault in flatout itself, not in your program: {saw[:300]}\n"
        f"  what to do: {where}; it helps whoever mends it. What was measured so far is kept.\n"
    )
