"""List the techniques, or show the manual page of one.

The table says what each technique is, what it does to the numbers (exact, rounding, redraw,
approximate, recipe) and what guides claim for it. The page of one says when it pays, what it changes,
how to get it by hand, and where that is known from.
"""

from __future__ import annotations

import argparse

USAGE = "[NAME]"
TAKES_COMMAND = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a technique; without it, the table of all")


def run(arguments: argparse.Namespace) -> int:
    import shutil
    import sys

    from flatout.errors import UsageError
    from flatout.renderers.manual import render_manual, render_techniques
    from flatout.renderers.terminal import wants_colour
    from flatout.techniques import TECHNIQUES, technique_named

    if arguments.name is None:
        width = max(80, min(shutil.get_terminal_size((100, 24)).columns, 120))
        sys.stdout.write(render_techniques(TECHNIQUES, width=width))
    else:
        technique = technique_named(arguments.name, error=UsageError)
        sys.stdout.write(render_manual(technique, colour=wants_colour(sys.stdout)))
    return 0
