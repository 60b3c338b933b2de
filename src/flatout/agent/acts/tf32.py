"""TF32: float32 matrix products on the tensor cores, 10 bits of mantissa instead of 23."""

from __future__ import annotations

from typing import Any

from ..refused import Refused
from .base import Act as _Base

_EARLY_STEPS = 5
_EVERY_STEPS = 64
_MOST_RESETS = 2


class Act(_Base):
    """Sets ``torch.set_float32_matmul_precision('high')`` and sees to it that it stays.

    That call is the one way that leaves both families of flags readable: after
    ``torch.backends.*.fp32_precision`` was set, a program that merely reads the legacy ``allow_tf32``
    dies with a RuntimeError. So nothing here touches either family of flags. Convolutions already run
    in TF32 by torch's own default and are left as the program has them.
    """

    name = "tf32"

    def __init__(self, settings: dict[str, Any], context: Any) -> None:
        super().__init__(settings, context)
        self._torch: Any = None
        self._before = ""
        self._resets: list[str] = []
        self._seen: dict[str, int] = {}

    def on_torch(self, torch: Any) -> None:
        self._torch = torch
        self._before = self._read()
        torch.set_float32_matmul_precision("high")

    def _read(self) -> str:
        """The precision in force, without touching the legacy flags."""
        try:
            return str(self._torch.get_float32_matmul_precision())
        except RuntimeError:
            # The program set the newer per-backend flags itself; torch then refuses the older read.
            return str(self._torch.backends.cuda.matmul.fp32_precision)

    def after_step(self, step: int) -> None:
        if step > _EARLY_STEPS and step % _EVERY_STEPS:
            return
        now = self._read()
        self._seen[now] = self._seen.get(now, 0) + 1
        # "medium" (bfloat16 pieces) and the newer name "tf32" are at least as fast as what we ask for.
        if now in ("high", "medium", "tf32"):
            return
        self._resets.append(f"step {step}: {now}")
        if len(self._resets) > _MOST_RESETS:
            raise Refused(
                f"the program keeps setting the float32 matmul precision back to {now!r} "
                f"({len(self._resets)} times by step {step}); remove that line to use TF32"
            )
        self._torch.set_float32_matmul_precision("high")

    def evidence(self) -> dict[str, Any]:
        return {
            "precision": self._read() if self._torch is not None else "",
            "before": self._before,
            "seen_at_steps": dict(self._seen),
            "resets": list(self._resets),
        }
