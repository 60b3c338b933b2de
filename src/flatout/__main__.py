"""The command line: ``flatout COMMAND``, also ``python -m flatout COMMAND``.

``main`` alone prints errors, and alone decides exit codes: those of errors.py, 1 for a fault of
flatout's own, 141 when the reader of a pipe has gone. Nothing beyond the standard library's lightest
parts is loaded before a command is known.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from flatout import __version__
from flatout.commands import SUMMARIES
from flatout.errors import DiskFull, FlatoutError, Interrupted, UsageError

if TYPE_CHECKING:
    import argparse

BROKEN_PIPE_EXIT_CODE = 141
FAULT_EXIT_CODE = 1

HELP = """\
flatout finds, proves and applies the speed that a GPU workload leaves on the table.

usage: flatout COMMAND [OPTIONS] [-- YOUR COMMAND]

{commands}

  flatout train -- python train.py --its-own args      search, with proof; touches no file of yours
  flatout run --plan .flatout/plan.toml -- python train.py --its-own args

  flatout COMMAND --help    what a command does and its options
  flatout --version         the version
  --traceback               with any command: where in flatout an error arose
"""


def help_text() -> str:
    """What ``flatout --help`` prints."""
    width = max(map(len, SUMMARIES))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in SUMMARIES.items()]
    return HELP.format(commands="\n".join(lines))


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code; every error ends here."""
    words = list(sys.argv[1:] if argv is None else argv)
    traceback_wanted = False
    try:
        while words and words[0] == "--traceback":
            traceback_wanted = True
            words.pop(0)
        name = words[0] if words else "--help"
        if name in ("--help", "-h", "help"):
            print(help_text(), end="")
            return 0
        if name in ("--version", "-V"):
            print(f"flatout {__version__}")
            return 0
        if name not in SUMMARIES:
            raise _unknown_command(name, words)
        module, arguments = _parse(name, words[1:])
        if arguments is None:
            return 0
        traceback_wanted |= arguments.traceback
        return int(module.run(arguments))
    except FlatoutError as error:
        return _show_error(error, traceback_wanted)
    except KeyboardInterrupt:
        return _show_error(Interrupted("stopped by Ctrl-C"), traceback_wanted)
    except BrokenPipeError:
        # What is still buffered would raise once more when the interpreter flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_EXIT_CODE
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _show_error(_disk_full(error), traceback_wanted)
        return _show_fault(error, words, traceback_wanted)
    except Exception as fault:
        return _show_fault(fault, words, traceback_wanted)


def _parse(name: str, words: list[str]) -> tuple[Any, argparse.Namespace | None]:
    """Load a command and read its words: its module, and what it was told (None: its help was shown)."""
    import argparse

    from flatout.commands import arguments

    module = importlib.import_module(f"flatout.commands.{name}")
    parser = arguments.Parser(
        prog=f"flatout {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=f"flatout {name} {module.USAGE}",
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    parser.add_argument("--traceback", action="store_true", help="show where in flatout an error arose")
    command: list[str] = []
    if module.TAKES_COMMAND:
        words, command = arguments.split(words, parser)
    try:
        parsed, unknown = parser.parse_known_args(words)
    except SystemExit:  # --help, which argparse ends by leaving
        return module, None
    for word in unknown:
        if word.startswith("-"):
            raise arguments.unknown_option(
                word.partition("=")[0], parser, takes_command=module.TAKES_COMMAND
            )
        raise UsageError(
            f"{parser.prog} does not know what to do with {word!r}", hint=f"See `{parser.prog} --help`."
        )
    parsed.command = tuple(command)
    return module, parsed


def _unknown_command(name: str, words: list[str]) -> UsageError:
    if name.startswith("-"):
        return UsageError(f"flatout has no option {name}", hint="`flatout --help` lists what there is.")
    from flatout.words import nearest

    meant = nearest(name, list(SUMMARIES))
    if meant:
        hint = f"Did you mean `flatout {meant}`?"
    else:
        hint = (
            f"To speed a command up: `flatout train -- {' '.join(words)}`. `flatout --help` lists the rest."
        )
    return UsageError(f"flatout has no command {name!r}", hint=hint)


def _disk_full(error: OSError) -> DiskFull:
    where = f" while writing {error.filename}" if error.filename else ""
    return DiskFull(
        f"no space left{where}",
        hint="free some space, or give --out a folder on another disk; then start again: it goes on from "
        "what was measured.",
    )


def _show_error(error: FlatoutError, traceback_wanted: bool) -> int:
    """Print an error for a person: the program's own words, what happened, what to do."""
    from flatout.renderers.errors import render_error

    if traceback_wanted:
        import traceback

        traceback.print_exception(error)
    print(render_error(error), file=sys.stderr, end="")
    return error.exit_code


def _show_fault(fault: Exception, words: list[str], traceback_wanted: bool) -> int:
    """Say that flatout itself is at fault, and where the full text was saved."""
    from flatout.renderers.errors import render_fault, save_fault

    if traceback_wanted:
        import traceback

        traceback.print_exception(fault)
    own = words[: words.index("--")] if "--" in words else words[:1]
    print(render_fault(fault, save_fault(fault, own)), file=sys.stderr, end="")
    return FAULT_EXIT_CODE


if __name__ == "__main__":
    sys.exit(main())
