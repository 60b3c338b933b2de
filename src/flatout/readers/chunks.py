"""A Chrome trace's events in chunks of some MiB, and the keys that stand around them.

The usual chunk is cut where the text looks as it does between the first two events (found by searching
backwards from the block's end) and decoded whole. Only a chunk that does not decode is looked at closely:
cut exactly (``lexer``), halved until the bad events stand alone, and those left out, counted in bytes. So
a sound file costs the decoding and nothing else, and a damaged one loses only what is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from flatout.errors import BadCapture
from flatout.readers.lexer import depth_at_end, elements
from flatout.readers.stream import Stream

Event = TypeVar("Event")

CANNOT_DECODE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What a decoder may raise of a chunk; its events are then looked at one by one."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT_EVENT = re.compile(rb'\}\s*,?\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)")')
"""Where, in damaged text, an event probably ends and the next one begins."""
_AFTER_ARRAY = re.compile(rb'\s*(?:,\s*"|\}|\Z)')
_BLANK = b" \t\r\n,"
_LARGEST_OUTSIDE = 64 << 20
_LARGEST_EVENT = 64 << 20
_WINDOW = 64 << 10
"""Of damaged text that is looked at at a time."""


@dataclass
class Losses:
    """What of the text could not be read."""

    bytes: int = 0
    places: int = 0
    first: int = 0
    """Offset in the text of the first such place."""
    cut_off: int = 0
    """Bytes of the event in which the text ends."""
    unclosed: bool = False
    """The text ends inside the array of events."""
    outside: int = 0
    """Bytes behind the events that were not even looked at."""

    def sentences(self) -> tuple[str, ...]:
        """For ``Metadata.damage``."""
        told = []
        if self.bytes:
            where = f"in {self.places} places" if self.places > 1 else "in one place"
            told.append(
                f"{self.bytes} bytes {where} are no event that can be read and were left out "
                f"(the first at byte {self.first} of the text)"
            )
        if self.cut_off:
            told.append(f"the last {self.cut_off} bytes: cut off in mid-event")
        elif self.unclosed:
            told.append("the file ends before its list of events does: what followed is missing")
        if self.outside:
            told.append("what follows the list of events is too long to be its keys: not looked at")
        return tuple(told)


class Chunks(Generic[Event]):
    """One pass over a trace.

    ``decode`` makes events of the text of a JSON array, raising one of ``CANNOT_DECODE``; ``decode_one``
    of the text of a single one, however odd, None where nothing can be made of it. After the pass
    ``outside`` is the trace's text with its lists of events empty, and ``losses`` what was lost.
    """

    def __init__(
        self,
        stream: Stream,
        decode: Callable[[bytes], list[Event]],
        decode_one: Callable[[bytes], Event | None],
    ) -> None:
        self._path = stream.path
        self._blocks = stream.blocks()
        self._decode = decode
        self._decode_one = decode_one
        self._offset = 0
        """In the text, of the first byte of the buffer at hand."""
        self._ended = False
        self.outside = b""
        self.losses = Losses()

    def __iter__(self) -> Iterator[list[Event]]:
        """BadCapture where there is no list of events."""
        buffer = self._before_events()
        while buffer is not None:
            rest = yield from self._array(buffer)
            buffer = self._after_events(rest)

    def _more(self) -> bytes:
        block = next(self._blocks, b"")
        self._ended = not block
        return block

    def _advance(self, buffer: bytes, by: int) -> bytes:
        self._offset += by
        return buffer[by:]

    # What stands around the events.

    def _before_events(self) -> bytes | None:
        buffer = b""
        while not buffer.strip() and not self._ended:
            buffer += self._more()
        first = buffer.lstrip()[:1]
        if first == b"[":
            self.outside = b"["
            return self._advance(buffer, buffer.index(b"[") + 1)
        if first != b"{":
            raise BadCapture(
                f"{self._path} is no trace of the PyTorch profiler: it begins with "
                f"{buffer.lstrip()[:24]!r}, not with a JSON object",
                hint="Give a .json or .json.gz file of torch.profiler.",
            )
        events = self._find_array(buffer)
        if events is None:
            cut = " It may be cut off." if depth_at_end(self.outside) else ""
            raise BadCapture(
                f"{self._path} is JSON without a list of events (the key traceEvents).{cut}",
                hint="Give a .json or .json.gz file of torch.profiler.",
            )
        return events

    def _after_events(self, rest: bytes) -> bytes | None:
        if self.losses.unclosed:
            return None
        self.outside += b"]"
        return self._find_array(rest)

    def _find_array(self, buffer: bytes) -> bytes | None:
        """What follows the bracket that opens the next list of events of the trace; None where there is
        none: all that was left of the text is then in ``outside``."""
        searched = 0
        while True:
            for found in _ARRAY.finditer(buffer, searched):
                before = self.outside + buffer[: found.start()]
                if depth_at_end(before) == 1 and not elements(before).spans:
                    self.outside += buffer[: found.end()]
                    return self._advance(buffer, found.end())
            searched = max(len(buffer) - 64, 0)
            block = self._more() if len(buffer) <= _LARGEST_OUTSIDE else b""
            if not block:
                self.losses.outside = 0 if self._ended else 1
                self.outside += buffer
                return None
            buffer += block

    # The events.

    def _array(self, buffer: bytes) -> Generator[list[Event], None, bytes]:
        """Events up to the end of the list; returns the text behind it."""
        layout: _Layout | None = None
        while True:
            layout = layout or _learn(buffer)
            cut = buffer.rfind(layout.text) if layout else -1
            events = None
            if layout and cut >= 0:
                try:
                    events = self._decode(b"[%b]" % buffer[: cut + layout.end])
                except CANNOT_DECODE:
                    layout = None
            if layout and events is not None:
                yield events
                buffer = self._advance(buffer, cut + layout.start)
            else:
                buffer, closed = yield from self._closely(buffer)
                if closed or self._ended:
                    return buffer
            del events  # one chunk's at a time
            buffer += self._more()

    def _closely(self, buffer: bytes) -> Generator[list[Event], None, tuple[bytes, bool]]:
        """What can be read of a chunk that does not decode as a whole. Returns the text that is not used
        up, and whether the list of events ended before it."""
        at, window = 0, len(buffer)
        while True:
            whole = at + window >= len(buffer)
            found = elements(buffer, at, min(at + window, len(buffer)))
            events: list[Event] = []
            again = self._events(buffer, found.spans, events)
            if events:
                yield events
            if again is not None:
                at, window = again, _WINDOW
                continue
            self._gap(buffer, at, found.spans[0][0] if found.spans else found.unfinished)
            if found.closed is not None:
                self._gap(buffer, found.unfinished, found.closed)
                at = found.closed + 1
                if buffer[found.closed : at] == b"]" and _AFTER_ARRAY.match(buffer, at):
                    if not self._ended and not buffer[at:].strip():
                        return self._advance(buffer, found.closed), False  # the next block tells
                    return self._advance(buffer, at), True
                self._lose(found.closed, 1)
                continue
            next_event = self._swallowed(buffer, found.unfinished, min(at + window, len(buffer)))
            at = found.unfinished
            if next_event is not None:
                self._lose(at, next_event - at)
                at, window = next_event, _WINDOW
            elif not whole:
                window *= 2
            elif self._ended:
                self.losses.unclosed = self.outside != b"[" or bool(buffer[at:].strip(_BLANK))
                self.losses.cut_off = len(buffer[at:].strip(_BLANK))
                return b"", False
            elif len(buffer) - at > _LARGEST_EVENT:
                self._lose(at, len(buffer) - at)
                return self._advance(buffer, len(buffer)), False
            else:
                return self._advance(buffer, at), False

    def _events(self, buffer: bytes, spans: list[tuple[int, int]], events: list[Event]) -> int | None:
        """Adds to ``events`` those of the spans. An offset where one is bad and has swallowed others: to go
        on from there."""
        if not spans:
            return None
        start, end = spans[0][0], spans[-1][1]
        try:
            events += self._decode(b"[%b]" % buffer[start:end])
            return None
        except CANNOT_DECODE:
            pass
        if len(spans) > 1:
            middle = len(spans) // 2
            again = self._events(buffer, spans[:middle], events)
            if again is None:
                self._gap(buffer, spans[middle - 1][1], spans[middle][0])
                again = self._events(buffer, spans[middle:], events)
            return again
        event = self._decode_one(buffer[start:end])
        if event is not None:
            events.append(event)
            return None
        next_event = self._swallowed(buffer, start, end)
        self._lose(start, (end if next_event is None else next_event) - start)
        return next_event

    def _swallowed(self, buffer: bytes, start: int, end: int) -> int | None:
        """Where, in an element that is bad or unfinished, another one begins that is an event."""
        first = _NEXT_EVENT.search(buffer, start + 1, end)
        if first is None:
            return None
        second = _NEXT_EVENT.search(buffer, first.end(), end)
        last = second.start() + 1 if second else elements(buffer, first.end(), end)
        if isinstance(last, int):
            return first.end() if self._decode_one(buffer[first.end() : last]) is not None else None
        inside = last.spans
        return first.end() if inside and self._decode_one(buffer[slice(*inside[0])]) is not None else None

    def _gap(self, buffer: bytes, start: int, end: int) -> None:
        """Between two elements only a comma may stand."""
        if lost := len(buffer[start:end].strip(_BLANK)):
            self._lose(start, lost)

    def _lose(self, at: int, count: int) -> None:
        if not self.losses.places:
            self.losses.first = self._offset + at
        self.losses.places += 1
        self.losses.bytes += count


@dataclass(frozen=True)
class _Layout:
    """The text between two events, as this file writes it."""

    text: bytes
    """From the space before the closing brace to the next event's first key."""
    end: int
    """Offset in it, behind the closing brace."""
    start: int
    """Offset in it, of the next opening brace."""


def _learn(buffer: bytes) -> _Layout | None:
    """From the first two events; None where that much cannot be told."""
    spans = elements(buffer, 0, min(len(buffer), 2 * _WINDOW)).spans
    if len(spans) < 2:
        return None
    (_, end), (start, _) = spans[0], spans[1]
    key = re.compile(rb'\{\s*"[^"\\]*"').match(buffer, start)
    if key is None or buffer[end - 1 : end] != b"}":
        return None
    body = buffer[spans[0][0] : end - 1]
    before = end - 1 - (len(body) - len(body.rstrip()))
    return _Layout(buffer[before : key.end()], end - before, start - before)
