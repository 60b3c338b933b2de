"""Processes that are started before their turn, several at once.

Ten seconds to over a minute pass until a program's first step (imports, data, compilation), most of it on
one core. Where cores and memory allow, what will be needed next starts together, and beside the guard's own
trials, which nobody times: a candidate, its guard's trial, and those of the candidate that comes on top of
it. Each holds after its first step until ``Bench.start`` hands it out. Nothing is timed while one is still
on its way: ``Process.advance`` asks ``arrive`` first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flatout.plan import Plan
from flatout.runners import GuardTrial, SessionEnded

if TYPE_CHECKING:
    from flatout.search.bench import Bench, Process

CORES_OF_A_START = 2
"""Of the machine's, for each rank of a process that starts beside others: its own and its loader's."""


class Ahead:
    """The processes of one bench that wait for their turn."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._waiting: dict[str, Process] = {}
        self._arriving: list[Process] = []
        self._crowded = False
        """One ran out of memory beside others: this program takes more than the estimate."""

    def has(self, key: str) -> bool:
        return key in self._waiting

    def start(
        self,
        key: str,
        plan: Plan,
        *,
        reserve_seconds: float = 0.0,
        guard: GuardTrial | None = None,
        randomness_off: bool = False,
    ) -> bool:
        """Start it, if the machine has room for one more. False where it has not."""
        if self.has(key):
            return True
        if self.room() < 1:
            return False
        process = self._bench.start(
            key,
            plan,
            reserve_seconds=reserve_seconds,
            guard=guard,
            randomness_off=randomness_off,
            reference_role=None if guard else "compare",
        )
        self._waiting[key] = process
        self._arriving.append(process)
        return True

    def start_all(self, plans: Mapping[str, Plan], *, reserve_seconds: float = 0.0) -> None:
        """Start these (key -> plan) in their order, as many as there is room for; none while one of them
        still waits, so that those of one round arrive together."""
        if any(map(self.has, plans)):
            return
        for key, plan in plans.items():
            if not self.start(key, plan, reserve_seconds=reserve_seconds):
                return

    def take(self, key: str, plan: Plan, guard: GuardTrial | None = None) -> Process | None:
        """The process that was started for this key, or None. One that failed on its way is handed out too:
        its first ``advance`` says so. Not where memory was short: then each starts in its turn from now
        on."""
        process = self._waiting.pop(key, None)
        if process is None:
            return None
        if process.failed == "OutOfMemory":
            self._crowded = True
            self.keep_only()
        elif process.plan == plan and process.guard == guard and (process.alive or process.failed):
            return process
        self._end(process)
        return None

    def arrive(self, asking: Process) -> None:
        """Wait until all but ``asking`` have taken their first step and hold."""
        arriving, self._arriving = self._arriving, []
        for process in arriving:
            if process is not asking and process.alive and not process.steps:
                with contextlib.suppress(SessionEnded):
                    process.advance(1)

    def keep_only(self, *keys: str) -> None:
        """End all others; nothing of them is written down."""
        for key in set(self._waiting) - set(keys):
            self._end(self._waiting.pop(key))

    def keep_extending(self, plan: Plan) -> None:
        """End all whose plan has not all techniques of this one."""
        names = set(plan.names)
        self.keep_only(*(key for key, process in self._waiting.items() if names <= set(process.plan.names)))

    def _end(self, process: Process) -> None:
        self._arriving = [one for one in self._arriving if one is not process]
        if process.alive:
            process.kill()
            self._bench.live = [one for one in self._bench.live if one is not process]

    @property
    def possible(self) -> bool:
        """This machine has room for more than one that starts, memory apart."""
        return self._most() > 1

    def _most(self) -> int:
        """How many may be on their way at once, by cores."""
        discovery = self._bench.discovery
        if discovery is None or not discovery.device.startswith("cuda"):
            return 0  # on a CPU two that start take each other's time
        return self._bench.host.cpu_count // (CORES_OF_A_START * max(1, discovery.world_size))

    def room(self) -> int:
        """How many processes may be started now beside those that live."""
        bench, baseline = self._bench, self._bench.baseline
        if baseline is None or not bench.resident or self._crowded:
            return 0
        most = self._most() - sum(process.alive and not process.steps for process in bench.live)
        shown = [process.shown() for process in bench.live if process.alive]
        room = 0
        # techniques seldom take more memory than the untouched program
        while room < most and bench.fits(*shown, *[baseline] * (room + 1)):
            room += 1
        return room
