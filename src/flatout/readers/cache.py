"""What was read of a large file, kept as columns: a second look takes a moment.

Kept in the user's cache folder (``XDG_CACHE_HOME``), never beside the file, whose folder is not ours. An
entry belongs to one path, size, time of change, beginning and end; another reader's version, damage, a
full disk or a folder that may not be written only mean that the file is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flatout.capture import COLUMNS, DTYPES, Capture, Events, Lane, Metadata
from flatout.codec import from_plain, to_plain

VERSION = 2
"""To be raised when a reader makes other columns of the same file."""
LARGEST_BYTES = 5 << 30
"""Of all entries together; the ones that were used longest ago go first."""
_WORTH_BYTES = 8 << 20
"""A smaller file is read as fast."""
_ENDS_BYTES = 64 << 10


def cached(path: Path, read: Callable[[], Capture], *, folder: Path | None = None) -> Capture:
    """The capture in ``path``: from the cache, else by ``read``, and then kept.

    What ``read`` raises is raised. Captures with samples or kernels' counters are not kept.
    """
    entry = _entry(path, folder or cache_folder())
    if entry is None:
        return read()
    capture = _load(entry)
    if capture is None:
        capture = read()
        if not len(capture.samples.time_ns) and not capture.counters:
            with contextlib.suppress(OSError, ValueError):
                _store(entry, capture)
    return capture


def cache_folder() -> Path:
    """Where entries are: ``$XDG_CACHE_HOME/flatout/captures``, by default in ``~/.cache``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path("~/.cache").expanduser()
    return base / "flatout" / "captures"


def _entry(path: Path, folder: Path) -> Path | None:
    """The entry's file, whether it is there or not; None for what is not worth one."""
    try:
        told = path.stat()
        if not path.is_file() or told.st_size < _WORTH_BYTES:
            return None
        with path.open("rb") as file:
            first = file.read(_ENDS_BYTES)
            file.seek(-_ENDS_BYTES, os.SEEK_END)
            last = file.read()
        key = json.dumps([VERSION, str(path.resolve()), told.st_size, told.st_mtime_ns])
    except OSError:
        return None  # the reader says what is wrong
    digest = hashlib.sha256(key.encode(errors="surrogateescape") + first + last).hexdigest()
    return folder / f"{digest[:40]}.npz"


def _load(entry: Path) -> Capture | None:
    try:
        with entry.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            columns = {name: kept[name] for name in COLUMNS}
            words, lengths = kept["words"].tobytes(), kept["lengths"].tolist()
            about = json.loads(kept["about"].tobytes())
        rows = {len(column) for column in columns.values()}
        sound = all(column.dtype == DTYPES[name] and column.ndim == 1 for name, column in columns.items())
        if len(rows) != 1 or not sound or sum(lengths) != len(words):
            return None
        strings, at = [], 0
        for length in lengths:
            strings.append(words[at : at + length].decode(errors="surrogatepass"))
            at += length
        lanes = tuple(from_plain(Lane, one) for one in about["lanes"])
        if not _inside(columns, len(strings), len(lanes)):
            return None
        os.utime(entry)
        return Capture(
            events=Events(**columns),
            strings=tuple(strings),
            lanes=lanes,
            metadata=from_plain(Metadata, about["metadata"]),
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None


def _inside(columns: dict[str, np.ndarray], strings: int, lanes: int) -> bool:
    """Every index points into its table."""
    if not len(columns["name"]):
        return True
    tables = {"name": strings, "lane": lanes, "shapes": strings, "dtypes": strings, "text": strings}
    return all(
        columns[name].min() >= (0 if name in {"name", "lane"} else -1) and columns[name].max() < size
        for name, size in tables.items()
    )


def _store(entry: Path, capture: Capture) -> None:
    encoded = [word.encode(errors="surrogatepass") for word in capture.strings]
    about = {"lanes": to_plain(capture.lanes), "metadata": to_plain(capture.metadata)}
    entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _make_room(entry.parent, sum(getattr(capture.events, name).nbytes for name in COLUMNS))
    beside = entry.with_name(f".{entry.stem}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            np.savez(
                file,
                **{name: getattr(capture.events, name) for name in COLUMNS},
                words=np.frombuffer(b"".join(encoded), np.uint8),
                lengths=np.array([len(word) for word in encoded], np.int64),
                about=np.frombuffer(json.dumps(about).encode(), np.uint8),
            )
        beside.replace(entry)
    finally:
        beside.unlink(missing_ok=True)


def _make_room(folder: Path, wanted_bytes: int) -> None:
    """Old entries go until a new one of this size fits; so does what a kill left half written."""
    entries = sorted(((one.stat(), one) for one in folder.glob("*.npz")), key=lambda pair: pair[0].st_mtime)
    left = sum(told.st_size for told, _ in entries) + wanted_bytes
    for told, one in entries:
        if left <= LARGEST_BYTES:
            break
        one.unlink(missing_ok=True)
        left -= told.st_size
    for one in folder.glob(".*.part"):
        writer = one.name.split(".")[-2]
        if not writer.isdigit() or not Path(f"/proc/{writer}").exists():
            one.unlink(missing_ok=True)
