"""Experiment trackers inside a trial: never online, and left as they are where they are quiet already."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from flatout.agent import trackers


@pytest.mark.parametrize(
    ("variable", "said", "kept"),
    [(None, "online", "offline"), ("online", None, "offline"), (None, None, "offline")]
    + [(None, quiet, quiet) for quiet in ("disabled", "dryrun", "offline")]
    + [("disabled", None, None)],
)
def test_wandb_goes_offline_unless_it_is_quiet_already(
    variable: str | None, said: str | None, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    wandb = SimpleNamespace(init=lambda **given: given)
    trackers.quiet("wandb", wandb)
    given = wandb.init(project="mine", **({"mode": said} if said else {}))
    assert given == {"project": "mine", **({"mode": kept} if kept else {})}


def test_the_environment_is_made_quiet_and_a_quieter_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*trackers._ENVIRONMENT, "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "online")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    trackers.quiet_environment()
    assert os.environ["WANDB_MODE"] == "disabled"
    assert os.environ["NEPTUNE_MODE"] == "offline"
    assert os.environ["MLFLOW_TRACKING_URI"] == f"file:{Path.cwd()}/mlruns"


def test_mlflow_stays_in_the_folder_whatever_the_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    mlflow = SimpleNamespace(set_tracking_uri=said.append)
    trackers.quiet("mlflow", mlflow)
    mlflow.set_tracking_uri("https://tracking.example")
    assert len(said) == 2 and all(uri.startswith("file:") for uri in said)
