"""Compiled graphs that come from torch's cache know the shapes of the views that they return.

Up to torch 2.13 two kinds of views (``_unsafe_view``, which every linear layer over a batch of sequences
ends in, and ``resize_``) are pickled by reference to a vector that is gone by then. A process that finds
such a graph in the cache fails at its first call: "invalid shape dimension"; and one that writes or reads
it may end by SIGSEGV, since a garbage size can look like the address of a symbolic one. Trials
share a cache, so it would strike there (https://github.com/pytorch/pytorch/issues/185630).
"""

from __future__ import annotations

import copyreg

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MODULE = "torch._functorch._aot_autograd.functional_utils"
"""Watched for: where a graph's views are kept."""

_KINDS = ("_unsafe_view_ViewMeta", "resize__ViewMeta")


def mend(module: Any) -> None:
    """Pickle these views by the size that torch keeps beside them; nothing where it has no such views.

    Also where this torch has the fault no more: asking a view for its size is what may end the process.
    """
    kept = getattr(module, "ViewMetaSequence", None)
    there = getattr(module, "_functionalization", None)
    kinds = tuple(kind for name in _KINDS if (kind := getattr(there, name, None)) is not None)
    if kept is None or not kinds:
        return

    def reduced(self: Any) -> Any:
        views = list(self.sequence)
        lost = [view for view in views if isinstance(view, kinds)]
        if lost:
            if len(lost) > 1 or lost[0] is not views[-1] or any(view.has_symbolic_inputs for view in views):
                # Not to be told any more. Without its views, torch makes an output by its strides.
                return type(None), ()
            views[-1] = _View(type(lost[0]), [int(length.val) for length in self.metadata.size])
        # No word of flatout's may be in it: a process without the agent may read the same cache.
        return copyreg.__newobj__, (kept,), {**self.__dict__, "sequence": views}  # type: ignore[attr-defined]

    kept.__reduce__ = reduced


class _View:
    """Pickled as a view of this kind and size."""

    def __init__(self, kind: Any, size: list[int]) -> None:
        self.kind = kind
        self.size = size

    def __reduce__(self) -> Any:
        return self.kind, ((False, self.size),)
