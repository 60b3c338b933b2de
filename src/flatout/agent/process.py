"""Which process this is: rank, role, and where in a program it stands."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FRAMEWORKS = (
    ("transformers.trainer", "hf_trainer"),
    ("transformers.training", "hf_trainer"),
    ("accelerate.", "accelerate"),
    ("lightning.", "lightning"),
    ("pytorch_lightning.", "lightning"),
    ("deepspeed.", "deepspeed"),
)


def rank(torch: Any) -> int:
    """Of this training process: as torch.distributed knows it, else as the launcher said, else 0."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return environment_rank()


def environment_rank() -> int:
    for name in ("RANK", "LOCAL_RANK"):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


def world_size(torch: Any) -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdigit() else 1


def is_loader_worker(torch: Any) -> bool:
    """True in a DataLoader's worker process."""
    return torch.utils.data.get_worker_info() is not None


def frameworks_on_stack(found: set[str]) -> None:
    """Add the frameworks whose code is running right now, which is more than their being imported."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        for prefix, framework in _FRAMEWORKS:
            if name.startswith(prefix):
                found.add(framework)
        frame = frame.f_back
