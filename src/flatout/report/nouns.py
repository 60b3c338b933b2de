"""The parts of a report, as data. See the package."""

from __future__ import annotations

from dataclasses import dataclass, field

from flatout.host import Host, Interpreter
from flatout.plan import Plan
from flatout.quality import Quality
from flatout.search.floor import Remains
from flatout.search.limits import Limit
from flatout.search.standing import Standing
from flatout.trial import Gradients, GuardReport, State, Verdict
from flatout.workload import Discovery


@dataclass(frozen=True, kw_only=True)
class TechniqueRow:
    """One technique: what became of it, why, and its numbers."""

    name: str
    title: str
    effect: str
    claimed: str
    standing: Standing
    reason: str
    settings: dict[str, object] = field(default_factory=dict)
    screened: float | None = None
    """Step time of the baseline over that with this technique alone, as screened (not proved)."""
    ratio: float | None = None
    """Step time of the plan before it over that with it, as proved."""
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    smallest_effect: float | None = None
    share: float | None = None
    """Step time of the final plan without it over that of the final plan; None: not measured."""
    guard_note: str = ""
    by_hand: str = ""
    evidence: dict[str, object] = field(default_factory=dict)
    """What showed that it ran."""


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One process in short; its samples are in the ledger."""

    key: str
    plan: str
    state: State
    reason: str
    error: str
    child_error: str
    exit_code: int | None
    steps: int
    counted_steps: int
    median_step_seconds: float | None
    mad_step_seconds: float | None
    """Median absolute deviation from the median."""
    startup_seconds: float
    warmup_seconds: float
    peak_bytes: int
    recompiles: int
    graph_breaks: int
    gradients: Gradients | None
    started: float
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How far two unchanged processes were apart: what this machine can and cannot show."""

    ratio: float | None
    """Step time of the first over that of the second."""
    low: float | None
    high: float | None
    block_spread: float | None
    """Relative spread of block medians inside one process (1.4826 MAD / median)."""
    gradients_db: float | None
    """Agreement of the two first steps' gradients in decibels; None: equal, or not compared."""
    gradients_equal: bool | None
    losses_equal: bool | None
    smallest_effect: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class CompileCost:
    """What compiling costs and did, when any trial or the program itself compiled."""

    recompiles: int
    graph_breaks: int
    seconds: float | None
    """Warm-up with a compiled plan beyond the baseline's; None: not measured."""
    break_even_steps: int | None
    """Steps after which that is earned back; None where nothing is gained or compile is not applied."""
    refused: str = ""
    note: str = ""
    cached_seconds: float | None = None
    """The same of a process that found everything in the compiler's cache, as later ones do."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Where the search's own time went, in seconds; the parts sum to its elapsed time."""

    starts: float
    """Processes until their first step: imports, data, compiling."""
    measuring: float
    """Turns of comparisons."""
    guard: float
    """The guard's own trials."""
    quality: float
    """Seeds trained to equal loss."""
    rest: float
    """Warming up, the baseline's own timing, screening, ending processes."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """See the module. Times in seconds; Unix time for ``started``."""

    search_id: int
    flatout_version: str
    state: str
    """``finished``, ``interrupted``, ``unfinished`` (killed: it can go on) or ``failed``."""
    conclusion: str
    command: tuple[str, ...]
    cwd: str
    started: float
    elapsed_seconds: float
    budget_seconds: float
    plan: Plan
    baseline_step_seconds: float | None
    plan_step_seconds: float | None
    ratio: float | None
    """Baseline's step over the plan's; None where nothing is applied."""
    low: float | None
    high: float | None
    confidence: float
    smallest_effect: float | None
    guard_note: str
    techniques: tuple[TechniqueRow, ...]
    verdicts: tuple[Verdict, ...]
    trials: tuple[TrialRow, ...]
    limits: tuple[Limit, ...]
    noise: Noise | None
    already: dict[str, str]
    """Technique name -> what was seen of it in the untouched program."""
    discovery: Discovery | None
    host: Host
    interpreter: Interpreter
    compile: CompileCost | None
    isolation: str
    thrown_away: tuple[tuple[str, int], ...]
    """(path, bytes), largest first, over all trials: the largest seen of each path."""
    thrown_away_count: int
    thrown_away_bytes: int
    next_command: str
    left: Remains | None = None
    """What is left of the plan's step, or of the untouched program's where there is no plan."""
    spent: Spent | None = None
    guard: GuardReport | None = None
    """Of the plan, by the guard's own trials."""
    surroundings: tuple[dict[str, object], ...] = ()
    """What each comparison was surrounded by: its key, in words, and the last reading."""
    quality: Quality | None = None
    """Of several seeds to equal loss, where it was asked for."""
    error: str = ""
    """Name of the class in errors.py that ended the search, with ``conclusion`` its message."""
    child_error: str = ""
    notes: tuple[str, ...] = ()
