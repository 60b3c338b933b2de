"""Show what a search found.

DIR is the folder of a search (default: .flatout), or its ledger.sqlite. The report is made again from
the ledger, so it can be shown on another machine and after an unfinished search too. --write puts
report.json, report.md and report.html beside the ledger again, the same to the byte as the search wrote
them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flatout.errors import UsageError

USAGE = "[DIR] [--format terminal|json|markdown|html] [--search N] [--write]"
TAKES_COMMAND = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", nargs="?", type=Path, default=Path(".flatout"), help="default: .flatout")
    parser.add_argument(
        "--format",
        choices=("terminal", "json", "markdown", "html"),
        default="terminal",
        help="default: terminal",
    )
    parser.add_argument(
        "--search",
        type=int,
        metavar="N",
        help="number of the search, where a ledger holds several (default: last)",
    )
    parser.add_argument(
        "--write", action="store_true", help="write report.json, .md and .html beside the ledger again"
    )


def run(arguments: argparse.Namespace) -> int:
    import shutil
    import sys

    from flatout.ledger import Ledger
    from flatout.report import build_report

    path = find_ledger(arguments.dir)
    with Ledger(path, writable=False) as ledger:
        search = choose_search(ledger.searches(), arguments.search, arguments.dir)
        report = build_report(ledger, search)
    if arguments.write:
        from flatout.commands.keep import keep_report

        for written in keep_report(report, path.parent):
            print(f"flatout: wrote {written}", file=sys.stderr)
    if arguments.format == "json":
        from flatout.renderers.json import render_json

        text = render_json(report)
    elif arguments.format == "markdown":
        from flatout.renderers.markdown import render_markdown

        text = render_markdown(report)
    elif arguments.format == "html":
        from flatout.renderers.html import render_html

        text = render_html(report)
    else:
        from flatout.renderers.terminal import render_terminal, wants_colour

        width = shutil.get_terminal_size((100, 24)).columns
        text = render_terminal(report, width=width, colour=wants_colour(sys.stdout))
    sys.stdout.write(text)
    return 0


def find_ledger(path: Path) -> Path:
    """The ledger of a folder or the file itself. Raises UsageError where there is none."""
    ledger = path / "ledger.sqlite" if path.is_dir() else path
    if ledger.is_file():
        return ledger
    raise UsageError(
        f"no search was found in {path}: {ledger} is not there",
        hint="Name the folder that `flatout train` wrote to: `flatout report DIR`.",
    )


def choose_search(searches: list[int], wanted: int | None, path: Path) -> int:
    """The search to show: the wanted one, else the last. Raises UsageError where it is not there."""
    if not searches:
        raise UsageError(
            f"the ledger of {path} holds no search yet", hint="Start one with `flatout train`."
        )
    if wanted is None:
        return max(searches)
    if wanted not in searches:
        held = ", ".join(map(str, searches))
        raise UsageError(f"the ledger of {path} holds no search {wanted}", hint=f"It holds: {held}.")
    return wanted
