"""Nouns to plain JSON data and back, for the ledger and report.json.

Works for any frozen dataclass whose fields are themselves dataclasses, enums, str, int, float, bool,
None, tuple, dict with text keys, ``object`` (plain data) or a union of those. Floats come back equal to
the bit; the three that JSON has no word for are written as ``"nan"``, ``"inf"`` and ``"-inf"`` where
the field is a float, and as ``{"$float": "nan"}`` inside plain data, where text could be meant.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_plain(value: Any, *, tagged: bool = True) -> Any:
    """``value`` as dicts, lists, text, numbers, bools and None.

    ``tagged`` False writes floats that JSON cannot hold as bare words everywhere: for people's eyes
    (report.json); such data is not meant to be read back.
    """
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name), tagged=tagged)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {str(key): to_plain(item, tagged=tagged) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, tagged=tagged) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        word = "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
        return {"$float": word} if tagged else word
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def from_plain(kind: Any, data: Any) -> Any:
    """The inverse of :func:`to_plain` for a type. Unknown fields are left out (a newer writer), missing
    ones take their default; ValueError where data does not fit the type."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(kind, data)
    if origin is tuple:
        return _tuple(kind, data)
    if origin in (dict, Mapping):
        if not isinstance(data, dict):
            raise ValueError(f"expected a table, not {data!r}")
        inside = typing.get_args(kind)[1]
        return {key: from_plain(inside, item) for key, item in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    return _scalar(kind, data)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _dataclass(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"expected a table for {kind.__name__}, not {data!r}")
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name not in data:
            if _required(field) and type(None) in typing.get_args(hints[field.name]):
                values[field.name] = None  # TOML leaves out what is None
            continue
        try:
            values[field.name] = from_plain(hints[field.name], data[field.name])
        except ValueError as error:
            raise ValueError(f"{kind.__name__}.{field.name}: {error}") from error
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _union(kind: Any, data: Any) -> Any:
    members = typing.get_args(kind)
    if data is None and type(None) in members:
        return None
    first: ValueError | None = None
    for member in members:
        if member is type(None):
            continue
        try:
            return from_plain(member, data)
        except ValueError as error:
            first = first or error
    raise first or ValueError(f"nothing fits {data!r}")


def _tuple(kind: Any, data: Any) -> Any:
    if not isinstance(data, (list, tuple)):
        raise ValueError(f"expected a list, not {data!r}")
    inside = typing.get_args(kind)
    if len(inside) == 2 and inside[1] is Ellipsis:
        return tuple(from_plain(inside[0], item) for item in data)
    if len(inside) != len(data):
        raise ValueError(f"expected {len(inside)} values, not {len(data)}")
    return tuple(from_plain(one, item) for one, item in zip(inside, data, strict=True))


def _scalar(kind: Any, data: Any) -> Any:
    if kind is float:
        if isinstance(data, dict) and set(data) == {"$float"} and data["$float"] in _WORDS:
            return _WORDS[data["$float"]]
        if isinstance(data, str) and data in _WORDS:
            return _WORDS[data]
        if isinstance(data, bool) or not isinstance(data, (int, float)):
            raise ValueError(f"expected a number, not {data!r}")
        return float(data)
    if kind is int:
        if isinstance(data, bool) or not isinstance(data, int):
            raise ValueError(f"expected a whole number, not {data!r}")
        return data
    if kind in (str, bool):
        if not isinstance(data, kind):
            raise ValueError(f"expected {'text' if kind is str else 'true or false'}, not {data!r}")
        return data
    return _untag(data)


def _untag(data: Any) -> Any:
    if isinstance(data, dict):
        if set(data) == {"$float"} and data["$float"] in _WORDS:
            return _WORDS[data["$float"]]
        return {key: _untag(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_untag(item) for item in data]
    return data
