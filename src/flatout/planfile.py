"""plan.toml: a plan with its proof, which a person can read, edit and keep in version control."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.plan import Plan
from flatout.workload import Discovery

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was proved about a plan against the untouched program."""

    ratio: float
    low: float
    high: float
    confidence: float
    smallest_effect: float | None
    baseline_step_seconds: float
    plan_step_seconds: float
    pairs: int
    method: str
    guard_note: str
    date: str
    """UTC, ISO 8601."""


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan, what it was proved for, and what the agent needs to apply it."""

    plan: Plan
    command: tuple[str, ...]
    cwd: str
    script: str | None
    """Path of the program's own file as found in the command, or None (a module or console script)."""
    script_sha256: str | None
    interpreter: str
    python: str
    torch: str
    flatout: str
    packages: dict[str, str]
    """Versions of the frameworks that the program may use."""
    gpus: tuple[str, ...]
    """Names, one per GPU; empty: no GPU."""
    driver: str | None
    cuda: str | None
    discovery: Discovery
    shares: dict[str, float] = field(default_factory=dict)
    """Technique name -> time of a step without it over with it."""
    by_hand: dict[str, str] = field(default_factory=dict)
    proof: Proof | None = None
    """None: written by hand."""
    cache_dir: str | None = None
    """Compile caches of the winning trial."""
