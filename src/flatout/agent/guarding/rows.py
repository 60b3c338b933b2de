"""Comparing tensors, parameter by parameter, on a sample of each one's elements.

A large gradient is looked at in ``MOST_ELEMENTS`` places: half of them drawn, the same in every process;
the other half where the untouched program's gradient is largest, so that an embedding of which a batch
touches few rows is seen too.
"""

from __future__ import annotations

import math
import zlib

from ..gradients import decibels
from . import weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_ELEMENTS = 65_536
SEED = 20_261_201


def flat(tensor: Any) -> Any:
    """One dimension, dense, local to this rank."""
    tensor = weights.local(tensor)
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    return tensor.reshape(-1)


def drawn_places(torch: Any, key: str, elements: int, count: int) -> Any:
    """The same in every process."""
    generator = torch.Generator().manual_seed(SEED + zlib.crc32(key.encode()))
    return torch.randint(elements, (count,), generator=generator)


def places(torch: Any, key: str, values: Any) -> Any:
    """Where to look at a flat tensor; None: everywhere."""
    if values.numel() <= MOST_ELEMENTS:
        return None
    half = MOST_ELEMENTS // 2
    largest = values.abs().float().topk(half).indices.to("cpu")
    return torch.cat([drawn_places(torch, key, values.numel(), half), largest])


def sample(values: Any, where: Any) -> Any:
    """On the CPU, a copy."""
    if where is not None:
        values = values[where.to(values.device)]
    return values.to("cpu", copy=True)


def gradient_row(name: str, mine: Any, truth: Any) -> dict[str, Any]:
    """How a sampled gradient stands to the truth's, both on the CPU.

    ``slope`` is the projection on the truth: rounding noise averages out in it, a wrong scale does not.
    ``slope_error`` is its standard error where the noise of the elements is independent. ``nil`` is the
    share of exact zeros where the truth has none.
    """
    mine, truth = mine.double(), truth.double()
    elements = truth.numel()
    signal = float((truth * truth).sum())
    noise_square = float(((mine - truth) ** 2).sum())
    square = float((mine * mine).sum())
    row: dict[str, Any] = {
        "name": name,
        "elements": elements,
        "truth_rms": math.sqrt(signal / max(1, elements)) if math.isfinite(signal) else math.inf,
        "rms": math.sqrt(square / max(1, elements)) if math.isfinite(square) else math.inf,
        "db": decibels(signal, noise_square),
        "finite": math.isfinite(square),
        "slope": None,
        "slope_error": None,
        "nil": 0.0,
    }
    if signal > 0.0 and math.isfinite(signal) and math.isfinite(square):
        slope = float((mine * truth).sum()) / signal
        rest = max(0.0, square - slope * slope * signal)
        row["slope"] = slope
        row["slope_error"] = math.sqrt(rest / signal / max(1, elements - 1))
        present = truth != 0
        row["nil"] = float(((mine == 0) & present).sum()) / max(1, int(present.sum()))
    return row


def update_row(name: str, own: Any, wanted: Any, step_of_weight: float) -> dict[str, Any]:
    """How far a sampled update is from the untouched program's, as a share of its size. ``own`` and
    ``wanted`` are (before, after), on the CPU.

    ``step_of_weight``: the relative spacing of the untouched program's numbers (float32: 2**-23), which
    bounds what its own rounding can do to an update.
    """
    before, after = (values.double() for values in own)
    wanted_before, wanted_after = (values.double() for values in wanted)
    change, wanted = after - before, wanted_after - wanted_before
    count = max(1, wanted.numel())

    def rms(values: Any) -> float:
        return math.sqrt(float((values * values).sum()) / count)

    size = rms(wanted)
    return {
        "name": name,
        "size": size,
        "own_size": rms(change),
        "apart": rms(change - wanted),
        "start_apart": rms(before - wanted_before),
        "rounding": step_of_weight * rms(wanted_before),
        "moved": bool((change != 0).any()),
        "wanted_moved": bool((wanted != 0).any()),
    }
