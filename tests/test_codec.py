"""Nouns survive the way through JSON whole."""

from __future__ import annotations

import json
import math
import random
import string
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum

import pytest

from flatout.codec import from_plain, to_plain
from flatout.host import Gpu, Host, Interpreter
from flatout.plan import Choice, Plan
from flatout.planfile import PlanFile
from flatout.report import Report
from flatout.search.options import SearchOptions
from flatout.trial import Block, Gradients, Outcome, Profile, Trial, Verdict
from flatout.workload import Discovery, Unit, Workload

NOUNS = [
    Block, Choice, Discovery, Gpu, Gradients, Host, Interpreter, Outcome, Plan, PlanFile, Profile, Report,
    SearchOptions, Trial, Unit, Verdict, Workload,
]  # fmt: skip


def made_up(kind: typing.Any, rng: random.Random, depth: int = 0) -> typing.Any:
    """Some value of a type, odd ones on purpose."""
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: made_up(hints[field.name], rng, depth + 1) for field in fields(kind)})
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return made_up(rng.choice(typing.get_args(kind)), rng, depth)
    if kind is type(None):
        return None
    if origin is tuple:
        inside = typing.get_args(kind)
        if inside[-1] is Ellipsis:
            return tuple(made_up(inside[0], rng, depth + 1) for _ in range(rng.randrange(3)))
        return tuple(made_up(one, rng, depth + 1) for one in inside)
    if origin is dict:
        inside = typing.get_args(kind)[1]
        return {made_up(str, rng): made_up(inside, rng, depth + 1) for _ in range(rng.randrange(3))}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return rng.choice(list(kind))
    if kind is float:
        return rng.choice([0.0, -0.0, 1 / 3, 5e-324, 1.7e308, math.inf, -math.inf, rng.gauss(0, 1)])
    if kind is int:
        return rng.choice([0, -1, 1 << 70, rng.randrange(1000)])
    if kind is bool:
        return rng.random() < 0.5
    if kind is str:
        return "".join(rng.choice(string.printable + "äß☃\x00") for _ in range(rng.randrange(12)))
    if kind is object or kind is typing.Any:
        flat = [None, True, 3, 0.1, math.inf, "nan", "text"]
        return rng.choice([*flat, list(flat), {"a": flat, "$float": "nan and more"}] if depth < 6 else flat)
    raise AssertionError(f"no example for {kind}")


@pytest.mark.parametrize("kind", NOUNS, ids=lambda kind: kind.__name__)
def test_every_noun_comes_back_equal(kind):
    for seed in range(40):
        value = made_up(kind, random.Random(seed))
        text = json.dumps(to_plain(value), allow_nan=False)
        assert from_plain(kind, json.loads(text)) == value


def test_nan_comes_back():
    outcome = from_plain(Outcome, json.loads(json.dumps(to_plain(
        Outcome(state="completed", losses=((0, math.nan),), active={"x": {"y": math.nan}})  # type: ignore[arg-type]
    ))))  # fmt: skip
    assert math.isnan(outcome.losses[0][1])
    assert math.isnan(outcome.active["x"]["y"])


def test_for_peoples_eyes_it_is_bare_json():
    assert to_plain({"a": math.nan, "b": (1, -math.inf)}, tagged=False) == {"a": "nan", "b": [1, "-inf"]}


@dataclass(frozen=True, kw_only=True)
class Small:
    number: int
    ratio: float = 1.0
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"number": "1"}, r"Small.number: expected a whole number, not '1'"),
        ({"number": True}, r"Small.number: expected a whole number, not True"),
        ({"number": 1, "ratio": "fast"}, r"Small.ratio: expected a number, not 'fast'"),
        ({"number": 1, "names": "bf16"}, r"Small.names: expected a list, not 'bf16'"),
        ({"number": 1, "names": [1]}, r"Small.names: expected text, not 1"),
        ({}, r"Small: .*number"),
        ([], r"expected a table for Small"),
    ],
)
def test_what_does_not_fit_is_named(data, says):
    with pytest.raises(ValueError, match=says):
        from_plain(Small, data)


def test_unknown_fields_of_a_newer_writer_are_left_out():
    assert from_plain(Small, {"number": 1, "colour": "red"}) == Small(number=1)
