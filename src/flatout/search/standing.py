"""What became of a technique in a search."""

from __future__ import annotations

from enum import StrEnum


class Standing(StrEnum):
    """What became of a technique."""

    APPLIED = "applied"
    NO_GAIN = "no gain"
    REFUSED = "refused"
    """By the guard, by the agent in the program, or for recompiling without end."""
    FAILED = "failed"
    UNFIT = "unfit"
    ALREADY = "already there"
    NOT_TRIED = "not tried"
    """The budget or the person left it out."""
