"""Where a trial runs. A runner starts sessions; a session is one live process that is given steps.

``LocalRunner`` (local.py) starts real programs; ``MockRunner`` (mock.py) plays them for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from flatout.plan import Plan
from flatout.trial import Block, Outcome, Profile
from flatout.workload import Discovery


@dataclass(frozen=True, kw_only=True)
class GuardTrial:
    """What a process does for the guard (agent/guarding/) instead of being timed."""

    role: str
    """``baseline``, ``truth``, ``again``, ``plan``, ``control``; or ``random``, with the program's own
    randomness on."""
    points: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Name of a point of training -> its consecutive steps that are compared."""
    updates: tuple[int, ...] = ()
    """Steps at which every optimiser gets the untouched program's gradients."""
    precision: str = "float64"
    """Of the truth, and of a control."""
    rounding: str = ""
    """Of a control: the format whose rounding is woven in (``tf32``, ``bf16``)."""
    draw: int = 0
    """Of a control: each rounds to another grid of that format."""
    fewer_bits: int = 0
    """Of a control: than the format keeps."""
    truth: bool = True
    """There is one to compare with."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One process to start."""

    key: str
    plan: Plan
    seed: int | None = None
    discovery: Discovery | None = None
    """What the baseline found (step unit, anchor, units); None for the baseline itself."""
    reference_role: str | None = None
    """``save`` or ``compare`` the first step's gradients, or None."""
    randomness_off: bool = False
    guard: GuardTrial | None = None
    time_limit_seconds: float = 600.0
    """No process lives longer."""
    step_limit_seconds: float = 300.0
    """No step (the first included: imports, data preparation, compile) may take longer."""


class SessionEnded(Exception):
    """The process is gone or can go no further; ``outcome`` says why. Not an error by itself."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Session(Protocol):
    """A live program, holding still between two calls. Every method may raise SessionEnded."""

    @property
    def discovery(self) -> Discovery | None:
        """What the agent found, once enough steps were taken."""
        ...

    def advance(self, steps: int) -> Block:
        """Let the program take ``steps`` more steps, wait for them and return their times."""
        ...

    def profile(self) -> Profile | None:
        """Let it take one step under torch.profiler. None where the profiler is not there."""
        ...

    def peek(self) -> Outcome:
        """What it has shown so far (gradients, evidence, recompiles, memory, losses), without ending it.

        Its ``state`` means nothing yet. Only while the program holds still between two calls.
        """
        ...

    def stop(self) -> Outcome:
        """End it at the step where it holds, and everything that it started; what it has shown."""
        ...

    def kill(self) -> None:
        """End it now. Safe at any time, also twice."""
        ...


class Runner(Protocol):
    """Starts sessions. ``tell`` receives lines for a person (``started``, ``compiling`` ...)."""

    @property
    def guards(self) -> bool:
        """Its processes can be guard trials (Request.guard)."""
        ...

    @property
    def guard_folder(self) -> Path | None:
        """Where guard trials leave files for each other."""
        ...

    @property
    def stops_idle(self) -> bool:
        """A process that holds is stopped while another one takes steps, with all that it has started."""
        ...

    def start(self, request: Request, tell: Callable[[str], None] = ...) -> Session: ...
