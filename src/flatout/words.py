"""Words: a command as one line that a shell takes back, and the word that was meant."""

from __future__ import annotations

import difflib
import os
import shlex
import unicodedata
from collections.abc import Sequence


def command_line(words: Sequence[str]) -> str:
    """``words`` on one line, to be pasted into bash or zsh.

    A word with a newline or another character that a terminal acts on (``python -c '...'``) becomes
    ``$'...'`` with escapes in it.
    """
    return " ".join(map(_word, words))


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that a person most likely meant, or None."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return found[0] if found else None


def _word(word: str) -> str:
    if not any(map(_unprintable, word)):
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _unprintable(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character == "\n":
        return "\\n"
    if not _unprintable(character):
        return character
    # three digits are the most that an escape in octal takes, so what follows cannot belong to it
    try:
        encoded = os.fsencode(character)  # a byte that was not UTF-8 is a lone surrogate here
    except UnicodeEncodeError:
        encoded = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\{byte:03o}" for byte in encoded)
