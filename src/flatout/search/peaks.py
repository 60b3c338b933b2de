"""What a GPU can reach at most, from its maker's data sheets: dense FLOP/s by precision, and bytes/s.

Only GPUs of which NVIDIA publishes these figures are listed, by the whole of the name that NVML gives; any
other (a MIG slice, a laptop's part) has no peak here, and nothing is said of its floor. Tensor cores
without sparsity, half of the sparse figure where only that one is given; for GeForce, with accumulation in
FP32, as PyTorch asks for.

Figures as published by NVIDIA: data sheets of HGX B200, H200, H100, A100, A30, A40, A10, L40S, L40, L4, T4,
V100; whitepapers of the Ada (RTX 4090) and Ampere GA102 (RTX 3090, RTX A6000) architectures.
"""

from __future__ import annotations

import re

BYTES = "bytes"
_UNITS = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", BYTES)
"""FP32 outside tensor cores, FP64 on them where the GPU has those for it."""
_PEAKS = {
    # whole name: TFLOP/s by precision and TB/s, in the order of _UNITS; 0 where the GPU has no such unit
    r"NVIDIA B200": (37, 75, 1100, 2250, 2250, 4500, 8.0),
    r"NVIDIA H200": (67, 67, 494.5, 989.5, 989.5, 1979, 4.8),
    r"NVIDIA H200 NVL": (60, 60, 417.5, 835.5, 835.5, 1670.5, 4.8),
    r"NVIDIA H100 80GB HBM3": (67, 67, 494.5, 989.5, 989.5, 1979, 3.35),
    r"NVIDIA H100 PCIe": (51, 51, 378, 756.5, 756.5, 1513, 2.0),
    r"NVIDIA H100 NVL": (60, 60, 417.5, 835.5, 835.5, 1670.5, 3.9),
    r"(NVIDIA )?A100-SXM4-40GB": (19.5, 19.5, 156, 312, 312, 0, 1.555),
    r"(NVIDIA )?A100-SXM4-80GB": (19.5, 19.5, 156, 312, 312, 0, 2.039),
    r"(NVIDIA )?A100-PCIE-40GB": (19.5, 19.5, 156, 312, 312, 0, 1.555),
    r"NVIDIA A100 80GB PCIe": (19.5, 19.5, 156, 312, 312, 0, 1.935),
    r"NVIDIA A30": (10.3, 10.3, 82, 165, 165, 0, 0.933),
    r"NVIDIA A40": (0, 37.4, 74.8, 149.7, 149.7, 0, 0.696),
    r"NVIDIA A10": (0, 31.2, 62.5, 125, 125, 0, 0.6),
    r"NVIDIA L40S": (0, 91.6, 183, 362, 362, 733, 0.864),
    r"NVIDIA L40": (0, 90.5, 90.5, 181, 181, 362, 0.864),
    r"NVIDIA L4": (0, 30.3, 60, 121, 121, 242.5, 0.3),
    r"(NVIDIA )?RTX A6000": (0, 38.7, 77.4, 154.8, 154.8, 0, 0.768),
    r"NVIDIA GeForce RTX 4090": (0, 82.6, 82.6, 165.2, 165.2, 330.3, 1.008),
    r"NVIDIA GeForce RTX 3090": (0, 35.6, 35.6, 71, 71, 0, 0.936),
    r"(NVIDIA )?(Tesla )?T4": (0, 8.1, 0, 0, 65, 0, 0.3),
    r"(NVIDIA )?(Tesla )?V100-SXM2-(16|32)GB": (7.8, 15.7, 0, 0, 125, 0, 0.9),
    r"(NVIDIA )?(Tesla )?V100-PCIE-(16|32)GB": (7, 14, 0, 0, 112, 0, 0.9),
}


def gpu_peaks(name: str) -> dict[str, float]:
    """Precision -> FLOP/s, ``bytes`` -> bytes/s; empty for a GPU that is not in the table."""
    for pattern, rates in _PEAKS.items():
        if re.fullmatch(pattern, name.strip()):
            return {unit: rate * 1e12 for unit, rate in zip(_UNITS, rates, strict=True) if rate}
    return {}
