"""The weights and buffers of a program by names that are the same in every process of it.

Saved by the untouched program, loaded in place by every other guard trial, so that all of them stand at
the same weights. Addresses stay: a CUDA graph or an optimiser that holds on to them reads the new values.
"""

from __future__ import annotations

import itertools
import os
import time

from .. import events, units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Callable

PATIENCE_SECONDS = 300.0
"""For a file that another process of the same guard writes at this moment."""


class Entry:
    """One parameter or buffer."""

    __slots__ = ("is_parameter", "key", "name", "tensor")

    def __init__(self, key: str, name: str, tensor: Any, *, is_parameter: bool) -> None:
        self.key = key
        self.name = name
        self.tensor = tensor
        self.is_parameter = is_parameter


def roots(torch: Any, optimizers: list[Any]) -> list[Any]:
    """The program's modules that are no other's part, in the same order in every process; without the
    compiler's own graph modules."""
    alive = [one for one in units.modules_alive(torch) if not type(one).__module__.startswith("torch.fx")]
    inner = {id(child) for module in alive for child in module._modules.values() if child is not None}
    found: list[Any] = []
    for module in alive:
        if id(module) not in inner:
            own = units.unwrap(module)
            if not any(own is other for other in found):
                found.append(own)
    return units.in_order(torch, found, optimizers)


def entries(torch: Any, optimizers: list[Any]) -> list[Entry]:
    """All parameters and buffers, each tensor once: of modules by name, then what only optimisers hold."""
    seen: set[int] = set()
    counts: dict[str, int] = {}
    found: list[Entry] = []
    taken: set[str] = set()
    for root in roots(torch, optimizers):
        mark = units.fingerprint(root)
        counts[mark] = counts.get(mark, -1) + 1
        prefix = f"{mark}.{counts[mark]}."
        rows = [(name, one, True) for name, one in root.named_parameters()]
        rows += [(name, one, False) for name, one in root.named_buffers()]
        for name, tensor, is_parameter in rows:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                shown = next(one for one in _names(name, root) if one not in taken)
                taken.add(shown)
                found.append(Entry(prefix + name, shown, tensor, is_parameter=is_parameter))
    for place, optimizer in enumerate(optimizers):
        for group_index, group in enumerate(optimizer.param_groups):
            for index, tensor in enumerate(group["params"]):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    key = f"optimizer {place}.{group_index}.{index}"
                    found.append(Entry(key, key, tensor, is_parameter=True))
    return found


def _names(name: str, root: Any) -> Iterator[str]:
    """What a tensor may be called where another model has one of its name."""
    yield name
    for number in itertools.count(2):
        yield f"{name} of {type(root).__name__} {number}"


def local(tensor: Any) -> Any:
    """This rank's own part, without a gradient."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def usable(tensor: Any) -> bool:
    """It has storage of its own kind: no uninitialised parameter of a lazy module, no sparse tensor."""
    try:
        return bool(tensor.numel()) and str(tensor.layout) == "torch.strided"
    except (RuntimeError, ValueError):
        return False


def write(torch: Any, path: str, content: Any) -> None:
    """A file that is either not there or whole."""
    save = getattr(torch.save, "_flatout_original", torch.save)
    with events.open_for_writing(path + ".part") as file:
        save(content, file)
    events.replace(path + ".part", path)


def read(torch: Any, path: str, given_up: Callable[[], bool]) -> Any:
    """What ``write`` wrote; waits while ``given_up`` says no and the file is not there yet."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while not os.path.exists(path) and not given_up() and time.monotonic() < limit:
        time.sleep(0.02)
    load = getattr(torch.load, "_flatout_original", torch.load)
    return load(path, map_location="cpu", weights_only=True, mmap=True)


def save(torch: Any, optimizers: list[Any], path: str) -> None:
    """Write all weights and buffers."""
    content = {
        entry.key: local(entry.tensor).to("cpu", copy=True)
        for entry in entries(torch, optimizers)
        if usable(entry.tensor)
    }
    write(torch, path, content)


def load(torch: Any, optimizers: list[Any], content: Any) -> list[str]:
    """Put the saved values in their places; the names of trained parameters that were not found in it."""
    absent = []
    with torch.no_grad():
        for entry in entries(torch, optimizers):
            if not usable(entry.tensor):
                continue
            target = local(entry.tensor)
            value = content.get(entry.key)
            if value is None or value.shape != target.shape:
                if entry.is_parameter and entry.tensor.requires_grad:
                    absent.append(entry.name)
                continue
            target.data.copy_(value)
    return absent


def total_bytes(torch: Any, optimizers: list[Any]) -> int:
    """Of all parameters and buffers."""
    return sum(
        entry.tensor.numel() * entry.tensor.element_size()
        for entry in entries(torch, optimizers)
        if usable(entry.tensor)
    )
