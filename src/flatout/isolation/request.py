"""What flatout asks of a supervisor, and the pipe that it is asked through."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Request:
    """What to start and how, as flatout sends it."""

    command: list[str]
    """Empty: set the isolation up, say so, and end."""
    cwd: str
    environment: dict[str, str]
    stdout: str
    stderr: str
    way: str
    """``overlay``, ``landlock`` or ``redirect``."""
    scratch_base: str
    in_memory: bool = False
    whole: bool = True
    """overlay: as root, without a user namespace."""
    pid_namespace: bool = True
    pass_through: list[str] = field(default_factory=list)
    hide: list[str] = field(default_factory=list)
    cover: list[str] = field(default_factory=list)
    site_packages: list[str] = field(default_factory=list)
    pth_text: str = ""
    redirect_dir: str | None = None
    """redirect: where Python's writers are sent; listed at the end and removed."""
    leave_out: list[str] = field(default_factory=list)
    """landlock: not copied with the working folder."""
    write_limit_bytes: int = 16 << 30
    time_limit_seconds: float = 600.0


class Lines:
    """Whole lines from the pipe, without waiting; ``closed`` once the other end is gone."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.closed = False
        self._rest = b""

    def wait_for_line(self) -> str | None:
        while b"\n" not in self._rest and not self.closed:
            self._read()
        if b"\n" not in self._rest:
            return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def poll(self, seconds: float) -> list[str]:
        if not self.closed:
            if select.select([self.descriptor], [], [], seconds)[0]:
                self._read()
        else:
            time.sleep(seconds)
        *lines, self._rest = self._rest.split(b"\n")
        return [line.decode() for line in lines]

    def _read(self) -> None:
        try:
            data = os.read(self.descriptor, 1 << 20)
        except OSError:
            data = b""
        self.closed = not data
        self._rest += data
