"""How an act says that it cannot act in this program."""

from __future__ import annotations


class Refused(Exception):
    """A technique cannot act here; ``str`` of it is the reason, with the value seen, for a person to read.

    The agent writes a ``refused`` event. A trial then ends; a real run ends before its first step,
    unless it was started with ``--degrade``.
    """
