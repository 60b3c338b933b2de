"""The catalogue: every technique that flatout knows, found by looking into ``techniques/training``.

A technique is one file there with a ``TECHNIQUE``. What applies it is the module of the same name in
``agent/acts``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence

from flatout.errors import PlanError
from flatout.plan import Choice, Plan
from flatout.technique import Technique
from flatout.techniques import training

ORDER = ("tf32", "bf16", "sdpa", "compile", "fused_optimizer")
"""Order of application, outermost around the training call first: autocast is entered outside the
compiled call, and attention is rewritten before the graph is compiled."""

HEADINGS = ("What it does", "When it pays", "What it changes", "By hand", "Sources")
"""Of every manual page, in this order."""


def discover() -> tuple[Technique, ...]:
    """Every ``TECHNIQUE`` of the modules in ``techniques/training``, in order of application.

    ``LookupError`` for a module without one, without a place in ``ORDER``, or with another name.
    """
    found: dict[str, Technique] = {}
    for entry in pkgutil.iter_modules(training.__path__):
        module = importlib.import_module(f"{training.__name__}.{entry.name}")
        technique: Technique | None = getattr(module, "TECHNIQUE", None)
        if technique is None or technique.name != entry.name or entry.name not in ORDER:
            raise LookupError(
                f"techniques/training/{entry.name}.py needs a TECHNIQUE named {entry.name!r} "
                "and a place in techniques.ORDER"
            )
        found[entry.name] = technique
    return tuple(found[name] for name in ORDER if name in found)


TECHNIQUES: tuple[Technique, ...] = discover()


def technique_named(name: str, techniques: Sequence[Technique] | None = None) -> Technique:
    """The technique of that name. Raises PlanError naming those that there are."""
    known = TECHNIQUES if techniques is None else techniques
    for technique in known:
        if technique.name == name:
            return technique
    raise PlanError(
        f"there is no technique {name!r}",
        hint=f"The techniques are: {', '.join(t.name for t in known)}.",
    )


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

    Raises PlanError for an unknown name or setting, a name given twice, or two techniques of one slot.
    """
    known = list(TECHNIQUES if techniques is None else techniques)
    listed = [Choice(name=choice) if isinstance(choice, str) else choice for choice in choices]
    slots: dict[str, str] = {}
    for choice in listed:
        technique = technique_named(choice.name, known)
        _check_settings(choice, technique)
        taken = slots.get(technique.slot)
        if taken == choice.name:
            raise PlanError(f"{choice.name} is listed twice", hint="Keep one of the two.")
        if taken is not None:
            raise PlanError(
                f"{taken} and {choice.name} exclude each other: both set the {technique.slot}",
                hint=f"Leave one of them out, as with `--without {choice.name}`.",
            )
        slots[technique.slot] = choice.name
    place = {technique.name: index for index, technique in enumerate(known)}
    return Plan(choices=tuple(sorted(listed, key=lambda choice: place[choice.name])))
