"""A finding: what one rule says of one capture. Every rule answers, one of three ways, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a rule can answer. "Clean" means that it looked and found nothing."""

    FOUND = "found"
    CLEAN = "clean"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The most that removing a cost can save: never a prediction of a gain, and never added to others."""

    seconds_per_step: float
    """Of one step; of the whole capture where it has no steps."""
    share: float
    """Of the step's time, 0 to 1."""
    how: str
    """``replay`` (the dependency graph was replayed without the cost) or ``accounting`` (the cost's own
    time on the device, or the idle time that it stands for)."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One rule's answer."""

    rule: str
    """Its name, as ``flatout explain --rule NAME`` takes it."""
    state: State
    title: str
    """One sentence with figures; for CLEAN and CANNOT_TELL the reason."""
    cause: str = ""
    """The key that the search and the report use too: ``loader``, ``launches``, ``host_sync``,
    ``compute``, ``memory``, ``attention``, ``optimizer``, ``communication``, ``copies``, ``compiling``,
    ``garbage``, ``checkpoint``, ``host``, ``stragglers``, ``profiler``."""
    rank: int = -1
    device: int = -1
    bound: Bound | None = None
    evidence: tuple[str, ...] = ()
    """Sentences with figures, the strongest first."""
    where: tuple[str, ...] = ()
    """Places in the program (``train.py(41): step``) or names of operators and kernels."""
    techniques: tuple[str, ...] = ()
    """Names of techniques of the catalogue that address it."""
    advice: str = ""
    """What a person would do, where no technique does it."""
    record: str = ""
    """For CANNOT_TELL: the command that records what is missing."""
