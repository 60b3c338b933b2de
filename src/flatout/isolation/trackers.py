"""Environment that keeps experiment trackers offline, so that a trial starts no tracking run anywhere."""

from __future__ import annotations


def offline(folder: str) -> dict[str, str]:
    """Variables for the program; ``folder`` is thrown away after the trial.

    No key or login of the user's is touched: each tracker's own offline switch is set, and what it writes
    goes to ``folder``. Sources: the environment-variable pages of wandb, MLflow, Comet, Neptune, ClearML,
    Aim, SwanLab and huggingface_hub.
    """
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": folder,
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "COMET_START_ONLINE": "0",
        "COMET_OFFLINE_DIRECTORY": folder,
        "COMET_MODE": "offline",
        "NEPTUNE_MODE": "offline",
        "CLEARML_OFFLINE_MODE": "1",
        "TRAINS_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "offline",
        "DVCLIVE_TEST": "true",
        "CODECARBON_SAVE_TO_API": "false",
        "TRACKIO_DIR": folder,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }
