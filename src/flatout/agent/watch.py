"""The light watch of a real job: is the loss still a number, do all parameters move, are steps skipped?

Nothing waits for the device: a loss is copied to pinned memory with an event and read some steps later.
The interval grows until all of it costs less than a thousandth of the time.
"""

from __future__ import annotations

import math
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIRST_INTERVAL_STEPS = 8
LONGEST_INTERVAL_STEPS = 4096
LARGEST_SHARE = 0.001
MOVED_AFTER_STEPS = 20
MOST_TRIES = 5
SKIPPED_SHARE = 0.2
SKIPPED_OF_STEPS = 200


class Watch:
    """Emits ``watch`` events; each kind of trouble once."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.torch = training.torch
        self.interval = FIRST_INTERVAL_STEPS
        self.cost_ns = 0
        self.skipped = 0
        self._started = time.perf_counter_ns()
        self._last: Any = None
        self._pending: tuple[int, Any, Any] | None = None
        self._told: set[str] = set()
        self._norms: Any = None
        self._parameters: list[Any] = []
        self._tries = 0
        self._first_step: int | None = None

    def loss(self, loss: Any) -> None:
        """Called before each backward. Keeps no graph alive, and copies nothing by itself."""
        if (self.training.steps.taken + 1) % self.interval == 0:
            self._last = loss.detach()

    def step(self, taken: int) -> None:
        """Called after each step."""
        start = time.perf_counter_ns()
        if self._pending is not None:
            self._read()
        if taken % self.interval == 0 and self._last is not None and self._pending is None:
            self._ask(taken)
            self._adapt(start)
        if self._first_step is None:
            self._first_step = taken
            self._remember_parameters()
        elif self._parameters and taken == self._first_step + MOVED_AFTER_STEPS * (self._tries + 1):
            self._look_at_parameters(taken)
        if taken == SKIPPED_OF_STEPS and self.skipped > SKIPPED_SHARE * taken:
            self._tell(taken, "skipped_steps", f"the scaler skipped {self.skipped} of {taken} steps")
        self.cost_ns += time.perf_counter_ns() - start

    def _adapt(self, now: int) -> None:
        elapsed = max(1, now - self._started)
        if self.cost_ns > LARGEST_SHARE * elapsed and self.interval < LONGEST_INTERVAL_STEPS:
            self.interval *= 2

    def _ask(self, taken: int) -> None:
        last, self._last = self._last, None
        if last.device.type == "cuda":
            host = self.torch.empty(last.shape, dtype=last.dtype, pin_memory=True)
            host.copy_(last, non_blocking=True)
            event = self.torch.cuda.Event()
            event.record()
            self._pending = (taken, host, event)
        else:
            self._pending = (taken, last.clone(), None)
            self._read()

    def _read(self) -> None:
        if self._pending is None:
            return
        taken, host, event = self._pending
        if event is not None and not event.query():
            return
        self._pending = None
        value = float(host.double().sum().item())
        if not math.isfinite(value):
            self._tell(taken, "nan_loss", f"the loss is {value}")

    def _remember_parameters(self) -> None:
        """Norms after the first step, to be compared to the bit some steps later."""
        seen: dict[int, Any] = {}
        for optimizer in self.training.steps.stepped() or self.training.made:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad and parameter.grad is not None and parameter.numel():
                        seen[id(parameter)] = parameter
        self._parameters = list(seen.values())
        self._norms = self._measure()

    def _measure(self) -> list[Any]:
        with self.torch.no_grad():
            return [parameter.detach().norm() for parameter in self._parameters]

    def _look_at_parameters(self, taken: int) -> None:
        now = self._measure()
        same = [place for place, (a, b) in enumerate(zip(self._norms, now)) if bool((a == b).item())]
        self._tries += 1
        if len(same) == len(now) and self._tries < MOST_TRIES:
            return  # a learning rate that warms up from nil moves nothing at first
        if same:
            over = taken - (self._first_step or 0)
            shapes = ", ".join(str(tuple(self._parameters[place].shape)) for place in same[:5])
            self._tell(
                taken,
                "frozen_parameter",
                f"{len(same)} of {len(now)} trained parameters did not move in {over} steps: {shapes}",
            )
        self._parameters = []
        self._norms = None

    def _tell(self, step: int, what: str, detail: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self.training.guest.emit({"event": "watch", "step": step, "what": what, "detail": detail})
