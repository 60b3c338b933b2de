"""The conclusion of a search in plain words."""

from __future__ import annotations

from flatout.ratios import bounded
from flatout.report.nouns import CompileCost, Noise, TechniqueRow
from flatout.report.oddities import oddities
from flatout.report.record import Proved, Record
from flatout.search.prove import effect_text
from flatout.search.standing import Standing


def conclude(
    *,
    record: Record,
    state: str,
    proved: Proved,
    techniques: tuple[TechniqueRow, ...],
    noise: Noise | None,
    compile_cost: CompileCost | None,
) -> str:
    """One to four sentences: what was found, how sure, what stands in the way."""
    failure = record.last("failure")
    if failure is not None and state == "failed":
        return str(failure.data["message"])
    if record.baseline is None:
        again = " The same command goes on from here." if state in ("unfinished", "interrupted") else ""
        return f"{_opening(state)}nothing has been measured yet.".capitalize() + again
    found = _found(record, proved) if proved.plan else _nothing(record, state, techniques, noise)
    sentences = [_opening(state) + found]
    untried = any(row.standing is Standing.NOT_TRIED and "--only" not in row.reason for row in techniques)
    sentences += oddities(record, untried=untried)
    if compile_cost is not None and compile_cost.note:
        sentences.append(compile_cost.note)
    if state in ("unfinished", "interrupted"):
        sentences.append("The same command goes on from here.")
    return " ".join(sentences)


def _opening(state: str) -> str:
    return {"interrupted": "Interrupted: ", "unfinished": "Unfinished: "}.get(state, "")


def _found(record: Record, proved: Proved) -> str:
    names = " + ".join(str(choice) for choice in proved.plan.choices)
    if proved.ratio is None or proved.low is None or proved.high is None:
        return f"{names}: kept, but its gain as a whole was not measured."
    guard = proved.guard_note or "no guard result"
    last = "" if record.last("final") else " (by its steps: the whole was not proved once more)"
    whole = not any(word in guard for word in ("cannot", "could not", "not checked"))
    judged = "guard passed" if whole else "the guard cannot judge all of it"
    ratio, percent = bounded(proved.ratio, proved.low, proved.high), record.row.options.confidence
    return f"{_faster(ratio)} at {percent:.0%} confidence with {names}{last}; {judged}: {guard}."


def _faster(ratio: str) -> str:
    """``2.31x faster [2.28, 2.35]``."""
    number, _, bounds = ratio.partition(" ")
    return f"{number} faster {bounds}"


def _nothing(record: Record, state: str, techniques: tuple[TechniqueRow, ...], noise: Noise | None) -> str:
    tried = [
        row for row in techniques if row.standing in (Standing.NO_GAIN, Standing.REFUSED, Standing.FAILED)
    ]
    measured = [row for row in tried if row.standing is Standing.NO_GAIN]
    refused = [row.name for row in tried if row.standing is Standing.REFUSED]
    failed = [row.name for row in tried if row.standing is Standing.FAILED]
    already = [f"{row.name} ({row.reason})" for row in techniques if row.standing is Standing.ALREADY]
    untried = [
        row.name for row in techniques if row.standing is Standing.NOT_TRIED and "--only" not in row.reason
    ]
    matters = record.row.options.gain_that_matters
    if state in ("interrupted", "unfinished"):
        names = ", ".join(row.name for row in tried)
        return f"nothing has been proved yet{f' (decided: {names})' if names else ''}."
    parts = []
    unclear = [row.name for row in measured if row.reason.startswith("cannot tell")]
    clear = [row.name for row in measured if row.name not in unclear]
    noisy = noise is not None and noise.smallest_effect is not None and noise.smallest_effect > matters
    hidden = effect_text(noise.smallest_effect) if noise is not None and noise.smallest_effect else ""
    if unclear and not clear:
        names = ", ".join(unclear)
        parts.append(f"Nothing proved: this machine is too noisy now to tell whether {names} would help")
        if hidden:
            parts.append(f"even two unchanged runs hide gains under about {hidden}")
    elif clear:
        what = f"{clear[0]} does not make" if len(clear) == 1 else f"none of {len(clear)} techniques makes"
        parts.append(f"Nothing to change: {what} a step faster by {matters:.0%} or more")
        if noisy:
            parts.append(f"this machine's noise hides gains under about {hidden}")
        if unclear:
            parts.append(f"cannot tell: {', '.join(unclear)}")
    elif tried:
        parts.append("Nothing to change: nothing that was tried can be used here")
    elif untried:
        parts.append("Nothing proved: the budget ended before a technique could be tried")
    else:
        parts.append("Nothing to change: no technique applies here that is not there already")
    if refused:
        parts.append(f"refused: {', '.join(refused)}")
    if failed:
        parts.append(f"failed: {', '.join(failed)}")
    if already:
        parts.append(f"already there: {', '.join(already)}")
    if tried and untried:
        parts.append(f"not tried for lack of time: {', '.join(untried)}")
    return "; ".join(parts) + "."
