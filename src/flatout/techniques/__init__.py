"""The catalogue: every technique that flatout knows, found by looking into ``techniques/training``.

A technique is one file there with a ``TECHNIQUE``. What applies it is the module of the same name in
``agent/acts``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence

from flatout.errors import PlanError, UsageError
from flatout.plan import Choice, Plan
from flatout.technique import Technique
from flatout.techniques import training
from flatout.techniques.order import check, conflict, in_order
from flatout.words import nearest

HEADINGS = ("What it does", "When it pays", "What it changes", "By hand", "Sources")
"""Of every manual page, in this order."""


def discover() -> tuple[Technique, ...]:
    """Every ``TECHNIQUE`` of the modules in ``techniques/training``, in order of application.

    ``LookupError`` for a module without one or with another name, and for orders and conflicts that
    contradict each other (order.py).
    """
    found: list[Technique] = []
    for entry in pkgutil.iter_modules(training.__path__):
        module = importlib.import_module(f"{training.__name__}.{entry.name}")
        technique: Technique | None = getattr(module, "TECHNIQUE", None)
        if technique is None or technique.name != entry.name:
            raise LookupError(f"techniques/training/{entry.name}.py needs a TECHNIQUE named {entry.name!r}")
        found.append(technique)
    check(found)
    return in_order(found)


TECHNIQUES: tuple[Technique, ...] = discover()


def technique_named(
    name: str, techniques: Sequence[Technique] | None = None, *, error: type[UsageError] = PlanError
) -> Technique:
    """The technique of that name. Raises ``error`` with the nearest name and all that there are."""
    known = {technique.name: technique for technique in (TECHNIQUES if techniques is None else techniques)}
    if name not in known:
        meant = nearest(name.lower().replace("-", "_"), list(known))
        hint = f"Did you mean {meant}? " if meant else ""
        raise error(
            f"there is no technique {name!r}",
            hint=f"{hint}The techniques are: {', '.join(known)} (`flatout techniques`).",
        )
    return known[name]


def _check_settings(choice: Choice, technique: Technique) -> None:
    """PlanError for a setting that the act would not look at, or one of another kind than it takes."""
    for name, value in choice.settings.items():
        kind = technique.accepts.get(name)
        if kind is None:
            raise PlanError(
                f"{choice.name} has no setting {name!r}",
                hint=f"It has: {', '.join(technique.accepts) or 'none'}. Take that line out.",
            )
        if not isinstance(value, kind):
            raise PlanError(f"{choice.name}: {name} takes a {kind.__name__}, not {value!r}")


def make_plan(choices: Iterable[str | Choice], techniques: Sequence[Technique] | None = None) -> Plan:
    """A plan of these techniques in order of application.

    Raises PlanError for an unknown name or setting, a name given twice, or two techniques that exclude
    each other.
    """
    known = list(TECHNIQUES if techniques is None else techniques)
    listed = [Choice(name=choice) if isinstance(choice, str) else choice for choice in choices]
    chosen: dict[str, Technique] = {}
    for choice in listed:
        technique = technique_named(choice.name, known)
        _check_settings(choice, technique)
        if choice.name in chosen:
            raise PlanError(f"{choice.name} is listed twice", hint="Keep one of the two.")
        for other in chosen.values():
            why = conflict(other, technique)
            if why is not None:
                raise PlanError(
                    f"{other.name} and {choice.name} exclude each other: {why}",
                    hint=f"Leave one of them out, as with `--without {choice.name}`.",
                )
        chosen[choice.name] = technique
    place = {technique.name: index for index, technique in enumerate(in_order(known))}
    return Plan(choices=tuple(sorted(listed, key=lambda choice: place[choice.name])))
