"""What of a plan's findings the rounding of its format explains: asked of a *control*, the truth with that
rounding woven in (agent/guarding/rounding.py), in one or a few draws.

A bar expects of every program that rounding errors of many elements are small and average out. Not so
where a token near a tie is sent to another expert, or where a batch of one is normalised. The control shows
what rounding does to this very program at these weights and batches. It is one honest draw, and
a plan is another (its kernels sum in another order, its compiler rounds less often), so what is asked is
the same kind and size, not the same numbers:

- *Parameters that are off*, by their scale or their decibels: in each look, the worst lies at most
  ``SIZE`` times as far off as the control's worst of all looks, and at every rank down from it, at most
  ``COUNT`` times as many and ``SPARE`` more are ``SIZE`` times as far off.
- *A parameter off in every look*, in ``LOOKS`` at least and always to the same side, is excused only where
  the control has that very parameter off to that side too, so that in one look at least it lies no more
  than ``LEAST`` or half further: flips strike here and there, a wrong backward strikes one place.
- *All gradients together*: at most ``MARGIN_DB`` below the control at the same look, and never under
  ``LEAST_DB``: there the format itself has too few bits for this program.
- *Gradients that are there, and not nil, in only one of both*: a token that goes elsewhere may have been
  all that an expert got. In each look at most ``COUNT`` times as many and ``SPARE`` more than the control
  has in any look, if it has any. One that is so in every look is no question for a control.
- *The loss*: at most ``SIZE`` times as far from the truth as the control's furthest, relatively.

Nothing else is ever excused: one wrong scale of all parameters, gradients that are not finite or partly
nil, another number of losses, and all that is no gradient.

A flip is rare, and one draw may have missed it. So where no more than ``FEW`` of the parameters are off,
and nothing else is refused, the answer is that another draw may tell. The draws after the first keep
``FEWER_BITS`` less: errors grow, and flips are as many times more frequent. A parameter that grows ``JUMP``
times as much as the errors has met a flip, whose size does not depend on theirs. So of such a draw a
parameter counts by its size over that growth; one that jumped by its size itself, and of these as many as
would be left without the growth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flatout.guard.records import Row
from flatout.stats import median

SIZE = 3.0
COUNT = 2
SPARE = 2
LOOKS = 3
LEAST = 0.03
MORE = 1.5
FEW = 0.1
FEWER_BITS = 3
GROWTH = 2.0**FEWER_BITS
JUMP = 2.0
LEAST_JUMPS = 2
"""One flip strikes several parameters at once."""
MOST_JUMPS = 0.25
"""Of a look's parameters: where more do, larger errors do something else to the program."""
MARGIN_DB = 6.0
LEAST_DB = 6.0
"""An error of half the gradient's size."""
LEAST_ELEMENTS = 16
"""For a slope to be believed."""

Key = tuple[int, str]
"""Of a look: step and take."""


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """A finding that rounding alone could bring."""

    text: str
    key: Key
    test: str
    """``scale``, ``worst``, ``presence``, ``overall`` or ``loss``."""
    parameters: tuple[str, ...] = ()
    """Those that are off, for ``scale``, ``worst`` and ``presence``."""
    seen: float = 0.0
    """Decibels of ``overall``; how far the loss is off, relatively."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a trial showed at one look: the parameters that can be judged, and the losses."""

    rows: Mapping[str, Row]
    overall_db: float | None = None
    loss_apart: float = 0.0
    absent: frozenset[str] = frozenset()
    """Parameters whose gradient is there, and not nil, either here or in truth but not in both."""


@dataclass
class Answer:
    """What the control says of the suspicions."""

    excused: list[Suspicion] = field(default_factory=list)
    refused: list[tuple[Suspicion, str]] = field(default_factory=list)
    """With what the control showed instead."""
    open: bool = False
    """Another draw may explain all that this one does not."""


def loss_apart(losses: Sequence[float], wanted: Sequence[float], scale: float) -> float:
    """The furthest that a loss is from the truth's, relatively; one that is not finite excuses nothing."""
    pairs = [(a, b) for a, b in zip(losses, wanted, strict=False) if math.isfinite(a) and math.isfinite(b)]
    return max((abs(a - b) / max(abs(b), 0.1 * scale, 1e-30) for a, b in pairs), default=0.0)


def ask(
    suspicions: Sequence[Suspicion], plan: Mapping[Key, Shown], draws: Sequence[Mapping[Key, Shown]]
) -> Answer:
    """See the module."""
    answer = Answer()
    first, *grown = draws
    ranks = {test: _ranks(first, grown, test) for test in ("scale", "worst")}
    steady = {test: _steady(suspicions, plan, first, test) for test in ("scale", "worst")}
    final = False
    for one in suspicions:
        if one.test == "overall":
            why, near = _overall(one, first)
        elif one.test == "loss":
            why, near = _loss(one, first)
        elif one.test == "presence":
            why, near = _presence(one, plan, draws)
        else:
            why = next((steady[one.test][name] for name in one.parameters if name in steady[one.test]), "")
            near = not why and len(one.parameters) <= max(SPARE, FEW * len(plan[one.key].rows))
            why = why or _ranked(one, plan[one.key], ranks[one.test])
        if why:
            answer.refused.append((one, why))
            final = final or not near
        else:
            answer.excused.append(one)
    answer.open = bool(answer.refused) and not final
    return answer


def off(row: Row, test: str) -> float | None:
    """How far a parameter is off, with its side; None where that cannot be told."""
    if test == "worst":
        return float(10.0 ** (-row.db / 20.0))
    if row.slope is None or row.elements < LEAST_ELEMENTS or not math.isfinite(row.slope):
        return None
    return row.slope - 1.0


def _ranks(first: Mapping[Key, Shown], grown: Sequence[Mapping[Key, Shown]], test: str) -> list[float]:
    """The control's furthest parameter of any look, its second furthest, and so on."""
    looks = [sorted(_sizes(shown, test).values(), reverse=True) for shown in first.values()]
    for draw in grown:
        for key, shown in draw.items():
            looks.append(_shrunk(_sizes(shown, test), _sizes(first[key], test) if key in first else {}))
    found: list[float] = []
    for sizes in looks:
        found += [0.0] * (len(sizes) - len(found))
        for rank, size in enumerate(sizes):
            found[rank] = max(found[rank], size)
    return found


def _shrunk(grown: Mapping[str, float], usual: Mapping[str, float]) -> list[float]:
    """Sizes of a draw with larger errors, as they would be with the format's own; the largest first."""
    most = sorted(usual.values())
    typical = most[int(0.9 * (len(most) - 1))] if most else math.inf
    jumps = {
        name: size
        for name, size in grown.items()
        if size > JUMP * GROWTH * max(usual.get(name, math.inf), typical)
    }
    if len(jumps) > MOST_JUMPS * len(grown):
        jumps = {}
    left = max(LEAST_JUMPS, math.ceil(len(jumps) / GROWTH))
    smooth = [size / GROWTH for name, size in grown.items() if name not in jumps]
    return sorted([*sorted(jumps.values(), reverse=True)[:left], *smooth], reverse=True)


def _sizes(shown: Shown, test: str) -> dict[str, float]:
    """Of all parameters of a look that can be told."""
    return {name: abs(size) for name, row in shown.rows.items() if (size := off(row, test)) is not None}


def _ranked(one: Suspicion, shown: Shown, ranks: Sequence[float]) -> str:
    """Where more parameters are off, or further, than the control lets expect."""
    seen = [(abs(off(shown.rows[name], one.test) or 0.0), name) for name in one.parameters]
    for rank, (size, name) in enumerate(sorted(seen, reverse=True)):
        place = max(0, math.ceil((rank + 1 - SPARE) / COUNT) - 1)
        most = ranks[place] if place < len(ranks) else 0.0
        if size > SIZE * most:
            if place == 0:
                return f"no parameter off by more than {most:.2g}, and {name} is by {size:.2g}"
            return f"only {place} parameters off by more than {most:.2g}, and {rank + 1} are by {size:.2g}"
    return ""


def _steady(
    suspicions: Sequence[Suspicion],
    plan: Mapping[Key, Shown],
    control: Mapping[Key, Shown],
    test: str,
) -> dict[str, str]:
    """Parameters that are off to one side in every look of theirs, and are not in the control."""
    suspect = {(one.key[1], name) for one in suspicions if one.test == test for name in one.parameters}
    found: dict[str, str] = {}
    for take, name in sorted(suspect):
        keys = [key for key in plan if key[1] == take]
        seen = {key: size for key in keys if (size := _size(plan, key, name, test)) is not None}
        if len(seen) < LOOKS:
            continue
        usual = median(list(seen.values()))
        side = math.copysign(1.0, usual)
        own = {key: max(0.0, side * (_size(control, key, name, test) or 0.0)) for key in seen}
        if all(side * seen[key] > max(MORE * own[key], own[key] + LEAST) for key in seen):
            beside = side * median(list(own.values()))
            found[name] = f"{name} off by {beside:.2g}, and here it is by {usual:.2g} in every step"
    return found


def _presence(
    one: Suspicion, plan: Mapping[Key, Shown], draws: Sequence[Mapping[Key, Shown]]
) -> tuple[str, bool]:
    """(what the control shows instead, whether another draw may show more)."""
    counts = [len(shown.absent) for shown in draws[0].values()]
    for draw in draws[1:]:
        grown = [len(shown.absent) for shown in draw.values() if shown.absent]
        # all parameters of an expert go together: its smallest flip is one whole
        counts += [max(math.ceil(count / GROWTH), min(grown)) for count in grown]
    most = max(counts, default=0)
    if most and len(one.parameters) <= COUNT * most + SPARE:
        return "", True
    few = len(one.parameters) <= max(SPARE, FEW * len(plan[one.key].rows))
    return f"{most or 'no'} such gradients at most, and here are {len(one.parameters)}", few


def _size(of: Mapping[Key, Shown], key: Key, name: str, test: str) -> float | None:
    row = of[key].rows.get(name) if key in of else None
    return None if row is None else off(row, test)


def _overall(one: Suspicion, control: Mapping[Key, Shown]) -> tuple[str, bool]:
    """(what the control shows instead, whether another draw may show more)."""
    own = control[one.key].overall_db if one.key in control else None
    if own is None:
        return "nothing at this step", False
    if one.seen < own - MARGIN_DB:
        return f"agreement to {own:.0f} dB overall", False
    if one.seen < LEAST_DB:
        return f"agreement to {own:.0f} dB too: the format has too few bits for this program", False
    return "", True


def _loss(one: Suspicion, control: Mapping[Key, Shown]) -> tuple[str, bool]:
    """As for the decibels."""
    most = max((shown.loss_apart for shown in control.values()), default=0.0)
    return "" if one.seen <= SIZE * most else f"the loss off by {most:.2g} of itself at most", False
