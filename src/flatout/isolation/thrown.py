"""What a trial wrote and flatout threw away, read from the upper layers or from a copied folder."""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flatout.isolation.overlay import Layer

REDIRECTED_GONE = ".flatout-gone"
"""Suffix by which agent/redirect.py marks in its mirror that a real file was removed."""

LISTED = 200
"""Largest writes that are named; all are counted."""


@dataclass(frozen=True, kw_only=True)
class Write:
    """One file written, or one deleted (``bytes`` 0 and ``deleted``)."""

    path: str
    bytes: int
    deleted: bool = False

    @property
    def label(self) -> str:
        return f"{self.path} (deleted)" if self.deleted else self.path


@dataclass(frozen=True, kw_only=True)
class ThrownAway:
    """The largest writes, and how many there were in all."""

    largest: tuple[tuple[str, int], ...] = ()
    count: int = 0
    bytes: int = 0


def summarise(writes: Iterable[Write], *, listed: int = LISTED) -> ThrownAway:
    """Count all, name the ``listed`` largest; deletions sort before other empty writes."""
    largest: list[tuple[int, bool, str, str]] = []
    count = total = 0
    for write in writes:
        count += 1
        total += write.bytes
        entry = (write.bytes, write.deleted, write.path, write.label)
        if len(largest) < listed:
            heapq.heappush(largest, entry)
        else:
            heapq.heappushpop(largest, entry)
    ordered = sorted(largest, key=lambda entry: (-entry[0], not entry[1], entry[2]))
    return ThrownAway(
        largest=tuple((label, size) for size, _, _, label in ordered), count=count, bytes=total
    )


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []  # gone, or closed by its owner: its size is still counted where it can be seen


def written_in_layer(layer: Layer) -> Iterator[Write]:
    """Every file in the upper folder; a device 0/0 there is how overlayfs notes a deletion."""
    pending = [""]
    opaque = ("user" if layer.user_xattrs else "trusted") + ".overlay.opaque"
    while pending:
        relative = pending.pop()
        for entry in _scan(layer.upper + relative):
            inner = f"{relative}/{entry.name}"
            shown = inner if layer.path == "/" else layer.path + inner
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                pending.append(inner)
                if _replaced(layer, inner, opaque):
                    yield Write(path=shown + "/", bytes=0, deleted=True)
            elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                yield Write(path=shown, bytes=0, deleted=True)
            else:
                yield Write(path=shown, bytes=status.st_size if stat.S_ISREG(status.st_mode) else 0)


def _replaced(layer: Layer, inner: str, opaque: str) -> bool:
    """A folder that hides one of the user's: deleted and made again."""
    try:
        return os.getxattr(layer.upper + inner, opaque) == b"y" and os.path.isdir(layer.lower + inner)
    except OSError:
        return False


def written_in_folder(
    folder: str, shown_as: str, before: dict[str, tuple[int, int, int]] | None = None
) -> Iterator[Write]:
    """Files below ``folder`` that are new or changed since ``before``, and those deleted since.

    ``before`` maps a path relative to the folder to (size, mtime in nanoseconds, inode); None: it was
    empty. Links that flatout itself laid are in ``before`` as well.
    """
    known = before or {}
    seen = set()
    pending = [""]
    while pending:
        relative = pending.pop()
        for entry in _scan(os.path.join(folder, relative)):
            inner = os.path.join(relative, entry.name)
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                pending.append(inner)
                continue
            seen.add(inner)
            if inner.endswith(REDIRECTED_GONE):
                shown = os.path.join(shown_as, inner.removesuffix(REDIRECTED_GONE))
                yield Write(path=shown, bytes=0, deleted=True)
            elif known.get(inner) != (status.st_size, status.st_mtime_ns, status.st_ino):
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                yield Write(path=os.path.join(shown_as, inner), bytes=size)
    for inner in known.keys() - seen:
        yield Write(path=os.path.join(shown_as, inner), bytes=0, deleted=True)


def bytes_on_disk(folder: str) -> int:
    """Space that everything below ``folder`` takes, in bytes."""
    total = 0
    pending = [folder]
    while pending:
        for entry in _scan(pending.pop()):
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            total += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                pending.append(entry.path)
    return total
