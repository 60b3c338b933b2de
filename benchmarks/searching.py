"""Running flatout from this checkout for a benchmark, and printing what came of it as JSON lines.

flatout is started through ``-c`` with its source folder put on its own path, and not through
PYTHONPATH, which the program under test would inherit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = str(Path(__file__).resolve().parents[1] / "src")
if SOURCE not in sys.path:
    sys.path.insert(0, SOURCE)

START = f"import sys; sys.path.insert(0, {SOURCE!r}); from flatout.__main__ import main; sys.exit(main())"


@dataclass(frozen=True, kw_only=True)
class Searched:
    """One ended ``flatout train``; ``report`` is report.json, or empty where there is none."""

    exit_code: int
    seconds: float
    report: dict[str, Any]
    stderr: str

    @property
    def plan(self) -> str:
        """The plan's techniques with their settings, or ``baseline``."""
        names = []
        for choice in self.report.get("plan", {}).get("choices", []):
            inside = ", ".join(f"{key}={value}" for key, value in sorted(choice["settings"].items()))
            names.append(f"{choice['name']}({inside})" if inside else choice["name"])
        return "+".join(names) or "baseline"

    @property
    def left(self) -> dict[str, float]:
        """What the plan's step (where there is none, the program's) is made of: cause -> share."""
        parts = (self.report.get("left") or {}).get("parts", [])
        return {part["cause"]: round(part["share"], 3) for part in parts}

    @property
    def techniques(self) -> dict[str, str]:
        """Technique -> what became of it, with the reason."""
        rows = self.report.get("techniques", [])
        return {row["name"]: f"{row['standing']}: {row['reason']}".rstrip(": ") for row in rows}


def search(
    command: Sequence[str],
    *,
    cwd: Path,
    out: Path,
    options: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Searched:
    """Run ``flatout train OPTIONS --out OUT -- COMMAND`` in ``cwd``, its output shown on stderr."""
    words = [sys.executable, "-c", START, "train", *options, "--out", str(out), "--", *command]
    start = time.monotonic()
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    kept: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            kept.append(line)
            print(f"  [{time.monotonic() - start:6.1f}s] {line}", end="", file=sys.stderr, flush=True)
        exit_code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    path = out / "report.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    return Searched(
        exit_code=exit_code,
        seconds=time.monotonic() - start,
        report=report,
        stderr="".join(kept[-30:]),
    )


def summarise(benchmark: str, results: Mapping[str, bool], **values: Any) -> int:
    """Say the last line of a benchmark of several parts, and which of them failed; its exit code."""
    failed = [name for name, ok in results.items() if not ok]
    say(benchmark=benchmark, **values, ok=len(results) - len(failed), of=len(results), failed=failed)
    return 1 if failed or not results else 0


def say(**values: Any) -> None:
    """Print one JSON line at once, so that a run that is cut off has shown what it had."""
    print(json.dumps(values, default=str), flush=True)
