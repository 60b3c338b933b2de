"""One isolated, measured run of a workload under a plan, and what came of comparing two."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from flatout.plan import Plan
from flatout.workload import Discovery


class State(StrEnum):
    """A trial is in one of these for ever: it is written once, at its end."""

    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some consecutive steps between two holds, all ranks' slowest taken per step."""

    first_step: int
    step_seconds: tuple[float, ...]
    """Seconds of each step that counts; the first after a hold is left out by the runner."""
    losses: tuple[tuple[int, float], ...] = ()
    """(step, loss) of every backward."""
    loader_wait_seconds: float = 0.0
    loader_start_seconds: float = 0.0
    """Of those, for the first batch of an epoch: workers that start."""
    agent_seconds: float = 0.0
    wall_seconds: float = 0.0
    steps: int = 0
    """Steps taken in this block, uncounted ones included; 0 when the program ended instead."""


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """The same-weights gradient probe of one trial against the baseline's saved first step.

    Signal-to-noise of a parameter's gradient g against the reference r is 10 log10(|r|^2 / |g - r|^2)
    decibels, as in torchao's float8 tests; parameters whose reference is nil beside the others' are
    left out (a key bias, a bias before a norm).
    """

    compared: int
    """Parameters compared; 0 means that the probe could not be made, for ``reason``."""
    equal: bool
    """Every gradient and the loss equal to the bit."""
    worst_db: float | None = None
    worst_parameter: str = ""
    median_db: float | None = None
    overall_db: float | None = None
    cosine: float | None = None
    loss: float | None = None
    reference_loss: float | None = None
    missing: tuple[str, ...] = ()
    """Parameters that have a gradient in only one of the two."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Calls of one operator on inputs of the same shapes, in the profiled step."""

    operator: str
    """Empty: many small ones together. A kernel's own name where no operator launched it."""
    calls: int
    seconds: float
    """Of its kernels (on a CPU: its own), where several run at once its part only."""
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(dtype, shape) of its tensors; a list of tensors is one of dtype ``list`` with so many elements."""
    numbers: tuple[tuple[int, ...], ...] = ()
    """All its arguments in order, where its arithmetic depends on them: whole numbers, else empty."""
    launches: int = 0
    kernels: tuple[tuple[str, float], ...] = ()
    """(name, seconds) of the dearest."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One profiled step: where its time goes, by name. Times in seconds."""

    wall_seconds: float
    """Of the profiled step, which the profiler itself makes longer."""
    device_busy_seconds: float
    """Union of kernel intervals (on a CPU: of top-level operators)."""
    kernels: tuple[tuple[str, int, float], ...] = ()
    """(name, count, seconds), most time first; kernels on a GPU, operators on a CPU."""
    operators: tuple[tuple[str, int, float], ...] = ()
    """(name, count, host self seconds), most time first."""
    kernel_count: int = 0
    optimizer_host_seconds: float | None = None
    """In which the host was in optimisers' ``step``; None or 0: not seen."""
    optimizer_device_seconds: float | None = None
    """Span of what these launched on the device."""
    work: tuple[Work, ...] = ()
    """The same kernels by the operators that launched them; their seconds sum to the busy time."""
    gaps: dict[str, float] = field(default_factory=dict)
    """What the host did while nothing ran -> seconds: ``loader``, ``launches``, ``sync``, ``optimizer``,
    ``compiling``, ``python``."""
    span_seconds: float = 0.0
    """Sum of work and gaps; 0 where this torch tells neither."""
    peaks: dict[str, float] = field(default_factory=dict)
    """What a CPU was measured to reach: dtype -> FLOP/s, ``bytes`` -> bytes/s."""
    missing: str = ""
    """Why there is no work told by operators."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a runner learnt from one process, whatever its end."""

    state: State
    reason: str = ""
    error: str = ""
    """Name of the class in errors.py that tells this failure best, or empty."""
    child_error: str = ""
    """The tail of the program's own error output."""
    exit_code: int | None = None
    steps: int = 0
    step_seconds: tuple[float, ...] = ()
    """All counted steps in order, warm-up left out."""
    losses: tuple[tuple[int, float], ...] = ()
    warmup_seconds: float = 0.0
    """From the start of the process to the first counted step: imports, compile, autotuning."""
    startup_seconds: float = 0.0
    """From the start of the process to its first step."""
    agent_seconds_per_step: float = 0.0
    loader_wait_seconds_per_step: float = 0.0
    peak_bytes: int = 0
    host_peak_bytes: int = 0
    recompiles: int = 0
    graph_breaks: int = 0
    discovery: Discovery | None = None
    gradients: Gradients | None = None
    guarding: tuple[dict[str, object], ...] = ()
    """Of a guard trial: what it told of each guarded step (agent/guarding/), judged in guard/."""
    profile: Profile | None = None
    active: dict[str, dict[str, object]] = field(default_factory=dict)
    """Technique name -> evidence that it ran."""
    isolation: str = ""
    thrown_away: tuple[tuple[str, int], ...] = ()
    """(path, bytes) of what the program wrote and flatout threw away."""
    thrown_away_count: int = 0
    thrown_away_bytes: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One row of the ledger."""

    key: str
    """Purpose and plan, such as ``baseline``, ``again``, ``screen:bf16``, ``climb:bf16+compile``."""
    plan: Plan
    outcome: Outcome
    started: float = 0.0
    """Unix time."""
    seconds: float = 0.0


class Call(StrEnum):
    """How a comparison ended."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference that this machine can show"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class GuardPoint:
    """The gradients of a plan at one guarded step, against the truth at the same weights and batch.

    Decibels are signal-to-noise, as in Gradients.
    """

    point: str
    """``start``, ``later`` or ``late``."""
    step: int
    against: str
    """``truth``, or ``baseline`` where there is none."""
    compared: int
    """Parameters."""
    left_out: int = 0
    """Parameters whose true gradient is nil."""
    equal: bool = False
    """To the untouched program's, to the bit."""
    overall_db: float | None = None
    baseline_db: float | None = None
    """The untouched program's own agreement with the truth."""
    needed_db: float | None = None
    worst_db: float | None = None
    worst_parameter: str = ""
    slope: float | None = None
    """Of all gradients on the true ones; 1 where their scale is right."""
    loss: float | None = None
    truth_loss: float | None = None
    passed: bool | None = None


@dataclass(frozen=True, kw_only=True)
class GuardReport:
    """What the guard's own trials showed of one plan."""

    passed: bool | None
    """None: nothing could be judged, for what ``unchecked`` says."""
    truth: str = ""
    """What the truth was computed in."""
    points: tuple[GuardPoint, ...] = ()
    faults: tuple[str, ...] = ()
    """Each with its check, place, value seen and value needed."""
    by_rounding: tuple[str, ...] = ()
    """What was found that rounding alone could bring: a control, or one draw more, may tell. Among the
    ``faults`` too, unless no control could run."""
    excused: tuple[str, ...] = ()
    """What a control has shown to be rounding alone."""
    control: str = ""
    """In words, where one was asked."""
    updates: str = ""
    invariants: str = ""
    dropout: str = ""
    unchecked: tuple[str, ...] = ()
    """What could not be checked, and why."""
    seconds: float = 0.0
    """Wall time that this plan's guard took."""

    @property
    def complete(self) -> bool:
        """Nothing was left unchecked: a plan may be called proved right."""
        return self.passed is True and not self.unchecked


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of an interleaved comparison of two plans.

    ``ratio`` is the time of a step under ``plan_a`` over that under ``plan_b``: above 1, b is faster.
    """

    key: str
    plan_a: Plan
    plan_b: Plan
    call: Call
    ratio: float | None
    low: float | None
    high: float | None
    """Bounds of the interval at ``confidence``."""
    confidence: float
    pairs: int
    """Paired blocks compared."""
    smallest_effect: float | None
    """The smallest ratio minus 1 that this comparison could have told from none."""
    method: str = "resident pair"
    samples_a: tuple[float, ...] = ()
    samples_b: tuple[float, ...] = ()
    """Seconds of a step: median of each block, in the order measured."""
    process_pairs: tuple[int, ...] = ()
    """How many of the samples, in order, each pair of fresh processes gave; empty in old ledgers: one."""
    turns_radius: float | None = None
    """Part of the interval's half width, as a log ratio, that is the turns' noise: more turns narrow it."""
    processes_radius: float | None = None
    """Part that is how far processes of one plan may differ: only fresh processes narrow it. The half width
    is the root of the sum of their squares."""
    process_spread: float | None = None
    """Median of what that difference may have for a standard deviation, as a log ratio."""
    merged: int = 1
    """Consecutive pairs of turns that were merged into one before they counted, since they depended on each
    other."""
    left_out: tuple[tuple[float, float, str], ...] = ()
    """(seconds of a, seconds of b, what disturbed them): pairs of turns that do not count, chosen by what
    surrounded them and never by their times."""
    guard: str = ""
    """Empty: passed. Else why the guard refuses ``plan_b``."""
    guard_note: str = ""
    """What the guard saw, also when it passed or could not judge."""
    guard_report: GuardReport | None = None
    reason: str = ""
