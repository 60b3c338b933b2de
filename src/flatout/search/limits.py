"""What limits the untouched program: one profiled step split by cause, dearest first.

On a GPU the step's wall time is the union of kernels (split by what they do) plus time in which the
device idles: waiting for the loader, else waiting for the host. An idle device with many short kernels
is limited by launches; with few, by something else that the host does. On a CPU the operators are the
work; the time of operators too small to be worth their dispatch, and the time between operators, is what
launches are on a GPU, and goes under that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flatout.stats import median
from flatout.trial import Profile
from flatout.workload import Discovery


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One thing that limits the untouched program. The first of a report costs the most."""

    cause: str
    """``loader``, ``launches``, ``compute``, ``memory``, ``attention``, ``optimizer``, ``host``,
    ``host_sync`` (it waits for the device) or ``compiling`` (the program's own, again and again)."""
    seconds_per_step: float
    share: float
    """Of the step, 0 to 1."""
    evidence: str
    techniques: tuple[str, ...] = ()
    """Names of techniques that address it."""


TINY_OPERATOR_SECONDS = 20e-6
"""An operator of PyTorch costs some 2 to 10 microseconds to dispatch on a CPU, more in backward; one
whose own time is below this is mostly that."""
DISPATCH_ONLY_SECONDS = {
    "aten::as_strided": 0.6e-6,
    "aten::transpose": 0.8e-6,
    "aten::view": 1.4e-6,
    "aten::expand": 1.5e-6,
    "aten::empty": 1.5e-6,
    "aten::t": 1.6e-6,
}
"""Own time a call of operators that touch no element, as profiled on an idle server core (LOG.md). Where
these take longer, so does every dispatch: a slower core, or one that is shared."""
MOST_SLOWED = 5.0
SHORT_KERNEL_SECONDS = 25e-6
"""A launch costs the host 4 to 10 microseconds, an eager operator 10 to 30: kernels shorter than this
cannot keep ahead of it."""
MANY = 100
"""Kernels or operators a step from which their number is a cause by itself."""
LEAST_SHARE = 0.01

CAUSES = {
    "loader": "waiting for data",
    "launches": "launching many small kernels",
    "compute": "arithmetic",
    "memory": "memory traffic",
    "attention": "attention",
    "optimizer": "the optimiser's step",
    "host": "the host's own work",
    "host_sync": "the host waiting for the device",
    "compiling": "compiling again and again",
}
"""Each cause in words."""

ADDRESSED_BY = {
    "loader": (),
    "launches": ("compile", "fused_optimizer"),
    "compute": ("bf16", "tf32", "compile"),
    "memory": ("compile", "bf16", "sdpa"),
    "attention": ("sdpa", "bf16", "compile"),
    "optimizer": ("fused_optimizer",),
    "host": ("compile",),
    "host_sync": (),
    "compiling": ("compile",),
}

_KINDS = (
    # first match wins; names of CUDA kernels and of PyTorch's operators
    ("compiling", r"PythonDispatchMode|dynamo|compile_fx|inductor.*compile|FakeTensor|fakify|aot_"),
    ("optimizer", r"multi_tensor|_foreach_|fused_adam|fused_sgd|adam|lamb(?!da)|addcdiv|addcmul|lerp"),
    ("attention", r"flash|fmha|attention|sdpa|(?<!log_)softmax|masked_fill|tril"),
    (
        "compute",
        r"gemm|cutlass|cublas|xmma|wgmma|conv|mkldnn|onednn|::(addmm|mm|bmm|baddbmm|matmul|linear)$|lstm|gru",
    ),
)


def kind_of(name: str) -> str:
    """What a kernel or operator works at: ``compute``, ``attention``, ``optimizer``, else ``memory``."""
    for kind, pattern in _KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return "memory"


def find_limits(
    profile: Profile | None,
    *,
    step_seconds: float,
    loader_wait_seconds: float,
    discovery: Discovery,
    techniques: Iterable[str] = (),
) -> tuple[Limit, ...]:
    """Causes with their seconds of a step, dearest first; those under 1 % are left out.

    ``step_seconds`` is the median without a profiler, to which the profiled times are scaled where the
    profiler itself has stretched them. ``techniques``: the names that exist here.
    """
    if step_seconds <= 0:
        return ()
    wait = min(max(0.0, loader_wait_seconds), step_seconds)
    found: dict[str, tuple[float, str]] = {}
    if wait:
        workers = [str(loader.get("num_workers", "?")) for loader in discovery.loaders]
        with_workers = f" with {', '.join(workers)} workers" if workers else ""
        found["loader"] = (
            wait,
            f"the program waits {wait * 1e3:.3g} ms of every {step_seconds * 1e3:.3g} ms step "
            f"for its DataLoader{with_workers}",
        )
    if profile is not None:
        split = _on_gpu if discovery.device.startswith("cuda") else _on_cpu
        found.update(split(profile, step_seconds, wait))
    known = set(techniques)
    limits = [
        Limit(
            cause=cause,
            seconds_per_step=seconds,
            share=seconds / step_seconds,
            evidence=evidence,
            techniques=tuple(name for name in ADDRESSED_BY[cause] if name in known),
        )
        for cause, (seconds, evidence) in found.items()
        if seconds >= LEAST_SHARE * step_seconds
    ]
    return tuple(sorted(limits, key=lambda limit: -limit.seconds_per_step))


def idle_by_cause(gaps: Mapping[str, float], *, idle: float, many: bool) -> dict[str, float]:
    """Seconds in which nothing ran, by what the host did, never more than ``idle``: ``launches``,
    ``sync``, ``optimizer_gap``, ``compiling``, ``host``. ``many``: the kernels are so many and short that
    Python between operators is a matter of launches. The wait for data is known better from other steps."""
    named = {"python": "launches" if many else "host", "optimizer": "optimizer_gap"}
    others = {cause: seconds for cause, seconds in gaps.items() if cause != "loader"}
    scale = fitted(sum(others.values()), idle)
    found: dict[str, float] = {}
    for cause, seconds in others.items():
        name = named.get(cause, cause)
        found[name] = found.get(name, 0.0) + scale * seconds
    return found


def fitted(profiled: float, room: float) -> float:
    """By which profiled times are multiplied to fit in, never above 1: what is missing is unknown."""
    return min(1.0, max(0.0, room) / profiled) if profiled > 0 else 1.0


def _on_gpu(profile: Profile, step: float, wait: float) -> dict[str, tuple[float, str]]:
    busy = min(profile.device_busy_seconds, step)
    found = _split_work(profile.kernels, busy, "kernels")
    idle = max(0.0, step - busy - wait)
    total = sum(seconds for _, _, seconds in profile.kernels)
    count = profile.kernel_count or sum(number for _, number, _ in profile.kernels)
    mean = total / count if count else 0.0
    many = count >= MANY and mean < SHORT_KERNEL_SECONDS
    gaps = idle_by_cause(profile.gaps, idle=idle, many=many)
    waiting, compiling = gaps.get("sync", 0.0), gaps.get("compiling", 0.0)
    if waiting:
        found["host_sync"] = (
            waiting,
            f"{waiting * 1e3:.3g} ms of every {step * 1e3:.3g} ms step pass between the host's wait for "
            "the GPU (a loss or another value was read) and its next launch",
        )
    if compiling:
        seconds = compiling + found.get("compiling", (0.0, ""))[0]
        found["compiling"] = (seconds, f"the GPU idles {seconds * 1e3:.3g} ms a step while it compiles")
    idle = max(0.0, idle - waiting - compiling)
    idle_text = f"the GPU idles {idle * 1e3:.3g} ms of every {step * 1e3:.3g} ms step"
    if many:
        found["launches"] = (
            idle,
            f"{idle_text} between {count} kernels of {mean * 1e6:.3g} us on average: the host "
            "cannot launch them fast enough",
        )
    elif idle:
        found["host"] = (idle, f"{idle_text} while the host does something else ({count} kernels)")
    return found


def _on_cpu(profile: Profile, step: float, wait: float) -> dict[str, tuple[float, str]]:
    # operators nest; `operators` holds each one's own time, which adds up to the busy time
    operators = profile.operators or profile.kernels
    own = sum(seconds for _, _, seconds in operators)
    busy = min(profile.device_busy_seconds or own, step)
    scale = min(1.0, busy / own) if own else 0.0
    most = TINY_OPERATOR_SECONDS * dispatch_slowed(operators)
    tiny = [row for row in operators if row[1] and row[2] / row[1] < most]
    large = [row for row in operators if row[1] and row[2] / row[1] >= most]
    large_seconds = scale * sum(seconds for _, _, seconds in large)
    found = _split_work(large, large_seconds, "operators")
    count = sum(number for _, number, _ in operators)
    tiny_count = sum(number for _, number, _ in tiny)
    between = max(0.0, step - busy - wait)
    overhead = scale * sum(seconds for _, _, seconds in tiny)
    if tiny_count >= MANY:
        found["launches"] = (
            overhead + between,
            f"{tiny_count} of {count} operators a step take under {most * 1e6:.0f} us "
            f"each, {(overhead + between) * 1e3:.3g} ms with the time between them: dispatching costs more "
            "than work",
        )
    elif between + overhead:
        found["host"] = (
            between + overhead,
            f"{(between + overhead) * 1e3:.3g} ms of every {step * 1e3:.3g} ms step pass outside of "
            "operators worth their name",
        )
    return found


def dispatch_slowed(operators: Iterable[tuple[str, int, float]]) -> float:
    """How many times slower than on an idle core operators are dispatched here, 1 to 5: the median over
    those that do nothing else and were called at least ten times; 1 where there are none."""
    slowed = [
        seconds / count / DISPATCH_ONLY_SECONDS[name]
        for name, count, seconds in operators
        if name in DISPATCH_ONLY_SECONDS and count >= 10
    ]
    return min(MOST_SLOWED, max(1.0, median(slowed))) if slowed else 1.0


def _split_work(
    rows: Iterable[tuple[str, int, float]], busy: float, what: str
) -> dict[str, tuple[float, str]]:
    rows = list(rows)
    total = sum(seconds for _, _, seconds in rows)
    found: dict[str, tuple[float, str]] = {}
    if not total:
        return found
    for kind in ("compute", "attention", "optimizer", "memory", "compiling"):
        mine = [row for row in rows if kind_of(row[0]) == kind]
        if not mine:
            continue
        seconds = busy * sum(row[2] for row in mine) / total
        first = max(mine, key=lambda row: row[2])
        found[kind] = (
            seconds,
            f"{seconds * 1e3:.3g} ms in {sum(row[1] for row in mine)} {what}, "
            f"most of it in {short(first[0])} ({first[1]} calls)",
        )
    return found


def short(name: str) -> str:
    """A kernel's name as long as a line can bear."""
    return name if len(name) <= 60 else name[:57] + "..."
