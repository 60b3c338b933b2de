"""Reading a command line: which words are ours and which are the user's command.

Our options end at ``--`` or at the first word that is not an option of ours; from there on every word
is the user's, whatever it looks like::

    flatout train --budget 10m -- python train.py --budget 3
    flatout train --budget 10m python train.py --budget 3       (the same)
"""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from flatout.errors import UsageError
from flatout.words import nearest

_UNITS_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smh])+|\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smh])")
SHORTEST_BUDGET_SECONDS = 10.0
LARGEST_SEED = 2**32 - 1
"""numpy's; torch takes larger ones."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises UsageError instead of printing and leaving."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"`{self.prog} --help` lists the options.")


def options_of(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """Every option string of a parser -> whether a value follows it."""
    # argparse offers no public list of a parser's options; _actions has been stable since 2.7.
    return {
        option: action.nargs != 0
        for action in parser._actions
        for option in action.option_strings
    }  # fmt: skip


def split(words: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Divide ``words`` into ours and the user's command.

    Raises UsageError for an option before the command that is none of ours.
    """
    options = options_of(parser)
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            return words[:position], words[position + 1 :]
        if not word.startswith("-") or word == "-":
            return words[:position], words[position:]
        name, equals, _ = word.partition("=")
        if name not in options:
            raise unknown_option(name, parser, takes_command=True)
        position += 2 if options[name] and not equals else 1
    return words, []


def unknown_option(name: str, parser: argparse.ArgumentParser, *, takes_command: bool) -> UsageError:
    """The error for an option that the parser does not have, with the one that was probably meant."""
    meant = nearest(name, list(options_of(parser)))
    hint = f"Did you mean {meant}? " if meant else ""
    if takes_command:
        hint += f"Options of your own program go after its name: `{parser.prog} -- python train.py {name}`."
    else:
        hint += f"`{parser.prog} --help` lists the options."
    return UsageError(f"{parser.prog} has no option {name}", hint=hint)


def duration_seconds(text: str) -> float:
    """Seconds of ``90s``, ``10m``, ``1h``, ``1h30m``, or of a bare number of seconds.

    Raises argparse.ArgumentTypeError, which argparse turns into a usage error that names the option.
    """
    word = text.strip().lower()
    if not _DURATION.fullmatch(word):
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time; write 90s, 10m, 1h or 1h30m")
    parts = _PART.findall(word)
    seconds = sum(float(number) * _UNITS_SECONDS[unit] for number, unit in parts) if parts else float(word)
    if seconds < SHORTEST_BUDGET_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is {seconds:g} seconds; a search needs at least {SHORTEST_BUDGET_SECONDS:g}s"
        )
    return seconds


def leaves(text: str) -> tuple[str, ...]:
    """The names in ``recipe:a,recipe:b``; validated later, where the catalogue is loaded."""
    found = []
    for part in names(text):
        kind, colon, name = part.partition(":")
        if kind != "recipe" or not colon or not name:
            raise argparse.ArgumentTypeError(
                f"{part!r}: write recipe:NAME; only techniques that change the recipe need leave"
            )
        found.append(name)
    return tuple(found)


def count(text: str) -> int:
    """A whole number from 1 on. Raises argparse.ArgumentTypeError as above."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seeds; write 3")
    return int(text)


def seed(text: str) -> int:
    """What Python, numpy and torch all take as a seed. Raises argparse.ArgumentTypeError as above."""
    word = text.strip()
    if not word.isdecimal() or len(word) > len(str(LARGEST_SEED)) or int(word) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed; write a number from 0 to {LARGEST_SEED}")
    return int(word)


def names(text: str) -> tuple[str, ...]:
    """The names in ``a,b , c``; validated later, where the catalogue is loaded."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise argparse.ArgumentTypeError("needs at least one name, such as bf16,compile")
    return found
