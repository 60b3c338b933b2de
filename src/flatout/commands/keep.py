"""Writing down what a search found: report.json, .md and .html, and plan.toml, each whole or not at all."""

from __future__ import annotations

from pathlib import Path

from flatout.ledger import Ledger
from flatout.planfile import write_plan
from flatout.report import Report, build_report, plan_file
from flatout.writing import write_whole


def keep_report(report: Report, out: Path) -> list[Path]:
    """report.json, report.md and report.html in ``out``."""
    from flatout.renderers.html import render_html
    from flatout.renderers.json import render_json
    from flatout.renderers.markdown import render_markdown

    return [
        write_whole(out / "report.json", render_json(report)),
        write_whole(out / "report.md", render_markdown(report)),
        write_whole(out / "report.html", render_html(report)),
    ]


def keep(ledger: Ledger, report: Report, out: Path) -> list[Path]:
    """Everything that a search leaves for people: the plan and the reports.

    A search that found nothing to change leaves an empty plan; one that was interrupted before it found
    anything leaves a plan of an earlier search alone.
    """
    planfile = plan_file(ledger, report.search_id)
    written = []
    if planfile is not None and (planfile.plan or report.state == "finished"):
        written.append(out / "plan.toml")
        write_plan(written[0], planfile)
    return written + keep_report(report, out)


def keep_failure(ledger: Ledger, out: Path) -> list[Path]:
    """The report of a search that has just failed, where it came far enough to have one."""
    searches = ledger.searches()
    if not searches or ledger.search(max(searches)).state != "failed":
        return []
    return keep_report(build_report(ledger, max(searches)), out)


def show(report: Report, written: list[Path]) -> None:
    """The report on standard output, and where it was written."""
    import shutil
    import sys

    from flatout.renderers.terminal import render_terminal, wants_colour

    width = shutil.get_terminal_size((100, 24)).columns
    sys.stdout.write("\n" + render_terminal(report, width=width, colour=wants_colour(sys.stdout)))
    sys.stdout.write(f"\nWritten: {', '.join(map(_short, written))}\n")
    sys.stdout.flush()


def _short(path: Path) -> str:
    """A path from the working folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
