"""A technique: one optimisation, as its declaration. The act runs in the user's process (agent/acts).

A declaration is one frozen dataclass in ``techniques/training/NAME.py`` with a docstring under fixed
headings (*What it does*, *When it pays*, *What it changes*, *By hand*, *Sources*): that docstring is
its manual page.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Protocol

from flatout.host import Host, Interpreter
from flatout.plan import Plan
from flatout.workload import Discovery


class Effect(StrEnum):
    """What a technique does to the numbers, mildest first."""

    EXACT = "exact"
    ROUNDING = "rounding"
    REDRAW = "redraw"
    APPROXIMATE = "approximate"
    RECIPE = "recipe"


class Part(StrEnum):
    """What of a step a technique can shorten, from all of it to little."""

    STEP = "the whole step but the wait for data"
    KERNELS = "the kernels"
    PRODUCTS = "the kernels of products and convolutions"
    OPTIMIZER = "the optimiser's step"


class Technique(Protocol):
    """What every declaration offers. ``techniques/__init__.py`` lists them in order of application."""

    name: ClassVar[str]
    title: ClassVar[str]
    """A few words for tables."""
    effect: ClassVar[Effect]
    claimed: ClassVar[str]
    """What guides say that it gives, word for word in our words, for the column beside the measured."""
    slot: ClassVar[str]
    """Alternatives: of the techniques of one slot (``attention``, ``compiler``, ...) a plan has at most
    one."""

    after: ClassVar[tuple[str, ...]]
    """Names of techniques that are applied before it where a plan has both."""
    excludes: ClassVar[Mapping[str, str]]
    """Name of a technique of another slot that cannot be in one plan with it -> why not. Said by one of
    the two is enough."""
    eclipsed_by: ClassVar[tuple[str, ...]]
    """Names of techniques beside which it seldom brings anything, since they shorten the same work: it is
    tried last where one of them is expected to gain more."""
    expected: ClassVar[float]
    """How many times faster a step gets on a GPU in the common case. Orders candidates that were not
    screened; nothing is believed of it."""
    shortens: ClassVar[Part]
    """The part of a step that it can shorten at most. What it cannot gain is read from the baseline's
    profile: see search/bounds.py."""
    accepts: ClassVar[Mapping[str, type]]
    """Name -> kind of each setting that its act knows; a plan with another one is refused."""

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        """Why it cannot be tried on this program and machine, or None. Never a silent no."""
        ...

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        """What to pass to the act."""
        ...

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        """None when the evidence shows that it ran; else what is missing."""
        ...

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        """The lines that a person would write to get this without flatout."""
        ...
