"""Is dropout still there, at its rate, and drawn anew at each call?

At one step, before the program's own call, each of its models is called a few times more with the same
inputs: what differs between these calls is what the program's random numbers do. No difference: dropout is
lost, or frozen in a graph. Another size than the untouched program's: another rate. Buffers (running
statistics) are put back; the random state goes on, in the untouched program's trial alike.
"""

from __future__ import annotations

import math

from .. import units
from . import facts, weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AT_STEP = 3
"""A CUDA graph has been recorded by then, and is replayed."""
CALLS = 6
LOOKED_AT = 4
"""Of the last calls."""
MOST_MODULES = 8
MOST_ELEMENTS = 1 << 20


class Dropout:
    """Used in the guard trials whose randomness is on."""

    def __init__(self, guarding: Any) -> None:
        self.guarding = guarding
        self.torch = guarding.torch
        self._seen: list[Any] = []
        self._calling = False

    def before_call(self, original: Any, module: Any, args: Any, kwargs: Any) -> None:
        own = units.unwrap(module)
        if self._calling or self.guarding.step != AT_STEP or len(self._seen) >= MOST_MODULES:
            return
        if any(own is one for one in self._seen):
            return
        self._seen.append(own)
        if type(module).__name__ == "DistributedDataParallel":
            module = own  # its reducer counts forwards
        kept = [(one, one.detach().clone()) for one in own.buffers() if weights.usable(one)]
        self._calling = True
        outputs = []
        try:
            for _ in range(CALLS):
                result = original(module, *args, **kwargs)
                with self.guarding.aside():
                    outputs.append(self._flat(result))
                del result
        finally:
            self._calling = False
            with self.guarding.aside():
                for buffer, value in kept:
                    buffer.data.copy_(value)
        with self.guarding.aside():
            self._tell(type(own).__name__, outputs[-LOOKED_AT:])

    def _flat(self, result: Any) -> Any:
        """All floating numbers of an output that carry a gradient, or all there are."""
        torch = self.torch
        if hasattr(result, "to_tuple"):
            result = result.to_tuple()
        found = facts.tensors_in(torch, result, [])
        floating = [one for one in found if one.is_floating_point()]
        floating = [one for one in floating if one.requires_grad] or floating
        parts, room = [], MOST_ELEMENTS
        for one in floating:
            parts.append(one.detach().reshape(-1)[:room].double())
            room -= parts[-1].numel()
            if room <= 0:
                break
        return torch.cat(parts).clone() if parts else torch.zeros(0)

    def _tell(self, name: str, outputs: list[Any]) -> None:
        first = outputs[0]
        if not first.numel() or any(one.shape != first.shape for one in outputs):
            return
        apart = [
            float(((a - b) ** 2).mean().sqrt()) for i, a in enumerate(outputs) for b in outputs[i + 1 :]
        ]
        size = float((first * first).mean().sqrt())
        self.guarding.tell(
            "dropout",
            module=name,
            elements=first.numel(),
            size=size,
            apart=math.sqrt(sum(one * one for one in apart) / len(apart)),
            least_apart=min(apart),
            most_apart=max(apart),
        )
