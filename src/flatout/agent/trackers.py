"""Experiment trackers in a trial: offline, into what is thrown away. A real run keeps its own."""

from __future__ import annotations

import functools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MODULES = ("wandb", "mlflow", "comet_ml", "neptune", "clearml")

_ENVIRONMENT = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "COMET_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

_QUIET = {
    "WANDB_MODE": ("offline", "disabled", "dryrun"),
    "NEPTUNE_MODE": ("offline", "debug", "read-only"),
}
"""What a person may have chosen that starts no run anywhere, and so is left as it is."""


def quiet_environment() -> None:
    """For trackers that read it at their import, and for child processes."""
    for name, value in _ENVIRONMENT.items():
        if os.environ.get(name) not in _QUIET.get(name, ()):
            os.environ[name] = value
    if "MLFLOW_TRACKING_URI" in os.environ:
        os.environ["MLFLOW_TRACKING_URI"] = _mlflow_folder()


def _mlflow_folder() -> str:
    """The one that the isolation throws away where it has set one."""
    known = os.environ.get("MLFLOW_TRACKING_URI", "")
    return known if known.startswith("file:") else "file:" + os.path.join(os.getcwd(), "mlruns")


def quiet(name: str, module: Any) -> None:
    """For programs that say ``online`` in their own code."""
    if name == "wandb" and hasattr(module, "init"):
        _keep_offline(module, "init", "WANDB_MODE")
    elif name == "mlflow" and hasattr(module, "set_tracking_uri"):
        original = module.set_tracking_uri
        original(_mlflow_folder())

        @functools.wraps(original)
        def set_tracking_uri(uri: Any) -> Any:
            return original(_mlflow_folder())

        module.set_tracking_uri = set_tracking_uri
    elif name == "neptune" and hasattr(module, "init_run"):
        _keep_offline(module, "init_run", "NEPTUNE_MODE")
    elif name == "clearml" and hasattr(module, "Task"):
        module.Task.set_offline(offline_mode=True)
    elif name == "comet_ml" and hasattr(module, "OfflineExperiment"):
        module.Experiment = module.OfflineExperiment


def _keep_offline(module: Any, function: str, variable: str) -> None:
    original = getattr(module, function)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (kwargs.get("mode") or os.environ.get(variable)) not in _QUIET[variable]:
            kwargs["mode"] = "offline"
        return original(*args, **kwargs)

    setattr(module, function, call)
