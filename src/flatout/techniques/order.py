"""Which techniques go together, and in which order they are applied: both from their declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flatout.technique import Technique


def conflict(one: Technique, other: Technique) -> str | None:
    """Why the two cannot be in one plan, or None."""
    if one.name == other.name:
        return None
    if one.slot and one.slot == other.slot:
        return f"both set the {one.slot}"
    return one.excludes.get(other.name) or other.excludes.get(one.name)


def in_order(techniques: Sequence[Technique]) -> tuple[Technique, ...]:
    """Sorted so that each comes after those named in its ``after``, as far as they are there; else as
    given. LookupError where that goes in a circle."""
    names = {technique.name for technique in techniques}
    waiting = list(techniques)
    done: list[Technique] = []
    while waiting:
        applied = {technique.name for technique in done}
        for place, technique in enumerate(waiting):
            if all(name in applied for name in technique.after if name in names):
                done.append(waiting.pop(place))
                break
        else:
            circle = ", ".join(technique.name for technique in waiting)
            raise LookupError(f"each of these is to be applied after another of them: {circle}")
    return tuple(done)


def check(techniques: Iterable[Technique]) -> None:
    """LookupError for an order or a conflict that names what there is not, or that contradicts itself."""
    known = {technique.name: technique for technique in techniques}
    for technique in known.values():
        fields = {
            "after": technique.after,
            "excludes": tuple(technique.excludes),
            "eclipsed_by": technique.eclipsed_by,
        }
        for field, named in fields.items():
            for name in named:
                if name not in known or name == technique.name:
                    raise LookupError(
                        f"{technique.name}: {field} names {name!r}, which is no other technique"
                    )
        for name in technique.excludes:
            if name in technique.after:
                raise LookupError(f"{technique.name} both excludes {name} and comes after it")
            if not technique.excludes[name]:
                raise LookupError(f"{technique.name} excludes {name} without saying why")
        if technique.expected <= 0:
            raise LookupError(f"{technique.name}: expected is {technique.expected}, not a factor above 0")
    in_order(tuple(known.values()))


def excluded_by(technique: Technique, catalogue: Mapping[str, Technique]) -> dict[str, str]:
    """Name -> why, of all that cannot be in one plan with it."""
    found = {name: conflict(technique, other) for name, other in catalogue.items()}
    return {name: reason for name, reason in found.items() if reason is not None}
