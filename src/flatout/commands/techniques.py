"""List the techniques, or show the manual page of one.

The table says what each technique is, what it does to the numbers (exact, rounding, redraw,
approximate, recipe) and what guides claim for it. The page of one says when it pays, what it changes,
how to get it by hand, and where that is known from.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatout.technique import Technique

USAGE = "[NAME]"
TAKES_COMMAND = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a technique; without it, the table of all")


def run(arguments: argparse.Namespace) -> int:
    import shutil
    import sys

    from flatout.renderers.manual import render_manual, render_techniques
    from flatout.renderers.terminal import wants_colour
    from flatout.techniques import TECHNIQUES

    if arguments.name is None:
        width = max(80, min(shutil.get_terminal_size((100, 24)).columns, 120))
        sys.stdout.write(render_techniques(TECHNIQUES, width=width))
    else:
        (technique,) = named(TECHNIQUES, (arguments.name,))
        sys.stdout.write(render_manual(technique, colour=wants_colour(sys.stdout)))
    return 0


def named(techniques: Sequence[Technique], names: Sequence[str]) -> list[Technique]:
    """The techniques of these names. Raises UsageError for one that there is not, with the nearest."""
    from flatout.commands.arguments import nearest
    from flatout.errors import UsageError

    known = {technique.name: technique for technique in techniques}
    for name in names:
        if name not in known:
            meant = nearest(name.lower().replace("-", "_"), list(known))
            hint = f"Did you mean {meant}? " if meant else ""
            raise UsageError(
                f"there is no technique {name!r}",
                hint=f"{hint}The techniques are: {', '.join(known)} (`flatout techniques`).",
            )
    return [known[name] for name in names]
