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


def quiet_environment() -> None:
    """For trackers that read it at their import, and for child processes."""
    os.environ.update(_ENVIRONMENT)
    if "MLFLOW_TRACKING_URI" in os.environ:
        os.environ["MLFLOW_TRACKING_URI"] = _mlflow_folder()


def _mlflow_folder() -> str:
    return "file:" + os.path.join(os.getcwd(), "mlruns")


def quiet(name: str, module: Any) -> None:
    """For programs that say ``online`` in their own code."""
    if name == "wandb" and hasattr(module, "init"):
        _force(module, "init", mode="offline")
    elif name == "mlflow" and hasattr(module, "set_tracking_uri"):
        original = module.set_tracking_uri
        original(_mlflow_folder())

        @functools.wraps(original)
        def set_tracking_uri(uri: Any) -> Any:
            return original(_mlflow_folder())

        module.set_tracking_uri = set_tracking_uri
    elif name == "neptune" and hasattr(module, "init_run"):
        _force(module, "init_run", mode="offline")
    elif name == "clearml" and hasattr(module, "Task"):
        module.Task.set_offline(offline_mode=True)
    elif name == "comet_ml" and hasattr(module, "OfflineExperiment"):
        module.Experiment = module.OfflineExperiment


def _force(module: Any, function: str, **forced: Any) -> None:
    original = getattr(module, function)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, **forced})

    setattr(module, function, call)
