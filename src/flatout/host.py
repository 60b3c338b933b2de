"""The machine that a trial ran on, as data: stamped on every trial and named by every plan."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as NVML names it."""

    name: str
    uuid: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that the user's command starts, asked without importing torch."""

    executable: str
    version: str
    """Such as ``3.12.3``."""
    site_packages: tuple[str, ...]
    """Folders in which a ``.pth`` file is read at start."""
    torch_version: str | None
    """From torch's metadata or ``torch/version.py``; None where torch is not installed."""
    packages: dict[str, str] = field(default_factory=dict)
    """Installed versions of what matters to a technique (transformers, accelerate, lightning, ...)."""
    flags: tuple[str, ...] = ()
    """Of ``-I``, ``-E``, ``-S``: those that the command starts it with."""
    direct: bool = True
    """The command names it; False: seen in the process tree below a shell script or another launcher."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Hardware, driver and permissions. Nothing here changes while a search runs."""

    system: str
    """Such as ``Linux 6.1``."""
    cpu: str
    cpu_count: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    """Highest CUDA version that the driver serves, such as ``13.0``."""
    isolation: str = "redirect"
    """The strongest way of isolation that works here: ``overlay``, ``landlock`` or ``redirect``."""

    @property
    def gpu_label(self) -> str:
        """``NVIDIA H200`` or ``2 x NVIDIA H200`` or ``no GPU``."""
        if not self.gpus:
            return "no GPU"
        name = self.gpus[0].name
        return name if len(self.gpus) == 1 else f"{len(self.gpus)} x {name}"
