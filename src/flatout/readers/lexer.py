"""Where the elements of a JSON array begin and end, told from its text without parsing it.

Vectorised: quotes that no odd run of backslashes precedes open and close strings; what is left of the
braces and brackets gives the depth (the idea of simdjson's first stage: Langdale and Lemire, VLDB J. 28,
2019). Exact on text whose strings are closed, whatever the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP = np.zeros(256, np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1


@dataclass(frozen=True, kw_only=True)
class Elements:
    """The objects and arrays of an array's text, up to where the array or the text ends."""

    spans: list[tuple[int, int]]
    """Offsets of each one's first byte and of that behind its last."""
    closed: int | None
    """Offset of the bracket (or stray brace) that ends the array; None where the text ends first."""
    unfinished: int
    """Offset of an element that the text cuts off, or of what follows the last span."""


def elements(text: bytes, start: int = 0, end: int | None = None) -> Elements:
    """Of ``text[start:end]``, which begins inside the array and between two elements."""
    places, steps = _brackets(text, start, len(text) if end is None else end)
    depth = np.cumsum(steps, dtype=np.int32)
    below = np.flatnonzero(depth < 0)
    closed = None
    if len(below):
        closed = int(places[below[0]])
        places, steps, depth = places[: below[0]], steps[: below[0]], depth[: below[0]]
    opens = places[(depth == 1) & (steps == 1)]
    closes = places[(depth == 0) & (steps == -1)] + 1
    spans = list(zip(opens.tolist(), closes.tolist(), strict=False))
    unfinished = int(opens[len(spans)]) if len(opens) > len(spans) else spans[-1][1] if spans else start
    return Elements(spans=spans, closed=closed, unfinished=unfinished)


def depth_at_end(text: bytes) -> int:
    """How many braces and brackets are open behind ``text``; -1 inside of a string."""
    quotes = _quotes(np.frombuffer(text, np.uint8), text)
    return -1 if len(quotes) % 2 else int(_brackets(text, 0, len(text))[1].sum(dtype=np.int64))


def _brackets(text: bytes, start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Offsets of the braces and brackets outside of strings, and +1 or -1 of each."""
    data = np.frombuffer(text, np.uint8, end - start, start)
    quotes = _quotes(data, text, start)
    steps = _STEP[data]
    places = np.flatnonzero(steps)
    places = places[np.searchsorted(quotes, places) % 2 == 0]
    return places + start, steps[places]


def _quotes(data: NDArray[np.uint8], text: bytes, start: int = 0) -> NDArray[np.int64]:
    """Where strings open and close, counted from ``start``."""
    quotes = np.flatnonzero(data == 0x22)
    escaped = quotes[(quotes > 0) & (data[quotes - 1] == 0x5C)]
    if len(escaped):
        quotes = np.setdiff1d(quotes, [at for at in escaped.tolist() if _odd_run(text, start + at)])
    return quotes


def _odd_run(text: bytes, quote: int) -> bool:
    """An odd number of backslashes stands before this quote: it is escaped."""
    first = quote
    while first and text[first - 1] == 0x5C:
        first -= 1
    return (quote - first) % 2 == 1
