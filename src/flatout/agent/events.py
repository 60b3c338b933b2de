"""Event lines: plain JSON, one a line, appended by one write each."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Taken before the redirected writers of agent/redirect.py are put in.
_open = os.open
_write = os.write
_close = os.close
_replace = os.replace
_fdopen = os.fdopen


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: floats that are not finite as strings, the unknown as its text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0.0 else str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def write_file(path: str, value: dict[str, Any]) -> None:
    """Write one JSON object as a file of its own, replacing what is there."""
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        _write_all(descriptor, json.dumps(plain(value)).encode() + b"\n")
    finally:
        _close(descriptor)


def open_for_writing(path: str) -> Any:
    """A binary file object on ``path`` itself, whatever the program's own writers are turned to."""
    return _fdopen(_open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), "wb")


def replace(old: str, new: str) -> None:
    _replace(old, new)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[_write(descriptor, data) :]


class EventFile:
    """The event file of one training process.

    ``rank-R.jsonl`` belongs to the first process that trains as rank R; a second one, such as a child
    that trains a model of its own, gets ``rank-R-PID.jsonl``.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self.rank = rank
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self.path = os.path.join(folder, f"rank-{rank}.jsonl")
        try:
            self._descriptor = _open(self.path, flags, 0o644)
            self.first = True
        except FileExistsError:
            self.first = False
            self.path = os.path.join(folder, f"rank-{rank}-{os.getpid()}.jsonl")
            self._descriptor = _open(self.path, flags & ~os.O_EXCL, 0o644)

    def write(self, event: dict[str, Any]) -> None:
        _write_all(self._descriptor, json.dumps(plain(event)).encode() + b"\n")

    def close(self) -> None:
        if self._descriptor >= 0:
            _close(self._descriptor)
            self._descriptor = -1
