"""Find, prove and write down what makes a training command faster.

COMMAND is started as it is, many times and for a few steps each: unchanged, and with one technique or
another applied inside it. What truly makes its steps faster on this machine, and still computes the same,
becomes a plan. No file of yours is changed: what the trials write is thrown away.

The folder given by --out (default: .flatout) then holds plan.toml for `flatout run`, the report as
report.json, .md and .html, and the ledger with every measurement. A search that was killed goes on where it
was when it is started again with the same words. Ctrl-C ends it and keeps the best found so far; a second
Ctrl-C leaves at once.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flatout.commands.arguments import count, duration_seconds, leaves, names, seed

USAGE = (
    "[--fast | --thorough] [--budget 10m] [--only A,B] [--without A,B] [--allow recipe:A] [--out DIR] "
    "[--isolation WAY] [--fresh] [--seed N] [--quality N] -- COMMAND..."
)
TAKES_COMMAND = True
DEFAULT_OUT = Path(".flatout")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--fast",
        action="store_true",
        help="3 minutes, at most 16 pairs of turns a comparison, no shares, no second tries: as sure of "
        "what it claims, blind to small gains",
    )
    pace.add_argument(
        "--thorough",
        action="store_true",
        help="an hour, up to 240 pairs of turns a comparison, closer shares, more second tries",
    )
    parser.add_argument(
        "--budget",
        type=duration_seconds,
        metavar="TIME",
        help="how long to search at most: 90s, 10m, 1h (default: 10m; 3m with --fast, 1h with --thorough)",
    )
    parser.add_argument(
        "--only", type=names, default=(), metavar="A,B", help="consider these techniques and no others"
    )
    parser.add_argument(
        "--without", type=names, default=(), metavar="A,B", help="leave these techniques alone"
    )
    parser.add_argument(
        "--allow",
        type=leaves,
        default=(),
        metavar="recipe:A",
        help="let this technique change the recipe of the training, which none may without leave",
    )
    parser.add_argument(
        "--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="where to write (default: .flatout)"
    )
    parser.add_argument(
        "--isolation",
        choices=("auto", "overlay", "landlock", "redirect"),
        default="auto",
        help="how your files are kept safe (default: the strongest that works here; see `flatout doctor`)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start anew where an unfinished search could go on"
    )
    parser.add_argument(
        "--quality",
        type=count,
        default=0,
        metavar="N",
        help="at the end, train the plan and the program with N seeds each and compare steps and time to "
        "equal loss; keeps 40 %% of the budget for it (default: none)",
    )
    parser.add_argument(
        "--seed", type=seed, metavar="N", help="seed Python, numpy and torch with this in every trial"
    )


def run(arguments: argparse.Namespace) -> int:
    import sys
    from dataclasses import replace

    from flatout.commands.interrupts import stop_politely
    from flatout.commands.keep import keep, keep_failure, show
    from flatout.commands.prepare import prepare_out, workload_of
    from flatout.commands.views import view_for
    from flatout.detect import detect_host
    from flatout.errors import FlatoutError, Interrupted
    from flatout.interpreter import named_by_command
    from flatout.ledger import Ledger
    from flatout.renderers.progress import announcement
    from flatout.runners.local import LocalRunner
    from flatout.runners.seen import find_interpreter
    from flatout.search.options import FIGURES, Pace, SearchOptions
    from flatout.search.train import check_options, search
    from flatout.surroundings import Watch
    from flatout.techniques import TECHNIQUES

    workload = workload_of(arguments.command, "train")
    pace = Pace.FAST if arguments.fast else Pace.THOROUGH if arguments.thorough else Pace.NORMAL
    options = SearchOptions(
        budget_seconds=arguments.budget or FIGURES[pace].budget_seconds,
        pace=pace,
        only=arguments.only,
        without=arguments.without,
        allow=arguments.allow,
        seed=arguments.seed,
        fresh=arguments.fresh,
        isolation=arguments.isolation,
        quality=arguments.quality,
    )
    check_options(options, TECHNIQUES)
    with stop_politely():
        named_by_command(workload)  # a command that does not exist leaves no folder behind
        out = prepare_out(arguments.out)
        interpreter = find_interpreter(workload, out_dir=out, isolation=arguments.isolation)
        host = detect_host()
        with (
            Ledger(out / "ledger.sqlite") as ledger,
            LocalRunner(
                workload=workload,
                interpreter=interpreter,
                out_dir=out,
                isolation=arguments.isolation,
                has_gpu=bool(host.gpus),
            ) as runner,
        ):
            host = replace(host, isolation=runner.way.name)
            said = announcement(
                workload,
                host=host,
                interpreter=interpreter,
                options=options,
                isolation=runner.way.detail,
                out=out,
            )
            print(said, file=sys.stderr, flush=True)
            try:
                with view_for() as view:
                    report = search(
                        workload,
                        host,
                        interpreter,
                        runner,
                        ledger,
                        options,
                        view.tell,
                        watcher=Watch,
                    )
            except FlatoutError:
                keep_failure(ledger, out)
                raise
            written = keep(ledger, report, out)
    show(report, written)
    if report.state == "interrupted":
        raise Interrupted("stopped before its end; the report above is of what was measured until then")
    return 0
