"""Holding still at the end of a step, until flatout grants more or says stop."""

from __future__ import annotations

import os
import time

from .protocol import PROFILE, STOP, Control

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIRST_SLEEP_SECONDS = 50e-6
LONGEST_SLEEP_SECONDS = 1e-3


class Hold:
    """Obeys the control block. A real job has none, and is never held."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.guest = training.guest
        self.rank = self.guest.file.rank
        self.follows = self.guest.file.first
        """A second process that trains beside the measured one is not held, lest the two wait for each
        other; it only ends with it."""
        self.control: Control | None = None
        self.profiler: Any = None
        if training.spec.mode == "trial":
            self.control = Control(os.path.join(training.spec.trial_dir, "control"))
            if self.follows:
                self.guest.emit({"event": "holds", "pid": os.getpid()})

    def step_ended(self, taken: int) -> None:
        control = self.control
        if control is None:
            return
        if not self.follows:
            if control.command == STOP:
                self._stop(taken)
            return
        start = time.perf_counter_ns()
        if self.profiler is not None:
            profiler, self.profiler = self.profiler, None
            self.guest.emit(profiler.stop())
            self.training.profiled()
        if taken < control.granted:
            control.set_steps(self.rank, taken)
            return
        self.training.flush()
        control.set_steps(self.rank, taken)
        self._wait(control, taken)
        held_ns = time.perf_counter_ns() - start
        self.training.held_ns += held_ns
        block = self.training.block
        block.held_seconds = held_ns / 1e9
        block.after_hold = True
        block.held_still = control.still
        block.wall_start = time.perf_counter()

    def _wait(self, control: Control, taken: int) -> None:
        pause = FIRST_SLEEP_SECONDS
        while True:
            if control.command == STOP:
                self._stop(taken)
            if control.granted > taken:
                break
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_SLEEP_SECONDS)
        # Read after the grant, which is written after it.
        if control.command == PROFILE and self.rank == 0:
            from .profiling import Profiler

            self.profiler = Profiler.start(self.training.torch)

    def _stop(self, taken: int) -> None:
        if self.follows:
            self.training.finish(flush=False)
            self.training.profiled()
        self.guest.emit({"event": "end", "reason": "stopped by flatout", "steps": taken})
        self.guest.leave(0)
