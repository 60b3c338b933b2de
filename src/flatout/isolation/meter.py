"""How much a program has written, asked often and cheaply."""

from __future__ import annotations

import os
import time

from flatout.isolation import thrown


class WriteMeter:
    """Says when the program has written more than it may, without walking folders all the time.

    The filesystem's free space costs nothing to ask; the folders are measured only when it has shrunk
    by an eighth of the limit since the last look, and every 30 seconds, since others free space, too.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.allowance = 0
        """Bytes that we laid there ourselves."""
        self.watch([folder])

    def watch(self, folders: list[str]) -> None:
        """Measure these from now on. Before the program starts: the first look may come late."""
        self.folders = folders
        self._looked = time.monotonic()
        space = self._space()
        self._free = space.f_bavail * space.f_frsize if space else None

    def exceeded(self) -> int | None:
        """Bytes written, when more than the limit or when the disk is all but full; else None."""
        space = self._space()
        if space is None:
            return None
        free = space.f_bavail * space.f_frsize
        if self._free is None:
            self._free = free
        full = free < min(256 << 20, space.f_blocks * space.f_frsize // 50)
        if not full and self._free - free < self.limit_bytes // 8 and time.monotonic() - self._looked < 30:
            return None
        written = sum(thrown.bytes_on_disk(folder) for folder in self.folders) - self.allowance
        self._looked = time.monotonic()
        self._free = free
        return written if written > self.limit_bytes or (full and written > 64 << 20) else None

    def _space(self) -> os.statvfs_result | None:
        try:
            return os.statvfs(self.folders[0]) if self.folders else None
        except OSError:
            return None
