"""Judgement by gradients at several points of training, each against the truth and relative to how far the
untouched program itself is from it.

Decibels alone are a weak bar where the program's own arithmetic is noisy. Three more tests do not weaken
with noise: a parameter's *scale* (the projection on the truth, in which rounding averages out over the
elements), gradients that are missing or not finite, and elements that are nil where the truth's are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flatout.guard.bars import Bar
from flatout.guard.bits import DB_PER_BIT
from flatout.guard.control import LEAST_ELEMENTS, LOOKS, Key, Shown, Suspicion, ask, loss_apart
from flatout.guard.records import Look, Row
from flatout.stats import median
from flatout.trial import GuardPoint

NIL_IN_FLOAT64 = 1e-10
"""A true gradient below this share of the largest one's size is nil: a key's bias, a bias before a norm."""
NIL_OTHERWISE = 1e-7
OVERALL_MARGIN_DB = 6.0
WORST_MARGIN_DB = 15.0
"""One parameter may lie this much below what its bits let expect."""
LEAST_NEEDED_DB = -10.0
"""Where less would have to do, a plan's error may be three times the gradient, and nothing is shown."""
LEAST_OWN_DB = 20.0
"""Of the untouched program with the truth: its gradients are then more than rounding."""
LEAST_WORST_DB = 3.0
"""No single parameter of a plan with fewer bits is asked for more by its class alone: 3 dB is a gradient
whose error is 0.7 of its size."""
EXACT_WORST_DB = 20.0
"""No single parameter of an exact plan is asked for more where two unchanged runs differ too."""
SCALE_FLOOR = {True: 0.005, False: 0.03}
"""Of a slope from 1, by whether the plan keeps the program's bits: smaller is not called a wrong scale."""
SCALE_ERRORS = 5.0
NIL_SHARE = 0.05
COMMON_SCALE = 0.02
EXACT_ENOUGH_DB = 120.0


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a plan is asked for."""

    bar: Bar
    bits_lost: int
    """Fewer than the untouched program keeps."""
    exact: bool = False
    float64: bool = True
    """The truth is in float64."""


@dataclass
class Findings:
    """What came of all points."""

    points: list[GuardPoint] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    by_rounding: list[str] = field(default_factory=list)
    """Those of the faults that rounding alone could bring: a control, or one draw more, may tell."""
    excused: list[str] = field(default_factory=list)
    """What a control has shown to be rounding alone."""


@dataclass
class _Judged:
    """What came of one look."""

    point: GuardPoint
    faults: list[str | Suspicion]
    unknown: list[str]


def judge_looks(  # noqa: PLR0917 - all trials of a program
    plan: Mapping[Key, Look],
    baseline: Mapping[Key, Look],
    again: Mapping[Key, Look],
    expected: Expectation,
    skipped: Mapping[int, str],
    control: Sequence[Mapping[Key, Look]] = (),
) -> Findings:
    """``skipped``: step -> why nothing can be said of it. ``control``: what rounding alone does, in as many
    draws as have been asked."""
    found = Findings()
    scale = max([abs(loss) for look in plan.values() for loss in look.wanted_losses] or [0.0])
    always = _always_absent([look for look in plan.values() if look.step not in skipped], expected)
    judged: list[_Judged] = []
    for key, look in sorted(plan.items()):
        if look.step in skipped:
            found.unknown.append(f"{_where(look)}: {skipped[look.step]}")
            continue
        own = baseline.get(key) if look.against == "truth" else None
        one = _judge(look, own, again.get(key), expected, scale)
        one.faults = [_settled(fault, always.get(look.take, frozenset())) for fault in one.faults]
        if look.against != "truth":
            # a control is held against the truth alone
            one.faults = [fault if isinstance(fault, str) else fault.text for fault in one.faults]
        judged.append(one)
    if control:
        _ask_control(judged, plan, control, expected, scale, found)
    for one in judged:
        found.points.append(replace(one.point, passed=None if one.unknown else not one.faults))
        found.faults += [fault if isinstance(fault, str) else fault.text for fault in one.faults]
        if not control:
            found.by_rounding += [fault.text for fault in one.faults if not isinstance(fault, str)]
        found.unknown += one.unknown
    return found


def _ask_control(  # noqa: PLR0917
    judged: Sequence[_Judged],
    plan: Mapping[Key, Look],
    control: Sequence[Mapping[Key, Look]],
    expected: Expectation,
    scale: float,
    found: Findings,
) -> None:
    """Take out what it explains, and say of the rest what it shows instead."""
    steps = {one.point.step for one in judged}

    def shown(looks: Mapping[Key, Look]) -> dict[Key, Shown]:
        rows = {key: look for key, look in looks.items() if look.step in steps and look.against == "truth"}
        return {key: _shown(look, expected, scale) for key, look in rows.items()}

    suspicions = [one for look in judged for one in look.faults if isinstance(one, Suspicion)]
    answer = ask(suspicions, shown(plan), [shown(one) for one in control])
    told = {id(one): f"{one.text}; rounding alone has {why}" for one, why in answer.refused}
    found.excused += [one.text for one in answer.excused]
    if answer.open:
        found.by_rounding += told.values()
    for look in judged:
        look.faults = [
            told.get(id(one), one) for one in look.faults if id(one) in told or isinstance(one, str)
        ]


def _shown(look: Look, expected: Expectation, scale: float) -> Shown:
    rows = _judged(look, expected)
    return Shown(
        rows={row.name: row for row in rows},
        overall_db=overall_db(rows),
        loss_apart=loss_apart(look.losses, look.wanted_losses, scale),
        absent=_absent(look, rows),
    )


def _absent(look: Look, judged: Sequence[Row]) -> frozenset[str]:
    """Parameters whose gradient is there, and not nil, in only one of this trial and the truth."""
    vanished = {row.name for row in judged if row.rms == 0.0}
    appeared = {row.name for row in look.rows.values() if row.truth_rms == 0.0 < row.rms}
    return frozenset(look.lost + look.gained).union(vanished, appeared)


def _always_absent(looks: Sequence[Look], expected: Expectation) -> dict[str, frozenset[str]]:
    """Take -> parameters that are so in every look: rounding strikes here and there."""
    found: dict[str, frozenset[str]] = {}
    for take in {look.take for look in looks}:
        each = [_absent(look, _judged(look, expected)) for look in looks if look.take == take]
        if len(each) >= LOOKS:
            found[take] = frozenset.intersection(*each)
    return found


def _settled(fault: str | Suspicion, always: frozenset[str]) -> str | Suspicion:
    """No control is asked of a gradient that is never there."""
    if isinstance(fault, Suspicion) and fault.test == "presence" and always.intersection(fault.parameters):
        return fault.text
    return fault


def _where(look: Look) -> str:
    return f"{look.point} (step {look.step})"


def _judge(
    look: Look, own: Look | None, floor: Look | None, expected: Expectation, loss_scale: float
) -> _Judged:
    where = _where(look)
    judged = _judged(look, expected)
    overall = overall_db(judged)
    own_overall = (
        overall_db([own.rows[row.name] for row in judged if row.name in own.rows]) if own else None
    )
    needed = _needed(expected, own_overall)
    faults: list[str | Suspicion] = []
    unknown: list[str] = []
    worst = min(judged, key=lambda row: row.db, default=None)
    apart = _floor_db(floor, judged)
    nothing = _says_nothing(look) if not judged else ""
    lost = _infinite(own) if own is not None else []
    if nothing:
        unknown.append(f"{where}: {nothing}")
    elif lost:
        unknown.append(f"{where}: the untouched program's own gradient of {_names(lost)} is not finite")
    elif floor is not None and apart is not None and apart < needed:
        unknown.append(f"{where}: two unchanged runs agree with the truth to {apart:.0f} dB only")
    elif needed < LEAST_NEEDED_DB and not (look.lost or look.gained or look.shapes or _infinite(look)):
        if not look.equal and own_overall is not None and own_overall >= LEAST_OWN_DB:
            faults += _underflow(where, judged, own)  # however few bits a plan keeps
        if not faults:
            unknown.append(
                f"{where}: gradients cannot be judged: beside their own rounding they are nil (the "
                f"untouched program agrees with the truth to {own_overall:.0f} dB)"
            )
    elif look.shapes or ((look.lost or look.gained) and not expected.bits_lost):
        faults.append(_presence(where, look))
    elif not look.equal:
        if look.lost or look.gained:
            text, names = _presence(where, look), look.lost + look.gained
            faults.append(Suspicion(text=text, key=look.key, test="presence", parameters=names))
        if expected.exact and not (floor is not None and not floor.equal):
            faults.append(
                f"{where}: gradients differ from the untouched program's, but an exact plan must give "
                f"equal ones (overall {overall:.0f} dB)"
            )
        faults += _tests(where, look, judged, own, expected, overall, needed, loss_scale)
        if not faults and own_overall is not None and own_overall < 0.0:
            unknown.append(
                f"{where}: gradients cannot be judged: the untouched program's own are further from the "
                f"truth than they are large ({own_overall:.0f} dB)"
            )
    point = GuardPoint(
        point=look.point,
        step=look.step,
        against=look.against,
        compared=len(judged),
        left_out=len(look.rows) - len(judged),
        equal=look.equal,
        overall_db=overall,
        baseline_db=own_overall,
        needed_db=needed,
        worst_db=worst.db if worst else None,
        worst_parameter=worst.name if worst else "",
        slope=_overall_slope(judged),
        loss=_mean(look.losses),
        truth_loss=_mean(look.wanted_losses),
    )
    return _Judged(point=point, faults=faults, unknown=unknown)


def _says_nothing(look: Look) -> str:
    """Why gradients without a single one that could be judged show nothing."""
    rows = look.rows.values()
    if rows and all(row.rms == 0.0 == row.truth_rms for row in rows):
        return "every gradient is nil, in truth too"
    if rows and not any(math.isfinite(row.truth_rms) for row in rows):
        return "no gradient is finite, in truth neither"
    return ""


def _judged(look: Look, expected: Expectation) -> list[Row]:
    """Parameters whose true gradient is a number and not nil."""
    largest = max(
        (row.truth_rms for row in look.rows.values() if math.isfinite(row.truth_rms)), default=0.0
    )
    nil = NIL_IN_FLOAT64 if expected.float64 and look.against == "truth" else NIL_OTHERWISE
    return [
        row for row in look.rows.values() if math.isfinite(row.truth_rms) and row.truth_rms > nil * largest
    ]


def overall_db(rows: Sequence[Row]) -> float | None:
    """Signal-to-noise of all rows together."""
    signal = math.fsum(row.elements * row.truth_rms**2 for row in rows)
    noise = math.fsum(row.elements * row.truth_rms**2 * 10.0 ** (-row.db / 10.0) for row in rows)
    if not rows or not math.isfinite(signal) or not math.isfinite(noise) or signal <= 0.0:
        return None
    return 300.0 if noise <= signal * 1e-30 else 10.0 * math.log10(signal / noise)


def _needed(expected: Expectation, own: float | None) -> float:
    """The easier of the class's own bar and what the program's own distance from the truth lets expect."""
    bar = expected.bar.overall_db
    absolute = EXACT_ENOUGH_DB if bar is None else bar
    if own is None:
        return absolute
    return min(absolute, own - DB_PER_BIT * expected.bits_lost - OVERALL_MARGIN_DB)


def _expected_db(row: Row, own: Look | None, expected: Expectation) -> float | None:
    """Of one parameter, from its own conditioning in this program."""
    mine = own.rows.get(row.name) if own is not None else None
    return None if mine is None else mine.db - DB_PER_BIT * expected.bits_lost


def _floor_db(floor: Look | None, judged: Sequence[Row]) -> float | None:
    """How far a second unchanged run agrees with the truth; None where the first agrees to the bit."""
    if floor is None or floor.equal:
        return None
    return overall_db([floor.rows[row.name] for row in judged if row.name in floor.rows])


def _presence(where: str, look: Look) -> str:
    parts = []
    if look.lost:
        parts.append(f"no gradient reaches {_names(look.lost)}")
    if look.gained:
        parts.append(f"{_names(look.gained)} has a gradient, and none in the untouched program")
    if look.shapes:
        parts.append(f"the gradient of {_names(look.shapes)} has another shape")
    return f"{where}: gradients are not of the same parameters: {'; '.join(parts)}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _tests(  # noqa: PLR0917 - one look and all that it is held against
    where: str,
    look: Look,
    judged: Sequence[Row],
    own: Look | None,
    expected: Expectation,
    overall: float | None,
    needed: float,
    loss_scale: float,
) -> list[str | Suspicion]:
    bad = _infinite(look)
    if bad:
        return [f"{where}: the gradient of {_names(bad)} is not finite"]
    gone = _vanished(judged, own)
    faults: list[str | Suspicion] = []
    if gone:
        text = _gone(where, gone)
        if not expected.bits_lost:
            return [text]
        faults.append(Suspicion(text=text, key=look.key, test="presence", parameters=gone))
        judged = [row for row in judged if row.name not in gone]
        overall = overall_db(judged)
    scale = _scale_fault(look, judged, own, expected)
    if scale:
        faults.append(scale)
    faults += _underflow(where, judged, own)
    if overall is not None and overall < needed:
        worst = min(judged, key=lambda row: row.db)
        text = (
            f"{where}: gradients agree with the truth to {overall:.0f} dB overall, "
            f"{expected.bar.name} needs {needed:.0f} dB (worst: {worst.name}, {worst.db:.0f} dB)"
        )
        faults.append(Suspicion(text=text, key=look.key, test="overall", seen=overall))
    elif not scale:
        faults += _worst_fault(look, judged, own, expected)
    faults += _loss_fault(look, own, expected, loss_scale)
    return faults


def _underflow(where: str, judged: Sequence[Row], own: Look | None) -> list[str]:
    """Gradients that are nil and are not in truth: all of a parameter's, or some of its elements."""
    gone = _vanished(judged, own)
    if gone:
        return [_gone(where, gone)]
    nil = [
        row for row in judged if row.elements >= LEAST_ELEMENTS and row.nil > _own_nil(row, own) + NIL_SHARE
    ]
    if not nil:
        return []
    most = max(nil, key=lambda row: row.nil)
    return [
        f"{where}: {most.nil:.0%} of the gradient of {most.name} is nil where the truth is not "
        f"({_own_nil(most, own):.0%} in the untouched program): it underflows"
    ]


def _vanished(judged: Sequence[Row], own: Look | None) -> tuple[str, ...]:
    """Parameters whose gradient is nil, and is not in truth and in the untouched program."""
    return tuple(row.name for row in judged if row.rms == 0.0 and _own_rms(row, own) > 0.0)


def _gone(where: str, names: Sequence[str]) -> str:
    return f"{where}: the gradient of {_names(names)} is nil, and is not in truth: it underflows"


def _infinite(look: Look) -> list[str]:
    """Parameters whose gradient is not finite, and is in truth."""
    return [row.name for row in look.rows.values() if not row.finite and math.isfinite(row.truth_rms)]


def _own_rms(row: Row, own: Look | None) -> float:
    if own is None:
        return row.truth_rms
    mine = own.rows.get(row.name)
    return mine.rms if mine is not None else 0.0


def _own_nil(row: Row, own: Look | None) -> float:
    mine = own.rows.get(row.name) if own is not None else None
    return mine.nil if mine is not None else 0.0


def _scale_fault(
    look: Look, judged: Sequence[Row], own: Look | None, expected: Expectation
) -> str | Suspicion | None:
    """Gradients that are a number times the truth."""
    wrong: list[Row] = []
    known: list[Row] = []
    for row in judged:
        if row.slope is None or row.elements < LEAST_ELEMENTS:
            continue
        known.append(row)
        noise = _expected_db(row, own, expected)
        allowed = max(
            SCALE_FLOOR[expected.bits_lost == 0],
            SCALE_ERRORS * row.slope_error,
            10.0 ** (-noise / 20.0) if noise is not None else 0.0,
            10.0 ** (-(expected.bar.worst_db or expected.bar.overall_db or 40.0) / 20.0)
            if own is None
            else 0.0,
        )
        if abs(row.slope - 1.0) > allowed:
            wrong.append(row)
    if not wrong:
        return None
    where = _where(look)
    slopes = [row.slope for row in wrong if row.slope is not None]
    common = median(slopes)
    alike = [one for one in slopes if abs(one - common) <= COMMON_SCALE * abs(common)]
    if len(wrong) > 1 and len(alike) >= 0.8 * len(known):
        return (
            f"{where}: gradients are {common:.3g} times the true ones in {len(alike)} of {len(known)} "
            "parameters: a wrong scale, or a wrong normalisation of the loss"
        )
    worst = max(wrong, key=lambda row: abs((row.slope or 0.0) - 1.0))
    text = (
        f"{where}: the gradient of {worst.name} is {worst.slope:.3g} times the true one along it "
        f"(expected 1, standard error {worst.slope_error:.1g}); {len(wrong)} of {len(known)} parameters "
        "are off"
    )
    names = tuple(row.name for row in wrong)
    return Suspicion(text=text, key=look.key, test="scale", parameters=names)


def _worst_fault(
    look: Look, judged: Sequence[Row], own: Look | None, expected: Expectation
) -> list[Suspicion]:
    absolute = expected.bar.worst_db if expected.bar.worst_db is not None else LEAST_WORST_DB
    if expected.bar.overall_db is None:
        absolute = EXACT_WORST_DB
    below = []
    for row in judged:
        noise = _expected_db(row, own, expected)
        needed = absolute if noise is None else min(absolute, noise - WORST_MARGIN_DB)
        if row.db < needed:
            below.append((row, needed))
    if not below:
        return []
    row, needed = min(below, key=lambda pair: pair[0].db - pair[1])
    text = (
        f"{_where(look)}: the gradient of {row.name} agrees with the truth to {row.db:.0f} dB only, "
        f"{expected.bar.name} needs {needed:.0f} dB"
    )
    names = tuple(row.name for row, _ in below)
    return [Suspicion(text=text, key=look.key, test="worst", parameters=names)]


def _loss_fault(look: Look, own: Look | None, expected: Expectation, scale: float) -> list[str | Suspicion]:
    """The losses of the step at the same weights and batch."""
    where = _where(look)
    if len(look.losses) != len(look.wanted_losses):
        counts = f"{len(look.losses)} losses went backward, {len(look.wanted_losses)}"
        return [f"{where}: {counts} in the untouched program"]
    pairs = list(zip(look.losses, look.wanted_losses, strict=True))
    for seen, wanted in pairs:
        if math.isfinite(wanted) and not math.isfinite(seen):
            return [_other_loss(where, seen, wanted)]
    for place, (seen, wanted) in enumerate(pairs):
        if not math.isfinite(wanted):
            continue
        theirs = own.losses[place] if own is not None and place < len(own.losses) else wanted
        allowed = max(expected.bar.loss, 1e-5) * max(abs(wanted), 0.1 * scale)
        allowed += abs(theirs - wanted) * 2.0 ** (expected.bits_lost + 1)
        if not abs(seen - wanted) <= allowed:
            apart = loss_apart(look.losses, look.wanted_losses, scale)
            text = _other_loss(where, seen, wanted)
            return [Suspicion(text=text, key=look.key, test="loss", seen=apart)]
    return []


def _other_loss(where: str, seen: float, wanted: float) -> str:
    return f"{where}: the loss is {seen:.6g} instead of {wanted:.6g} at the same weights and batch"


def _overall_slope(rows: Sequence[Row]) -> float | None:
    weight = math.fsum(row.elements * row.truth_rms**2 for row in rows if row.slope is not None)
    if not weight or not math.isfinite(weight):
        return None
    return (
        math.fsum(row.elements * row.truth_rms**2 * row.slope for row in rows if row.slope is not None)
        / weight
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
