"""The commands, one a file; a file is loaded only when its command is typed.

Each module has a docstring (its help; the first line is the summary below), ``add_arguments(parser)``,
``run(arguments) -> int`` and ``TAKES_COMMAND``: whether a command of the user's follows its options.
"""

from __future__ import annotations

SUMMARIES = {
    "train": "Find, prove and write down what makes a training command faster.",
    "run": "Run the real job under a proved plan.",
    "report": "Show what a search found.",
    "doctor": "Say what this machine offers, what is missing and how to get it.",
    "techniques": "List the techniques, or show the manual page of one.",
}
"""Command -> the first line of its docstring, here so that ``flatout --help`` loads none of them."""
