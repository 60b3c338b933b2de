"""Judgement by what must not change whatever a plan does: settings, data, modes, counts, dtypes, ties.

Each fault names itself with the value seen and the untouched program's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flatout.guard.records import Told, all_of, facts, number

SAME = 1e-9
"""Relative: sums of the same values, whatever order they are added in."""
NEAR = 1e-6
NAMES = {"lr": "learning rate", "weight_decay": "weight decay"}
BUFFER_SHARE = 0.3
"""Of how far the untouched program's running statistics moved, that a plan's may lie from them."""

Print = Sequence[Any]
"""Of a tensor: shape, kind, three sums (agent/guarding/facts.py)."""


def same_print(mine: Print, other: Print, tolerance: float) -> bool:
    """The same values, as far as their sums tell."""
    if list(mine[0]) != list(other[0]) or mine[1] != other[1]:
        return False
    size = max(math.sqrt(abs(number(other[3]))), 1e-30)
    count = math.prod(other[0]) or 1
    for place, weight in ((2, math.sqrt(count)), (3, size), (4, math.sqrt(count) * min(count, 8191))):
        a, b = number(mine[place]), number(other[place])
        if a != b and not abs(a - b) <= tolerance * (size * weight + abs(b)):
            return False
    return True


def differing_data(baseline: Told, again: Told, truth: Told = ()) -> dict[int, str]:
    """Steps at which two unchanged runs are given different data, or the truth other data than the
    program (an agent's own play, say): nothing can be compared there."""
    ours, theirs = facts(baseline), facts(again)
    found = {}
    for step in sorted(ours.keys() & theirs.keys()):
        for kind in ("inputs", "targets"):
            a, b = ours[step][kind], theirs[step][kind]
            if len(a) != len(b) or not all(same_print(x, y, 0.05) for x, y in zip(a, b, strict=True)):
                found[step] = "two unchanged runs are given different data"
    exact = facts(truth)
    for step in sorted(ours.keys() & exact.keys() - found.keys()):
        a, b = ours[step]["inputs"], exact[step]["inputs"]
        if len(a) != len(b) or not all(same_print(x, y, 0.05) for x, y in zip(a, b, strict=True)):
            found[step] = "its data depend on the program's own numbers, and differ in more exact ones"
    return found


def judge_facts(
    plan: Told,
    baseline: Told,
    again: Told,
    truth: Told,
    skipped: Mapping[int, str],
    *,
    inputs: bool,
    counts: bool = True,
) -> tuple[list[str], list[str], int]:
    """(faults, in what two unchanged runs differ, steps compared). Such a kind of thing is no fault of a
    plan's, at whatever step. ``inputs`` False: what goes into the models is not seen alike in both;
    ``counts`` False: how often it is called depends on the numbers, as in a line search."""
    mine, ours = facts(plan), facts(baseline)
    theirs, exact = facts(again), facts(truth)
    faults: list[str] = []
    unsteady: list[str] = []
    steady = []
    for look in (_settings, _counts, _modes) if counts else (_settings, _modes):
        differs = [
            one for step in sorted(theirs.keys() & ours) for one in look(step, theirs[step], ours[step])
        ]
        unsteady += differs[:1]
        steady += [] if differs else [look]
    for step in sorted(mine.keys() & ours.keys()):
        a, b = mine[step], ours[step]
        found = [one for look in steady for one in look(step, a, b)]
        if step not in skipped and (counts or len(a["inputs"]) == len(b["inputs"])):
            found += _data(step, a, b, theirs.get(step), exact.get(step), inputs=inputs)
        faults += [one for one in found if not _known(one, faults)]
    return faults, unsteady, len(mine.keys() & ours.keys())


def _known(text: str, faults: Sequence[str]) -> bool:
    """The same fault at an earlier step."""
    return any(text.partition("step")[0] == one.partition("step")[0] for one in faults)


def _settings(step: int, mine: Mapping[str, Any], untouched: Mapping[str, Any]) -> list[str]:
    ours: Sequence[Any] = untouched["settings"]
    for place, (a, b) in enumerate(zip(mine["settings"], ours, strict=False)):
        if len(a) != len(b):
            return [f"the optimiser has {len(a)} parameter groups, untouched {len(b)}, at step {step}"]
        for group, (x, y) in enumerate(zip(a, b, strict=True)):
            for name in y:
                if name in x and not _alike(x[name], y[name]):
                    which = f" of group {group + 1}" if len(a) > 1 else ""
                    which += f" of optimiser {place + 1}" if len(ours) > 1 else ""
                    return [
                        f"{NAMES.get(name, name)}{which} is {_short(x[name])}, "
                        f"untouched {_short(y[name])}, at step {step}"
                    ]
    return []


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return bool(a) == bool(b)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
    return bool(a == b)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _counts(step: int, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    found = []
    if a["backwards"] != b["backwards"]:
        found.append(f"{a['backwards']} backward calls, untouched {b['backwards']}, in step {step}")
    if len(a["settings"]) != len(b["settings"]):
        found.append(
            f"{len(a['settings'])} optimiser updates, untouched {len(b['settings'])}, in step {step}"
        )
    if a["skipped"] > b["skipped"]:
        found.append(f"the scaler skipped {a['skipped']} updates, untouched {b['skipped']}, in step {step}")
    return found


def _modes(step: int, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    for kind, seen in (("asleep", "inputs"), ("inner_asleep", "inner_inputs")):
        if not a[seen] or not b[seen]:
            continue  # no call was seen there, such as inside a compiled graph
        gone = sorted(set(a[kind]) - set(b[kind]))
        if gone:
            return [
                f"{len(gone)} modules are in eval mode and not in training mode ({gone[0]}), at step {step}"
            ]
        woken = sorted(set(b[kind]) - set(a[kind]))
        if woken:
            return [
                f"{len(woken)} modules are in training mode, untouched in eval mode ({woken[0]}), "
                f"at step {step}"
            ]
    return []


def _data(
    step: int,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    again: Mapping[str, Any] | None,
    truth: Mapping[str, Any] | None,
    *,
    inputs: bool,
) -> list[str]:
    kinds = [("targets", "loss target")]
    if inputs:
        kinds = [
            ("inputs", "input"),
            ("inner_inputs", "input that reaches the model, inside the plan,"),
            *kinds,
        ]
    for mine, word in kinds:
        seen, wanted = a[mine], b[mine]
        if not seen or not wanted:
            continue
        if len(seen) != len(wanted):
            if mine != "inputs":
                continue  # what is inside a compiled graph is not seen
            return [f"the models are given {len(seen)} inputs, untouched {len(wanted)}, in step {step}"]
        for place, (x, y) in enumerate(zip(seen, wanted, strict=True)):
            if list(x[0]) != list(y[0]):
                return [
                    f"{word} {place + 1} has shape {_shape(x)}, untouched {_shape(y)}: other samples, "
                    f"in step {step}"
                ]
            if not _is_data(place, y, again, truth, mine):
                continue
            if not same_print(x, y, NEAR):
                return [
                    f"{word} {place + 1} is other data than the untouched program's batch, in step {step}"
                ]
    return []


def _is_data(
    place: int,
    wanted: Print,
    again: Mapping[str, Any] | None,
    truth: Mapping[str, Any] | None,
    kind: str,
) -> bool:
    """It does not depend on the model's own numbers: it is the same in a second run and in the truth."""
    whole = wanted[1] == "whole"
    for other in (again, truth):
        rows = other[kind] if other is not None else ()
        if rows and (place >= len(rows) or not same_print(rows[place], wanted, SAME)):
            return False
    return whole or truth is not None


def _shape(one: Print) -> str:
    return "x".join(str(size) for size in one[0]) or "one number"


def judge_model(plan: Told, baseline: Told) -> list[str]:
    """Dtypes of weights and of what optimisers keep, and ties."""
    mine, ours = all_of(plan, "model"), all_of(baseline, "model")
    if not mine or not ours:
        return []
    a, b = mine[0], ours[0]
    faults = []
    changed = [name for name, kind in b["dtypes"].items() if a["dtypes"].get(name, kind) != kind]
    if changed:
        first = changed[0]
        faults.append(
            f"{len(changed)} trained weights are {a['dtypes'][first]}, "
            f"untouched {b['dtypes'][first]} ({first})"
        )
    lost = [ties for ties in b["ties"] if ties not in a["ties"]]
    if lost:
        faults.append(f"weights are no longer tied: {' and '.join(lost[0][:3])}")
    states = sorted(set(a["state_dtypes"]) - set(b["state_dtypes"]))
    if states and b["state_dtypes"]:
        faults.append(
            f"the optimiser keeps its state in {', '.join(states)}, "
            f"untouched {', '.join(b['state_dtypes'])}"
        )
    return faults


def judge_buffers(plan: Told, again: Told) -> list[str]:
    """Running statistics after each guarded step."""
    noise: dict[tuple[int, str], float] = {}
    for event in all_of(again, "buffers"):
        for row in event["rows"]:
            noise[int(event["step"]), str(row["name"])] = number(row["apart"])
    for event in all_of(plan, "buffers"):
        step = int(event["step"])
        for row in event["rows"]:
            name, apart = str(row["name"]), number(row["apart"])
            moved, wanted = row.get("moved"), row.get("wanted_moved")
            if wanted is None:
                continue
            allowed = BUFFER_SHARE * number(wanted) + 3.0 * noise.get((step, name), 0.0)
            allowed += 1e-5 * number(row["size"])
            if not apart <= allowed:
                how = (
                    "does not move"
                    if number(moved) == 0.0 and number(wanted) > 0.0
                    else f"moves by {number(moved):.3g} instead of {number(wanted):.3g}"
                )
                return [f"the buffer {name} {how} in step {step} (it is {apart:.3g} away)"]
    return []


def _spread(event: Mapping[str, Any]) -> float:
    if "most_apart" not in event or number(event["apart"]) == 0.0:
        return 0.0
    return (number(event["most_apart"]) - number(event["least_apart"])) / number(event["apart"])


def judge_dropout(plan: Told, baseline: Told) -> tuple[list[str], str]:
    """(faults, what was seen): the same model called again and again with the same inputs."""
    ours = {str(event["module"]): event for event in all_of(baseline, "dropout")}
    seen = ""
    for event in all_of(plan, "dropout"):
        name = str(event["module"])
        other = ours.get(name)
        if other is None or number(other["apart"]) == 0.0:
            continue
        mine = number(event["apart"]) / max(number(event["size"]), 1e-30)
        wanted = number(other["apart"]) / max(number(other["size"]), 1e-30)
        rounding = 1e-4 * wanted
        if mine <= rounding:
            return [
                f"dropout is lost or frozen: {name} called again with the same inputs gives the same output"
            ], ""
        if number(event["least_apart"]) <= 1e-4 * number(event["apart"]):
            return [f"dropout is frozen in part: two calls of {name} draw the same numbers"], ""
        # pairs of calls differ among themselves by as much as the estimate is uncertain
        spread = max(_spread(event), _spread(other))
        allowed = max(1.25, 1.0 + 2.0 * spread) if int(event["elements"]) >= 1000 else 3.0
        if not wanted / allowed <= mine <= wanted * allowed:
            return [
                f"dropout has another rate: outputs of {name} for the same inputs vary by {mine:.3g} of "
                f"their size, untouched {wanted:.3g}"
            ], ""
        seen = f"dropout drawn anew, its size {mine / wanted:.2f} of the untouched program's"
    return [], seen
