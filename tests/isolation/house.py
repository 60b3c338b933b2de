"""A house to isolate programs in: a working folder, a home, an output folder, and the ways that work."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flatout.isolation import Way, available
from flatout.isolation.choose import covered_places
from flatout.isolation.client import Supervised
from flatout.isolation.request import Request


def tree_hash(*folders: Path) -> str:
    """Of every path, mode, link and byte below the folders, flatout's own output left out."""
    whole = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if ".flatout" not in path.parts):
            status = path.lstat()
            whole.update(f"{path} {stat.S_IFMT(status.st_mode)} {stat.S_IMODE(status.st_mode)} ".encode())
            if path.is_symlink():
                whole.update(os.fsencode(path.readlink()))
            elif path.is_file():
                whole.update(path.read_bytes())
    return whole.hexdigest()


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def marked_processes(mark: str) -> list[int]:
    """Live processes whose command line holds ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


class House:
    """Folders below ``root``, and how a program is started in them."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.work = self.root / "work"
        self.home = self.root / "home"
        self.out = self.work / ".flatout"
        self.trial = self.out / "trial"
        for folder in (self.work, self.home, self.trial):
            folder.mkdir(parents=True, exist_ok=True)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.home)}

    def way(self, name: str) -> Way:
        """Raises IsolationError where it does not work here."""
        return available(cwd=str(self.work), out_dir=self.out, home=str(self.home), asked=name)[0]

    def request(self, way: Way, *command: str) -> Request:
        redirected = self.trial / "redirected"
        if way.name == "redirect":
            redirected.mkdir()
        return Request(
            command=list(command),
            cwd=str(self.work),
            environment=dict(self.environment),
            stdout=str(self.trial / "stdout.txt"),
            stderr=str(self.trial / "stderr.txt"),
            way=way.name,
            scratch_base=way.scratch_base,
            in_memory=way.in_memory,
            whole=way.whole,
            pid_namespace=way.pid_namespace,
            pass_through=[str(self.trial)],
            hide=[str(self.out / "scratch")],
            cover=covered_places(str(self.work), self.environment),
            redirect_dir=str(redirected) if way.name == "redirect" else None,
            leave_out=[str(self.out)],
            time_limit_seconds=60.0,
        )

    def run(self, way: Way | str, *command: str, **changes: object) -> Supervised:
        """To its end; what was said is in the answer."""
        way = self.way(way) if isinstance(way, str) else way
        supervised = Supervised(replace(self.request(way, *command), **changes))  # type: ignore[arg-type]
        try:
            supervised.wait_until_started()
            assert supervised.wait_for("done", seconds=60) is not None
        finally:
            supervised.kill()
        return supervised

    @property
    def printed(self) -> str:
        return (self.trial / "stdout.txt").read_text()

    @property
    def complained(self) -> str:
        return (self.trial / "stderr.txt").read_text()

    def scratch_folders(self) -> list[str]:
        return [path.name for path in (self.out / "scratch").glob("flatout-scratch-*")]
