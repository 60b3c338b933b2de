"""Writing a file whole or not at all, and what it means when that does not work."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from flatout.errors import DiskFull, UsageError


def write_whole(path: Path, text: str) -> Path:
    """Write a file so that at any moment the old or the new one is there, never half of one.

    DiskFull or UsageError where that does not work.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")
        beside.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    return path


def cannot_write(what: Path | str, error: OSError, hint: str = "") -> DiskFull | UsageError:
    """No space is left, or the place that was named is not one for writing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(
            f"no space left for {what}", hint=hint or "Free some space, or choose another --out."
        )
    return UsageError(
        f"{what} cannot be written: {error.strerror or error}",
        hint=hint or "Choose another --out, or make this one writable.",
    )
