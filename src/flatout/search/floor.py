"""What is left of a step: its roofline floor, the work above it, gaps with a known cause, and the unknown.

One profiled step is divided so that the parts sum to the step as it was timed without a profiler. The
device's busy time is taken by rows of work (an operator on inputs of the same shapes): its floor
(search/roofline.py), and what it takes beyond. The rest of the step is what the host did meanwhile. What
neither explains is unknown, and is said to be. Nothing here is a promise: a floor is what cannot be beaten
by the same operators, not what can be reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from flatout.host import Host
from flatout.search.limits import (
    ADDRESSED_BY,
    MANY,
    SHORT_KERNEL_SECONDS,
    TINY_OPERATOR_SECONDS,
    dispatch_slowed,
    fitted,
    idle_by_cause,
    kind_of,
    short,
)
from flatout.search.peaks import gpu_peaks
from flatout.search.roofline import floor_of
from flatout.trial import Profile, Work
from flatout.workload import Discovery

ROWS_TOLD = 8
COPIES, COMMUNICATION, UNTOLD = "copies", "communication", "untold"
FLOOR, UNKNOWN = "floor", "unknown"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the step; all of them sum to it."""

    cause: str
    """``floor``; of work above its floor ``compute``, ``attention``, ``memory``, ``optimizer``; work whose
    floor shapes do not tell: ``untold``, ``copies`` (between host and device), ``communication``; gaps:
    ``loader``, ``launches``, ``sync``, ``optimizer_gap``, ``host``, ``compiling``; ``unknown``."""
    seconds: float
    share: float
    """Of the step, 0 to 1."""
    evidence: str = ""
    techniques: tuple[str, ...] = ()
    """Names of techniques that address it and have not been tried."""


@dataclass(frozen=True, kw_only=True)
class Above:
    """A row of work and what it takes beyond its floor."""

    operator: str
    kernel: str
    """The dearest kernel of it; empty on a CPU."""
    calls: int
    seconds: float
    floor_seconds: float
    bound: str
    """``arithmetic in bfloat16`` or ``memory``: what the floor is made of."""


@dataclass(frozen=True, kw_only=True)
class Remains:
    """See the module. Seconds of one step."""

    plan: str
    """Key of the plan whose step this is; ``baseline`` for the untouched program."""
    step_seconds: float
    parts: tuple[Part, ...]
    """The floor first, then dearest first, the unknown last."""
    above: tuple[Above, ...] = ()
    """The rows that lose most, at most eight."""
    peaks: dict[str, float] = field(default_factory=dict)
    """FLOP/s by precision and bytes/s that the floor is reckoned with; empty where none are known."""
    peaks_from: str = ""
    reason: str = ""
    """Why there is no floor, or no division at all."""


def divide_step(
    profile: Profile | None,
    *,
    plan: str,
    step_seconds: float,
    loader_wait_seconds: float,
    discovery: Discovery,
    host: Host,
    techniques: Iterable[str] = (),
) -> Remains | None:
    """None where no step was timed. ``techniques``: those that could still be tried."""
    if step_seconds <= 0:
        return None
    on_gpu = discovery.device.startswith("cuda")
    peaks, peaks_from, reason = _peaks(profile, host, on_gpu=on_gpu)
    if profile is None or not profile.span_seconds:
        missing = profile.missing if profile is not None else "no step was profiled"
        wait = min(max(0.0, loader_wait_seconds), step_seconds)
        found = {"loader": (wait, "")}
        return Remains(
            plan=plan,
            step_seconds=step_seconds,
            parts=_parts(found, step_seconds, techniques),
            reason=missing or "the profile does not tell which operators took the time",
        )
    division = _Division(profile, step_seconds, max(0.0, loader_wait_seconds), peaks, on_gpu=on_gpu)
    return Remains(
        plan=plan,
        step_seconds=step_seconds,
        parts=_parts(division.found, step_seconds, techniques),
        above=tuple(sorted(division.above, key=lambda row: row.floor_seconds - row.seconds)[:ROWS_TOLD]),
        peaks=dict(peaks),
        peaks_from=peaks_from,
        reason=reason,
    )


def _peaks(profile: Profile | None, host: Host, *, on_gpu: bool) -> tuple[Mapping[str, float], str, str]:
    """(peaks, where they are from, why there are none)."""
    if not on_gpu:
        peaks = profile.peaks if profile is not None else {}
        return (
            peaks,
            "what was measured on this CPU",
            "" if peaks else "what this CPU can reach was not measured",
        )
    name = host.gpus[0].name if host.gpus else ""
    peaks = gpu_peaks(name)
    if peaks:
        return peaks, f"the data sheet of {name}", ""
    return {}, "", f"no data sheet of {name or 'this GPU'} is known here: its floor cannot be told"


def _parts(
    found: Mapping[str, tuple[float, str]], step: float, techniques: Iterable[str]
) -> tuple[Part, ...]:
    known = set(techniques)
    told = {cause: entry for cause, entry in found.items() if entry[0] > 0}
    unknown = step - sum(seconds for seconds, _ in told.values())
    assert unknown >= -1e-9 * step, "the parts of a step are more than the step"
    ordered = sorted(told, key=lambda cause: (cause != FLOOR, -told[cause][0]))
    parts = [
        Part(
            cause=cause,
            seconds=told[cause][0],
            share=told[cause][0] / step,
            evidence=told[cause][1],
            techniques=tuple(name for name in ADDRESSED_BY.get(_limit(cause), ()) if name in known),
        )
        for cause in ordered
    ]
    if unknown > 1e-12 * step:
        parts.append(Part(cause=UNKNOWN, seconds=unknown, share=unknown / step))
    return tuple(parts)


def _limit(cause: str) -> str:
    return {"optimizer_gap": "optimizer", UNTOLD: "memory"}.get(cause, cause)


_NODE = re.compile(r"autograd::engine::.*|(?!Compiled)[A-Z]\w*Backward\d*|torch::autograd::\w+")


class _Division:
    """``found``: cause -> (seconds, evidence); ``above``: rows that take longer than their floor."""

    def __init__(
        self, profile: Profile, step: float, wait: float, peaks: Mapping[str, float], *, on_gpu: bool
    ) -> None:
        self.above: list[Above] = []
        self._seconds: dict[str, float] = {}
        self._floor_of: dict[str, float] = {}
        """What the floor is made of -> seconds."""
        self._calls: dict[str, int] = {}
        self._untold: list[Work] = []
        self._on_gpu = on_gpu
        self._peaks = peaks
        self._tiny = 0.0 if on_gpu else TINY_OPERATOR_SECONDS * dispatch_slowed(_as_rows(profile.work))
        busy = sum(row.seconds for row in profile.work)
        gaps = {cause: seconds for cause, seconds in profile.gaps.items() if cause != "loader"}
        if on_gpu:
            # the device's own time is hardly stretched by the profiler, the host's is
            of_work = min(1.0, step / busy) if busy else 1.0
            idle = max(0.0, step - of_work * busy)
            wait = min(wait, idle)
            of_gaps = fitted(sum(gaps.values()), idle - wait)
        else:
            wait = min(wait, step)
            of_work = of_gaps = fitted(busy + sum(gaps.values()), step - wait)
        self._add("loader", wait)
        for row in profile.work:
            self._divide(row, of_work)
        idle = of_gaps * sum(gaps.values())
        for cause, seconds in idle_by_cause(gaps, idle=idle, many=self._many(profile.work)).items():
            self._add(cause, seconds)
        # rounding alone can make the parts more than the step
        last = min(1.0, step / max(step, sum(self._seconds.values())))
        evidence = self._evidence(profile)
        self.found = {
            cause: (last * seconds, evidence.get(cause, "")) for cause, seconds in self._seconds.items()
        }

    def _add(self, cause: str, seconds: float, calls: int = 0) -> None:
        self._seconds[cause] = self._seconds.get(cause, 0.0) + seconds
        self._calls[cause] = self._calls.get(cause, 0) + calls

    def _many(self, work: Iterable[Work]) -> bool:
        rows = list(work)
        if not self._on_gpu:
            return sum(row.calls for row in rows if self._small(row)) >= MANY
        launches = sum(row.launches for row in rows)
        busy = sum(row.seconds for row in rows)
        return launches >= MANY and busy / launches < SHORT_KERNEL_SECONDS

    def _small(self, row: Work) -> bool:
        """On a CPU: mostly the price of its dispatch, by its time as profiled; a node of the backward has
        no other work than to call operators."""
        if self._on_gpu:
            return False
        return row.seconds < self._tiny * row.calls or _NODE.fullmatch(row.operator) is not None

    def _divide(self, told: Work, scale: float) -> None:
        row = replace(told, seconds=scale * told.seconds)
        kernel = row.kernels[0][0] if row.kernels else ""
        if kernel.startswith("Memcpy") and "DtoD" not in kernel:
            self._add(COPIES, row.seconds, row.launches)
            return
        if "nccl" in kernel.lower():
            self._add(COMMUNICATION, row.seconds, row.launches)
            return
        floor = floor_of(row, self._peaks)
        if floor is None:
            small = self._small(told)
            self._add("launches" if small else UNTOLD, row.seconds, row.calls)
            self._untold += [] if small else [row]
            return
        bound = f"arithmetic in {floor.precision}" if floor.arithmetic else "memory traffic"
        self._add(FLOOR, floor.seconds, row.calls)
        self._floor_of[bound] = self._floor_of.get(bound, 0.0) + floor.seconds
        beyond = row.seconds - floor.seconds
        if self._small(told):
            self._add("launches", beyond, row.calls)
            return
        self._add(_kind(row), beyond, row.calls)
        if beyond > 0:
            self.above.append(
                Above(
                    operator=row.operator,
                    kernel=kernel,
                    calls=row.calls,
                    seconds=row.seconds,
                    floor_seconds=floor.seconds,
                    bound=bound,
                )
            )

    def _evidence(self, profile: Profile) -> dict[str, str]:
        """Cause -> what shows it, in words."""
        made = sorted(self._floor_of.items(), key=lambda item: -item[1])
        launches = sum(row.launches for row in profile.work)
        words = {
            FLOOR: ", ".join(f"{1e3 * seconds:.3g} ms {what}" for what, seconds in made),
            "launches": f"{launches} kernels are launched one by one"
            if self._on_gpu
            else f"{self._calls.get('launches', 0)} operators that take less than their dispatch",
            COPIES: f"{self._calls.get(COPIES, 0)} copies between host and device",
            COMMUNICATION: f"{self._calls.get(COMMUNICATION, 0)} collective kernels",
        }
        if self._untold:
            most = max(self._untold, key=lambda row: row.seconds)
            words[UNTOLD] = f"most of it {short(most.operator or 'many small ones')} ({most.calls} calls)"
        for kind in ("compute", "attention", "memory", "optimizer"):
            mine = [row for row in self.above if _kind_of_names(row.operator, row.kernel) == kind]
            if mine:
                most_above = max(mine, key=lambda row: row.seconds - row.floor_seconds)
                words[kind] = (
                    f"most: {short(most_above.operator)} ({most_above.calls} calls), "
                    f"{1e3 * most_above.seconds:.3g} ms of which {1e3 * most_above.floor_seconds:.3g} ms "
                    f"are {most_above.bound}"
                )
        return words


def _kind(row: Work) -> str:
    return _kind_of_names(row.operator, row.kernels[0][0] if row.kernels else "")


def _kind_of_names(operator: str, kernel: str) -> str:
    kind = kind_of(operator)
    if kind == "memory" and kernel:
        kind = kind_of(kernel)
    return kind if kind != "compiling" else "memory"


def _as_rows(work: Iterable[Work]) -> list[tuple[str, int, float]]:
    """By name alone, as the profile's own table."""
    rows: dict[str, tuple[int, float]] = {}
    for row in work:
        calls, seconds = rows.get(row.operator, (0, 0.0))
        rows[row.operator] = (calls + row.calls, seconds + row.seconds)
    return [(name, calls, seconds) for name, (calls, seconds) in rows.items()]
