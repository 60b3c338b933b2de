"""The agent's door: run as a file, at the start of every Python process of a trial or a real job.

It comes in by the one line of a ``.pth`` file (``protocol.pth_line``), which hands it ``SPEC_PATH``, or
by ``sitecustomize_dir/sitecustomize.py``, where the environment variable ``FLATOUT_SPEC`` names the
spec. It loads this folder as the package ``flatout_agent`` without touching ``sys.path``, registers the
import hook, and is gone. It starts no process and imports nothing that the interpreter has not loaded
already: this runs also in every shell helper that happens to be written in Python.
"""

from __future__ import annotations

import sys

PACKAGE = "flatout_agent"
EXIT_CODE = 20  # errors.AgentError


def enter(spec_path: str, bootstrap_path: str) -> None:
    """Load the package and register the import hook. A second call does nothing."""
    if PACKAGE in sys.modules:
        return
    # The frozen halves of importlib are always loaded; importlib.util would cost milliseconds.
    machinery, files = sys.modules["_frozen_importlib"], sys.modules["_frozen_importlib_external"]

    folder = bootstrap_path.rpartition("/")[0] or "."
    spec = files.spec_from_file_location(
        PACKAGE, folder + "/__init__.py", submodule_search_locations=[folder]
    )
    module = machinery.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)
    __import__(PACKAGE + ".imports").imports.register(spec_path)


def fail(spec_path: str, error: BaseException) -> None:
    """Say what went wrong and end the process: a trial without its agent would measure nothing."""
    import os

    text = f"flatout: its agent could not start in this process: {type(error).__name__}: {error}"
    try:
        import json
        import traceback

        event = {"event": "error", "where": "start", "error": text, "traceback": traceback.format_exc()}
        path = os.path.join(os.path.dirname(spec_path), f"error-{os.getpid()}.json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
    except Exception as second:
        text += f" (nor could it write that down: {second})"
    os.write(2, (text + "\n").encode("utf-8", "replace"))
    os._exit(EXIT_CODE)


def main(spec_path: str, bootstrap_path: str) -> None:
    try:
        enter(spec_path, bootstrap_path)
    except Exception as error:
        fail(spec_path, error)


if __name__ == "flatout_bootstrap":
    main(globals()["SPEC_PATH"], globals()["__file__"])
