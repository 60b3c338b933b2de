"""What makes two workloads the same: which file a command runs, and a hash of what it is made of."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from flatout import __version__
from flatout.host import Host, Interpreter
from flatout.workload import Workload

_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"}
_MOST_FILES = 2000
_MOST_BYTES = 32 << 20


def find_script(workload: Workload) -> Path | None:
    """The file that is the program: the first ``.py`` file among the command's words, the file behind
    ``-m NAME``, else the first word after the program that is a file; None for a console script."""
    folder = Path(workload.cwd)
    words = list(workload.command)
    for index, word in enumerate(words[1:], start=1):
        if word.endswith((".py", ".sh")) and (folder / word).is_file():
            return folder / word
        if words[index - 1] == "-m" and re.fullmatch(r"[\w.]+", word):
            module = folder.joinpath(*word.split("."))
            for path in (module.with_name(module.name + ".py"), module / "__main__.py"):
                if path.is_file():
                    return path
    for word in words[1:2]:
        if not word.startswith("-") and (folder / word).is_file():
            return folder / word
    first = Path(words[0]) if words else None
    if first is not None and os.sep in words[0] and first.suffix and (folder / first).is_file():
        return folder / first
    return None


def file_sha256(path: Path) -> str | None:
    """Hex digest of a file's content; None when it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def sources_sha256(workload: Workload) -> str:
    """Hex digest over the Python and shell sources beside the program, three folders deep.

    A search that goes on after a kill must not reuse trials of a model that was edited meanwhile.
    """
    roots = {Path(workload.cwd).resolve()}
    script = find_script(workload)
    if script is not None:
        roots.add(script.resolve().parent)
    digest = hashlib.sha256()
    count = total = 0
    for root in sorted(roots):
        for path in _sources(root, depth=3):
            content = file_sha256(path)
            if content is None:
                continue
            digest.update(f"{path.relative_to(root)}\0{content}\0".encode("utf-8", "surrogateescape"))
            count += 1
            total += path.stat().st_size
            if count >= _MOST_FILES or total >= _MOST_BYTES:
                return digest.hexdigest()
    return digest.hexdigest()


def _sources(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if depth and not entry.name.startswith(".") and entry.name not in _SKIPPED_FOLDERS:
                    yield from _sources(Path(entry.path), depth - 1)
            elif entry.name.endswith((".py", ".sh")) and entry.is_file():
                yield Path(entry.path)
        except OSError:
            continue


def fingerprint(workload: Workload, host: Host, interpreter: Interpreter) -> str:
    """Hex digest of everything that must agree for one search to go on from another's trials."""
    parts = {
        "flatout": __version__,
        "command": list(workload.command),
        "cwd": workload.cwd,
        "sources": sources_sha256(workload),
        "interpreter": [interpreter.executable, interpreter.version, interpreter.torch_version],
        "packages": interpreter.packages,
        "host": [host.cpu, host.cpu_count, host.driver, [gpu.uuid for gpu in host.gpus]],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
