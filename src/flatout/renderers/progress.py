"""How a search is going: as lines of a frame that is redrawn, or as plain lines one after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.host import Host, Interpreter
from flatout.ledger import redact_command
from flatout.ratios import times
from flatout.renderers.text import duration, plain
from flatout.search.options import SearchOptions
from flatout.search.progress import Phase, Progress
from flatout.words import command_line
from flatout.workload import Workload

PHASES = {
    Phase.BASELINE: "measuring the program as it is",
    Phase.NOISE: "measuring it again, to see this machine's noise",
    Phase.SCREENING: "trying each technique alone",
    Phase.CLIMBING: "putting techniques together",
    Phase.PROVING: "proving the plan against the program as it is",
    Phase.SHARES: "measuring each technique's share of the plan",
    Phase.QUALITY: "training several seeds to equal loss",
    Phase.DONE: "done",
}
MILESTONES_SHOWN = 12


def announcement(
    workload: Workload,
    *,
    host: Host,
    interpreter: Interpreter,
    options: SearchOptions,
    isolation: str,
    out: Path,
) -> str:
    """What is about to be done, before the first process is started."""
    where = host.gpu_label if host.gpus else f"{host.cpu}, {host.cpu_count} processors, no GPU"
    lines = [
        f"searching for at most {duration(options.budget_seconds)} for what makes this faster:",
        f"  {plain(command_line(redact_command(workload.command)))}",
        f"  on {plain(where)}; torch {interpreter.torch_version}, Python {interpreter.version}"
        f" ({plain(interpreter.executable)})",
        f"  your files are safe: {plain(isolation)}",
        f"  what is found is written to {plain(str(out))}",
    ]
    return "\n".join(lines)


def best_text(progress: Progress) -> str:
    """``1.43x with sdpa+compile (34.9 ms -> 24.4 ms a step)``, or that there is nothing yet."""
    baseline = progress.baseline_step_seconds
    if not progress.best or progress.best_ratio is None:
        return "the program as it is" + (f", {duration(baseline)} a step" if baseline else "")
    text = f"{times(progress.best_ratio)} with {plain(progress.best.key)}"
    if baseline:
        text += f" ({duration(baseline)} -> {duration(baseline / progress.best_ratio)} a step)"
    return text


def progress_line(progress: Progress, *, with_best: bool = False) -> str:
    """One plain line: minutes and seconds, what was done or learnt, the best so far where asked."""
    minutes, seconds = divmod(round(progress.elapsed_seconds), 60)
    line = f"[{minutes:3}:{seconds:02}] {plain(progress.text)}"
    return f"{line}   (best so far: {best_text(progress)})" if with_best and progress.best else line


def frame(
    progress: Progress, milestones: Sequence[str], *, since_seconds: float = 0.0, width: int = 100
) -> list[str]:
    """The lines of a live view, each cut to ``width``. ``since_seconds``: since ``progress`` was told."""
    left = max(0.0, progress.left_seconds - since_seconds)
    decided = f"{progress.done} of {progress.total} decided" if progress.total else "not yet known"
    facts = (
        ("now", f"{PHASES[progress.phase]}: {plain(progress.text)}"),
        ("best so far", best_text(progress)),
        ("techniques", decided),
        (
            "time left",
            f"{duration(round(left)) if left >= 1 else 'none'} of {duration(progress.budget_seconds)}",
        ),
    )
    lines = [f"  {line}" for line in milestones[-MILESTONES_SHOWN:]]
    lines += [*([""] if lines else []), *(f"  {name:<12} {text}" for name, text in facts)]
    lines.append("  Ctrl-C keeps the best so far")
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
