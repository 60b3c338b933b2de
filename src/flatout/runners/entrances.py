"""The agent's ways into a program, as text: environment variables and the line of a ``.pth`` file."""

from __future__ import annotations

import os
from pathlib import Path

from flatout.agent.protocol import pth_line

AGENT_FOLDER = Path(__file__).resolve().parents[1] / "agent"
_BOOTSTRAP = AGENT_FOLDER / "bootstrap.py"
_SITECUSTOMIZE = AGENT_FOLDER / "sitecustomize_dir"


def pth_text(spec_path: Path) -> str:
    """Of the ``.pth`` file that lets the agent in, also under ``python -I``."""
    return pth_line(str(_BOOTSTRAP), str(spec_path))


def cache_environment(cache: Path) -> dict[str, str]:
    """Where the compilers keep what they made, so that a later process need not make it again; and that
    they do, in those versions of torch (2.4, 2.6) in which whole graphs are kept only on demand."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }


def agent_environment(environment: dict[str, str], spec_path: Path) -> dict[str, str]:
    """The way in by ``sitecustomize``: first on PYTHONPATH, before whatever was there."""
    old = environment.get("PYTHONPATH")
    path = f"{_SITECUSTOMIZE}{os.pathsep}{old}" if old else str(_SITECUSTOMIZE)
    return {**environment, "PYTHONPATH": path, "FLATOUT_SPEC": str(spec_path)}
