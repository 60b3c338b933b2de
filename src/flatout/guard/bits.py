"""How many bits of a number a program's products keep, and so how much worse a plan may be.

Each bit less doubles the rounding error: 6.02 dB. A plan of b bits is expected at the untouched program's
own distance from the truth less 6.02 dB for each bit that it keeps less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flatout.technique import Effect
from flatout.workload import Discovery

DB_PER_BIT = 20.0 * math.log10(2.0)
FP64, FP32, TF32, FP16, BF16, FP8, FP4 = 53, 24, 11, 11, 8, 4, 2
"""Of the significand, the hidden one included."""
BY_TECHNIQUE = {"tf32": TF32, "bf16": BF16, "fp16": FP16, "fp8": FP8, "mxfp8": FP8, "nvfp4": FP4}
TF32_FROM = (8, 0)
"""Compute capability of Ampere."""


def bits_of_program(discovery: Discovery, model: Mapping[str, Any]) -> int:
    """Of the untouched program. Convolutions run in TF32 by themselves from Ampere on
    (torch.backends.cudnn.allow_tf32 is on by default)."""
    if "fp16" in discovery.already or "float16" in discovery.already.get("bf16", "").split():
        return FP16
    if "bf16" in discovery.already or set(discovery.parameter_dtypes) == {"bfloat16"}:
        return BF16
    if set(discovery.parameter_dtypes) == {"float64"}:
        return FP64
    capability = tuple(model.get("capability") or ())
    if discovery.device.startswith("cuda") and capability >= TF32_FROM:
        by_matmul = "tf32" in discovery.already or model.get("matmul") in ("high", "medium", "tf32")
        by_convolution = bool(model.get("convolutions")) and bool(model.get("cudnn_tf32"))
        if by_matmul or by_convolution:
            return TF32
    return FP32


def bits_of_plan(techniques: Mapping[str, Effect], program: int) -> int:
    """Of the program under a plan (technique name -> effect)."""
    kept = [program]
    for name, effect in techniques.items():
        if name in BY_TECHNIQUE:
            kept.append(BY_TECHNIQUE[name])
        elif effect in (Effect.APPROXIMATE, Effect.RECIPE):
            kept.append(BF16)
    return min(kept)


def format_of_plan(techniques: Mapping[str, Effect]) -> str:
    """The format of the fewest bits that a plan rounds to, by its technique's name; empty where it is not
    approximate."""
    formats = [
        name if name in BY_TECHNIQUE else "bf16"
        for name, effect in techniques.items()
        if effect is Effect.APPROXIMATE
    ]
    return min(formats, key=lambda name: BY_TECHNIQUE[name], default="")
