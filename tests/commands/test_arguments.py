"""Which words are flatout's and which are the user's."""

from __future__ import annotations

import argparse

import pytest

from flatout.commands.arguments import Parser, duration_seconds, leaves, names, options_of, seed, split
from flatout.errors import UsageError


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="flatout train", allow_abbrev=False)
    parser.add_argument("--budget", type=duration_seconds)
    parser.add_argument("--fresh", action="store_true")
    return parser


@pytest.mark.parametrize(
    ("words", "own", "command"),
    [
        ("--budget 10m -- python x.py --budget 3", "--budget 10m", "python x.py --budget 3"),
        ("--budget 10m python x.py --budget 3", "--budget 10m", "python x.py --budget 3"),
        ("--fresh python x.py", "--fresh", "python x.py"),
        ("--budget=10m --fresh ./run.sh -- x", "--budget=10m --fresh", "./run.sh -- x"),
        ("-- --weird-program", "", "--weird-program"),
        ("python x.py", "", "python x.py"),
        ("--fresh", "--fresh", ""),
        ("", "", ""),
    ],
)
def test_split(parser: Parser, words: str, own: str, command: str) -> None:
    assert split(words.split(), parser) == (own.split(), command.split())


def test_an_option_of_nobody_is_refused(parser: Parser) -> None:
    with pytest.raises(UsageError, match="no option --frsh") as caught:
        split(["--frsh", "python"], parser)
    assert "--fresh" in caught.value.hint


def test_a_missing_value_is_refused(parser: Parser) -> None:
    own, _ = split(["--budget", "--", "python"], parser)
    with pytest.raises(UsageError, match="--budget"):
        parser.parse_args(own)


def test_options_of(parser: Parser) -> None:
    assert options_of(parser) == {"-h": False, "--help": False, "--budget": True, "--fresh": False}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("1.5m", 90), ("45", 45), (" 2M ", 120)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "10x", "-5m", "5m3", "1d", "0", "3s", "nan", "inf", "1e9"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"no length of time|at least"):
        duration_seconds(text)


def test_names() -> None:
    assert names(" bf16, compile,") == ("bf16", "compile")
    with pytest.raises(argparse.ArgumentTypeError):
        names(" , ")


def test_leaves() -> None:
    assert leaves("recipe:batch , recipe:rate") == ("batch", "rate")
    for wrong in ("batch", "recipe:", "effect:batch", "recipe:batch,rate"):
        with pytest.raises(argparse.ArgumentTypeError, match="write recipe:NAME"):
            leaves(wrong)


def test_seeds() -> None:
    assert [seed("0"), seed(" 7 "), seed("4294967295")] == [0, 7, 4294967295]
    for word in ("-1", "4294967296", "9" * 10_000, "1.5", "", "x"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no seed"):
            seed(word)
