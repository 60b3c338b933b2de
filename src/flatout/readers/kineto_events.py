"""The events of a Kineto trace as msgspec decodes them: few fields, each of its type, all else skipped.

Kineto writes Chrome's Trace Event Format with its own categories and arguments (pytorch/kineto,
libkineto/src/output_json.cpp). Arrows (``ph`` s, t, f) hold nothing: correlation ids say the same. An event
that does not fit these types goes through ``odd``, which takes of it what it can.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

import msgspec

from flatout.capture import NONE

_NOT_TOLD = msgspec.Raw()
_ABSOLUTE_FRACTION = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d*[1-9]')
"""A time since 1970 in microseconds with a fraction, of which a double keeps only quarters."""
_SAMPLE_BYTES = 16 << 10
_NO_TIME = Decimal("NaN")


class Args(msgspec.Struct, gc=False):
    """Of a slice."""

    device: int = NONE
    stream: int = NONE
    correlation: int = NONE
    bytes: int = NONE
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    registers: int = msgspec.field(name="registers per thread", default=NONE)
    shared: int = msgspec.field(name="shared memory", default=NONE)
    collective: str = msgspec.field(name="Collective name", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    # not "Raw | None": such a union takes null alone
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOT_TOLD)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOT_TOLD)
    stack: str = msgspec.field(name="Call stack", default="")


class MomentArgs(msgspec.Struct, gc=False):
    """Of a moment at which an allocator took or gave back memory."""

    moved: int = msgspec.field(name="Bytes", default=NONE)


class NameArgs(msgspec.Struct, gc=False):
    """Of metadata."""

    name: str = ""


NO_ARGS = Args()


class Slice(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """Begins at ``ts`` and lasts ``dur`` microseconds; NaN: not told."""

    cat: str = ""
    name: str = ""
    pid: int | str = NONE
    tid: int | str = NONE
    ts: float = math.nan
    dur: float = math.nan
    args: Args | None = None


class Begin(Slice, gc=False, tag_field="ph", tag="B"):
    """Of a slice whose end is an event of its own."""


class End(msgspec.Struct, gc=False, tag_field="ph", tag="E"):
    """Of the last slice begun on its thread."""

    pid: int | str = NONE
    tid: int | str = NONE
    ts: float = math.nan


class Moment(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """Without a duration."""

    cat: str = ""
    name: str = ""
    pid: int | str = NONE
    tid: int | str = NONE
    ts: float = math.nan
    args: MomentArgs | None = None


class OldMoment(Moment, gc=False, tag_field="ph", tag="I"):
    """As it was once called."""


class Named(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """Metadata: what a process or thread is called, among others."""

    name: str = ""
    pid: int | str = NONE
    tid: int | str = NONE
    args: NameArgs | None = None


class FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """An arrow."""


class FlowStep(msgspec.Struct, gc=False, tag_field="ph", tag="t"):
    """An arrow."""


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """An arrow."""


class Counted(msgspec.Struct, gc=False, tag_field="ph", tag="C"):
    """A counter, as a viewer draws it."""


class Unread(msgspec.Struct, gc=False):
    """Of another phase of the format (objects, asynchronous, marks), or of none that is known."""

    phase: str


class ExactSlice(Slice, gc=False, tag_field="ph", tag="X"):
    """With a time that no double holds."""

    ts: Decimal = _NO_TIME  # type: ignore[assignment]


class ExactBegin(Begin, gc=False, tag_field="ph", tag="B"):
    """The same."""

    ts: Decimal = _NO_TIME  # type: ignore[assignment]


class ExactEnd(End, gc=False, tag_field="ph", tag="E"):
    """The same."""

    ts: Decimal = _NO_TIME  # type: ignore[assignment]


class ExactMoment(Moment, gc=False, tag_field="ph", tag="i"):
    """The same."""

    ts: Decimal = _NO_TIME  # type: ignore[assignment]


_Rest = OldMoment | Named | FlowStart | FlowStep | FlowEnd | Counted
Event = Slice | Begin | End | Moment | _Rest | Unread
_EMPTY: dict[str, type[FlowStart | FlowStep | FlowEnd | Counted]] = {
    "s": FlowStart,
    "t": FlowStep,
    "f": FlowEnd,
    "C": Counted,
}


class Decoder:
    """Of the text of a list of events. Once a time is seen that no double holds, all are decoded exactly,
    which takes longer."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(list[Slice | Begin | End | Moment | _Rest]).decode
        self._exact = False

    def __call__(self, text: bytes) -> list[Any]:
        """Raises what msgspec raises of what does not fit."""
        if not self._exact and _ABSOLUTE_FRACTION.search(text, 0, _SAMPLE_BYTES):
            self._exact = True
            exact = list[ExactSlice | ExactBegin | ExactEnd | ExactMoment | _Rest]
            self._decode = msgspec.json.Decoder(exact).decode  # type: ignore[assignment]
        return self._decode(text)


def odd(text: bytes) -> Event | None:
    """An event that does not decode as its like do: what of it can be used, None where that is nothing."""
    try:
        given = json.loads(text.decode(errors="replace"), strict=False, parse_float=_parse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not isinstance(given.get("ph"), str):
        return None
    args = as_object(given.get("args"))
    place: dict[str, Any] = {"pid": _place(given.get("pid")), "tid": _place(given.get("tid"))}
    words: dict[str, Any] = {"cat": _word(given.get("cat")), "name": _word(given.get("name"))}
    ts: Any = given.get("ts")
    if not isinstance(ts, Decimal):
        ts = as_number(ts, math.nan)
    phase = given["ph"]
    if phase in {"X", "B"}:
        kind = Slice if phase == "X" else Begin
        return kind(**place, **words, ts=ts, dur=as_number(given.get("dur"), math.nan), args=_args(args))
    if phase == "E":
        return End(**place, ts=ts)
    if phase in {"i", "I"}:
        return Moment(**place, **words, ts=ts, args=MomentArgs(moved=as_integer(args.get("Bytes"), NONE)))
    if phase == "M":
        return Named(**place, name=words["name"], args=NameArgs(name=_word(args.get("name"))))
    return _EMPTY[phase]() if phase in _EMPTY else Unread(phase)


def _args(args: dict[str, Any]) -> Args:
    return Args(
        device=as_integer(args.get("device"), NONE), stream=as_integer(args.get("stream"), NONE),
        correlation=as_integer(args.get("correlation"), NONE), bytes=as_integer(args.get("bytes"), NONE),
        grid=_sizes(args.get("grid")), block=_sizes(args.get("block")),
        registers=as_integer(args.get("registers per thread"), NONE),
        shared=as_integer(args.get("shared memory"), NONE),
        collective=_word(args.get("Collective name")), group=_word(args.get("Process Group Name")),
        dims=_raw(args.get("Input Dims")), types=_raw(args.get("Input type")),
        stack=_word(args.get("Call stack")),
    )  # fmt: skip


def _parse(text: str) -> float | Decimal:
    number = float(text)
    return Decimal(text) if 1e12 < abs(number) < 1e16 else number


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _sizes(value: object) -> tuple[int, int, int] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = (as_integer(one, NONE) for one in value)
    return (x, y, z) if min(x, y, z) >= 0 else None


def _raw(value: object) -> msgspec.Raw:
    return _NOT_TOLD if value is None else msgspec.Raw(json.dumps(value, default=float).encode())


def _place(value: object) -> int | str:
    return value if isinstance(value, str) else as_integer(value, NONE)


def as_number(value: object, otherwise: float) -> float:
    """As a float; of a string what it spells. ``otherwise`` where it is none, or does not fit."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return otherwise
    try:
        return float(value)
    except (ValueError, OverflowError):
        return otherwise


def as_integer(value: object, otherwise: int) -> int:
    """As a whole number of at most 64 bits; ``otherwise`` where it is none."""
    number = as_number(value, math.nan)
    if not abs(number) < 2**63:  # NaN too
        return otherwise
    return value if isinstance(value, int) else int(number)


def as_object(value: object) -> dict[str, Any]:
    """A JSON object's keys; none of what is no object."""
    return value if isinstance(value, dict) else {}
