"""At each run: are the masks on which a rewritten graph relies still what they were?

Dynamo guards the shape and type of a module's buffer, not its numbers, and one compiled frame may serve
several layers, each with a buffer of its own. So identity and version of each tensor are looked at in
every run (microseconds); one not seen before is compared once, number by number.
"""

from __future__ import annotations

from typing import Any, Callable

_MOST_KNOWN = 512


class Anchor:
    """A kept tensor that made a mask: its place among the graph's inputs, or None for an attribute."""

    def __init__(self, index: int | None, tensor: Any, name: str) -> None:
        self.index = index
        self.tensor = tensor
        self.name = name


def guarded(
    torch: Any,
    anchors: list[Anchor],
    run: Callable[..., Any],
    as_written: Callable[..., Any],
    changed: Callable[[str], None],
) -> Callable[..., Any]:
    """``run`` while every anchor holds its numbers; else ``as_written``, after telling ``changed``.

    The numbers proved are kept as copies, so that a change in place is seen for what it is.
    """
    unique: dict[Any, Anchor] = {}
    for anchor in anchors:
        unique.setdefault((anchor.index, id(anchor.tensor)), anchor)
    proved: list[tuple[Anchor, Any, dict[int, Any]]] = []
    for anchor in unique.values():
        tensor = anchor.tensor.detach()
        # The layers' masks are mostly equal: one copy serves them all.
        same = (copy for _, copy, _ in proved if copy.shape == tensor.shape and torch.equal(copy, tensor))
        copy = next(same, None)
        known = {id(anchor.tensor): (anchor.tensor, anchor.tensor._version)}
        proved.append((anchor, tensor.clone() if copy is None else copy, known))

    def checked(*inputs: Any) -> Any:
        for anchor, numbers, known in proved:
            tensor = anchor.tensor if anchor.index is None else inputs[anchor.index]
            seen = known.get(id(tensor))
            if seen is not None and seen[1] == tensor._version:
                continue
            if tensor.shape != numbers.shape or not torch.equal(tensor, numbers):
                changed(f"the mask {anchor.name} was changed after it had been proved")
                return as_written(*inputs)
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[id(tensor)] = (tensor, tensor._version)
        return run(*inputs)

    return checked
