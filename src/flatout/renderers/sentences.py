"""Sentences about a report that more than one renderer says."""

from __future__ import annotations

from collections.abc import Callable

from flatout.quality import Quality
from flatout.ratios import bounded, times
from flatout.renderers.text import duration, plain, size
from flatout.report import Limit, Noise, Remains, Report, Spent, Standing, TechniqueRow
from flatout.search.limits import CAUSES
from flatout.trial import GuardReport, State

Words = Callable[[str], str]
"""How a renderer writes a word or a name."""

LEFT_OUT_ORDER = (
    Standing.REFUSED,
    Standing.FAILED,
    Standing.NO_GAIN,
    Standing.UNFIT,
    Standing.NOT_TRIED,
)
"""Standings of techniques that are not in the plan, most worth reading first."""

UNLIKE_STEPS = 1.25
"""By how much the untouched step may differ between its profile and the proof without a word."""

LEFT = {
    "floor": ("the roofline floor of its operators", "fewer bits, or operators that move less"),
    "compute": (
        "products and convolutions above their floor",
        "sizes that fill the device, larger batches",
    ),
    "attention": ("attention above its floor", "a fused attention"),
    "memory": ("memory traffic above its floor", "fusing operators, contiguous layouts"),
    "optimizer": ("the optimiser's kernels above their floor", "a fused optimiser"),
    "untold": ("work whose floor its shapes do not tell", ""),
    "copies": ("copies between host and device", "pinned memory, copies that nothing waits for"),
    "communication": ("communication between ranks", "overlapping it with the backward"),
    "launches": ("dispatching and launching", "fusing operators, larger batches"),
    "loader": ("waiting for data", "more loader workers, cheaper preparation"),
    "sync": ("waiting for the device, then launching anew", "reading losses and values less often"),
    "optimizer_gap": ("the host inside the optimiser's step", "a fused optimiser"),
    "host": ("the host's own work", "less Python between operators"),
    "compiling": ("compiling, still", "shapes that stay the same"),
    "unknown": ("unknown", ""),
}
"""Cause of a part of what is left -> (in words, what a person could do about it)."""
LEAST_SHARE_SHOWN = 0.005

ISOLATION = {
    "overlay": "an overlay in a mount namespace: every write of the trials was thrown away",
    "landlock": "a copy of the working folder, writes elsewhere forbidden by Landlock",
    "redirect": "Python's writers redirected; writes of native code and of child processes are not caught",
}


def interval(ratio: float | None, low: float | None, high: float | None) -> str:
    """``1.43x [1.41, 1.45]``, or what is known of it."""
    if ratio is None:
        return "not measured"
    if low is None or high is None:
        return times(ratio)
    return bounded(ratio, low, high)


def step_line(report: Report) -> str:
    """``34.9 ms -> 15.1 ms a step: 2.31x [2.28, 2.35], 99 % sure``."""
    before, after = report.baseline_step_seconds, report.plan_step_seconds
    if before is None:
        return "no step was measured"
    if not report.plan or after is None:
        return f"{duration(before)} a step, as it is"
    gained = interval(report.ratio, report.low, report.high)
    sure = f"{100 * report.confidence:.3g} % sure"
    return f"{duration(before)} -> {duration(after)} a step: {gained}, {sure}"


def applied(report: Report) -> list[TechniqueRow]:
    """The plan's techniques in the order in which they are applied."""
    order = {name: place for place, name in enumerate(report.plan.names)}
    rows = [row for row in report.techniques if row.standing is Standing.APPLIED]
    return sorted(rows, key=lambda row: order.get(row.name, len(order)))


def left_out(report: Report) -> list[TechniqueRow]:
    """What is not in the plan and was not there already, most worth reading first."""
    rows = [row for row in report.techniques if row.standing in LEFT_OUT_ORDER]
    return sorted(rows, key=lambda row: LEFT_OUT_ORDER.index(row.standing))


def measured(row: TechniqueRow) -> str:
    """The best number that there is for a technique, saying which kind it is."""
    if row.ratio is not None:
        return interval(row.ratio, row.low, row.high)
    if row.screened is not None:
        return f"{times(row.screened)} alone (screened)"
    return ""


def limit_line(limit: Limit) -> str:
    """``attention: 12.1 ms a step (35 %)``."""
    words = CAUSES.get(limit.cause, plain(limit.cause))
    share = f" ({100 * limit.share:.0f} %)" if limit.share else ""
    return f"{words}: {duration(limit.seconds_per_step)} a step{share}"


def limits_note(report: Report) -> str:
    """Said where the step that was profiled is not as long as that of the proof; else empty."""
    before = report.baseline_step_seconds
    first = next((limit for limit in report.limits if limit.share), None)
    if first is None or not before:
        return ""
    profiled = first.seconds_per_step / first.share
    if max(profiled, before) < UNLIKE_STEPS * min(profiled, before):
        return ""
    return (
        f"reckoned while a step took {duration(profiled)}, not {duration(before)} as in the proof: "
        "the shares tell more than the times"
    )


def left_title(report: Report) -> str:
    """Whose step is divided."""
    return "What is left of the plan's step" if report.plan else "What a step of the program is made of"


def left_parts(left: Remains) -> list[tuple[str, str, str]]:
    """(time, share, what it is, with its evidence and what would attack it), as many as matter."""
    rows = []
    for part in left.parts:
        if part.share < LEAST_SHARE_SHOWN:
            continue
        words, remedy = LEFT.get(part.cause, (plain(part.cause), ""))
        text = words + (f": {plain(part.evidence)}" if part.evidence else "")
        attack = ", ".join(part.techniques) or remedy
        if attack:
            text += f" [{attack}]"
        rows.append((duration(part.seconds), f"{100 * part.share:.0f} %", text))
    return rows


ABOVE_HEAD = ("operator", "calls", "takes", "floor", "floor is", "dearest kernel")


def above_rows(left: Remains, *, code: Words, text: Words) -> list[tuple[str, ...]]:
    """What takes longest beyond its floor, under ``ABOVE_HEAD``. ``code`` and ``text``: how the renderer
    writes names and words."""
    return [
        (
            code(row.operator or "many small ones"),
            str(row.calls),
            duration(row.seconds),
            duration(row.floor_seconds),
            text(row.bound),
            code(row.kernel) if row.kernel else "-",
        )
        for row in left.above
    ]


def quality_rows(quality: Quality) -> list[tuple[str, ...]]:
    """One seed a row: its loss level of the program and of the plan, and the steps to it."""
    return [
        (
            str(result.seed),
            f"{result.level:.6g}",
            f"{result.plan_level:.6g}",
            str(result.baseline_steps or "-"),
            str(result.plan_steps or "not reached"),
        )
        for result in quality.seeds
    ]


def left_notes(left: Remains) -> list[str]:
    """What the parts rest on."""
    notes = []
    if left.reason:
        notes.append(plain(left.reason))
    if left.peaks:
        rates = [
            f"{rate / 1e12:.3g} TFLOP/s {name}" for name, rate in left.peaks.items() if name != "bytes"
        ]
        bandwidth = f"{left.peaks.get('bytes', 0.0) / 1e9:,.0f} GB/s"
        notes.append(f"floor by {plain(left.peaks_from)}: {', '.join(rates)}, {bandwidth}")
    if left.parts:
        notes.append(
            "reckoned from one profiled step and fitted to the measured one: it shows where time goes, and "
            "proves no gain"
        )
    return notes


def how_sure_lines(report: Report) -> list[str]:
    """What the conclusion rests on."""
    lines = noise_lines(report.noise) if report.noise is not None else []
    if report.smallest_effect is not None:
        lines.append(smallest_line(report.smallest_effect))
    if report.guard_note:
        lines.append(f"still right: {plain(report.guard_note)}")
    if report.guard is not None:
        lines += guard_lines(report.guard, report.guard_note)
    lines += compile_lines(report)
    spent = spent_line(report.spent) if report.spent is not None else ""
    return [*lines, spent] if spent else lines


def comparison_rows(report: Report) -> list[tuple[str, str, str, str, str]]:
    """(key, ratio with its interval, turns and processes, smallest effect, how it ended) of each."""
    rows = []
    for verdict in report.verdicts:
        counted = f"{verdict.pairs} turns"
        if verdict.process_pairs:
            pairs = len(verdict.process_pairs)
            counted += f", {pairs} pair{'s' * (pairs != 1)}"
        if verdict.left_out:
            counted += f", {len(verdict.left_out)} left out"
        smallest = "-" if verdict.smallest_effect is None else percent(verdict.smallest_effect)
        ended = verdict.call.value
        if verdict.guard:
            ended = "refused by the guard"
        ratio = interval(verdict.ratio, verdict.low, verdict.high)
        rows.append((plain(verdict.key), ratio, counted, smallest, ended))
    return rows


def guard_lines(guard: GuardReport, note: str = "") -> list[str]:
    """What the guard's own trials saw, in short, and what ``note`` does not say already."""
    steps: dict[str, list[str]] = {}
    for point in guard.points:
        if point.equal:
            agree = "equal to the bit"
        elif point.overall_db is None:
            agree = "not compared"
        else:
            beside = [
                f"the program itself {point.baseline_db:.0f}" if point.baseline_db is not None else "",
                f"needed {point.needed_db:.0f}" if point.needed_db is not None else "",
            ]
            more = ", ".join(part for part in beside if part)
            agree = f"{point.overall_db:.0f} dB" + (f" ({more})" if more else "")
        text = f"{point.compared} parameters, against {plain(point.against)}: {agree}"
        steps.setdefault(text, []).append(str(point.step))
    lines = [
        f"gradients of step{'s' * (len(found) > 1)} {', '.join(found)}, {text}"
        for text, found in steps.items()
    ]
    rest = (guard.control, guard.updates, guard.invariants, guard.dropout)
    lines += [plain(one) for one in rest if one and one not in note]
    return lines + [f"not checked: {plain(one)}" for one in guard.unchecked if one not in note]


def spent_line(spent: Spent) -> str:
    """Where the search's time went."""
    parts = [
        (spent.starts, "starting processes"),
        (spent.measuring, "measuring in turns"),
        (spent.guard, "the guard"),
        (spent.quality, "training to equal loss"),
        (spent.rest, "warming up and the rest"),
    ]
    told = [f"{duration(seconds)} {what}" for seconds, what in parts if seconds >= 0.05]
    return f"the search's time: {', '.join(told)}" if told else ""


def percent(effect: float) -> str:
    """``1.4 %``; from a doubling on ``2.5x``, and ``100x or more``."""
    if effect >= 99.0:
        return "100x or more"
    return f"{100 * effect:.2g} %" if effect < 0.995 else f"{1.0 + effect:.1f}x"


def quality_lines(quality: Quality) -> list[str]:
    """The verdict over seeds, and what it took each to come to equal loss."""
    seeds = len(quality.seeds)
    lines = [
        f"{quality.call.value} over {seeds} seed{'s' * (seeds != 1)} of {quality.steps:,} steps "
        f"({quality.confidence:.0%} sure, losses smoothed over {quality.smoothed}): {plain(quality.reason)}"
    ]
    for name, ratio in (("steps", quality.steps_ratio), ("time (starts left out)", quality.time_ratio)):
        if ratio is not None:
            shown = interval(ratio.value, ratio.low, ratio.high)
            lines.append(f"{name} to the same loss, the program's over the plan's: {shown}")
    late = [result.seed for result in quality.seeds if result.plan_steps is None]
    if late:
        lines.append(
            f"with seed {', '.join(map(str, late))} the plan did not come to the level in its steps"
        )
    return lines


def noise_lines(noise: Noise) -> list[str]:
    """What two unchanged runs say about this machine."""
    lines = []
    if noise.ratio is not None:
        lines.append(
            f"two unchanged processes: {interval(noise.ratio, noise.low, noise.high)} of each other"
            + (
                f", spread inside one {100 * noise.block_spread:.2g} %"
                if noise.block_spread is not None
                else ""
            )
        )
    if noise.losses_equal is not None:
        lines.append(f"their losses {'are equal to the bit' if noise.losses_equal else 'differ'}")
    if noise.note:
        lines.append(plain(noise.note))
    return lines


def smallest_line(effect: float) -> str:
    """What noise hides; from a doubling on as a factor."""
    return f"the smallest difference that this search could have shown: {percent(effect)}"


def compile_lines(report: Report) -> list[str]:
    """What compiling costs, and whether it kept compiling; none where nothing was compiled."""
    cost = report.compile
    if cost is None:
        return []
    lines = []
    if cost.refused:
        lines.append(f"compile was refused: {plain(cost.refused)}")
    counted = "" if "compile" in report.plan.names else "compile, as it was tried or the program's own: "
    counted += f"{cost.recompiles} recompile{'s' * (cost.recompiles != 1)}"
    counted += f" and {cost.graph_breaks} graph break{'s' * (cost.graph_breaks != 1)} counted"
    if cost.seconds is not None:
        counted += f"; compiling took {duration(cost.seconds)} at the start"
        if cost.cached_seconds is not None:
            counted += f" ({duration(cost.cached_seconds)} from its cache)"
        if cost.break_even_steps is not None:
            counted += f", earned back after {cost.break_even_steps:,} steps"
    lines.append(counted)
    if cost.note:
        lines.append(plain(cost.note))
    return lines


def thrown_away_line(report: Report) -> str:
    """How much of what the trials wrote was thrown away."""
    if not report.thrown_away_count:
        return "the trials wrote nothing"
    files = f"{report.thrown_away_count:,} file{'s' * (report.thrown_away_count != 1)}"
    return f"{files}, {size(report.thrown_away_bytes)}, written by the trials and thrown away"


def machine_line(report: Report) -> str:
    """What the trials ran on."""
    host = report.host
    where = host.gpu_label if host.gpus else f"{host.cpu}, {host.cpu_count} processors, no GPU"
    torch = f"torch {report.interpreter.torch_version}" if report.interpreter.torch_version else "no torch"
    return f"{where}; {torch}, Python {report.interpreter.version}"


def search_line(report: Report) -> str:
    """How the search went."""
    failed = sum(trial.state is State.FAILED for trial in report.trials)
    text = f"{report.state}; {len(report.trials)} trials in {duration(report.elapsed_seconds)}"
    if report.budget_seconds:
        text += f" of {duration(report.budget_seconds)}"
    return text + (f"; {failed} failed" if failed else "")
