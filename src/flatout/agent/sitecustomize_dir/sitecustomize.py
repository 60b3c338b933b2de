"""The second way in: this folder is first on ``PYTHONPATH`` and ``FLATOUT_SPEC`` names the spec.

Python imports one ``sitecustomize`` only, so the one that this shadows is run afterwards, as itself.
The folder leaves ``sys.path`` at once; ``PYTHONPATH`` in the environment stays, for child processes.
"""

from __future__ import annotations

import os
import sys


def _let_the_agent_in(here: str) -> None:
    spec_path = os.environ.get("FLATOUT_SPEC")
    if not spec_path:
        return
    bootstrap = os.path.join(os.path.dirname(here), "bootstrap.py")
    with open(bootstrap, "rb") as file:
        code = compile(file.read(), bootstrap, "exec")
    exec(code, {"__name__": "flatout_bootstrap", "__file__": bootstrap, "SPEC_PATH": spec_path})


def _run_the_shadowed_one() -> None:
    import _frozen_importlib as machinery
    import _frozen_importlib_external as files

    spec = files.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = machinery.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != _here]
_let_the_agent_in(_here)
_run_the_shadowed_one()
