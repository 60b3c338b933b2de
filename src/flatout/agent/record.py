"""What one block of steps between two holds showed: times, losses, waiting, the agent's own cost.

Nothing here makes the host wait for the device before the hold: step ends are CUDA events on a GPU,
losses stay where they are. Reading them is the hold's business.
"""

from __future__ import annotations

import math
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_PENDING_LOSSES = 4096
STARVED_SHARE = 0.02
"""Of a step spent waiting for the loader: from here on, batches prefetched in a hold spoil its times."""


class Clock:
    """Marks moments on the device's own time line where there is one, else on the host's."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._free: list[Any] = []
        """Events to record again: making one costs the driver more than recording it."""
        self.on_gpu = False

    def use(self, device: str) -> None:
        self.on_gpu = device == "cuda"

    def mark(self) -> Any:
        if self.on_gpu:
            event = self._free.pop() if self._free else self._torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()

    def release(self, marks: list[Any]) -> None:
        """Marks that nothing will be asked of any more."""
        self._free.extend(mark for mark in marks if not isinstance(mark, float))

    def seconds(self, start: Any, end: Any) -> float | None:
        """Between two marks; None where one of them was made before the device was known."""
        if isinstance(start, float):
            return end - start if isinstance(end, float) else None
        if isinstance(end, float):
            return None
        return float(start.elapsed_time(end)) / 1000.0

    def wait(self) -> None:
        """Until every device that this process uses has done all that was asked of it."""
        cuda = self._torch.cuda
        if cuda.is_available() and cuda.is_initialized():
            cuda.synchronize()
            for device in range(cuda.device_count()):
                # asking a device for which there is no context yet would make one
                if device != cuda.current_device() and cuda.memory_reserved(device):
                    cuda.synchronize(device)


class Loss:
    """One backward's loss, unscaled, still on its device."""

    __slots__ = ("_version", "step", "tensor")

    def __init__(self, step: int, tensor: Any) -> None:
        self.step = step
        self.tensor = tensor
        self._version = tensor._version

    def value(self) -> float | None:
        """None where the program has changed its loss in place since."""
        return float(self.tensor.item()) if self.tensor._version == self._version else None


class Block:
    """Filled step by step, flushed at a hold."""

    def __init__(self, clock: Clock, first_step: int) -> None:
        self.clock = clock
        self.first_step = first_step
        self.after_hold = False
        """False in the first block, which begins with the program itself."""
        self.held_seconds = 0.0
        self.held_still = False
        """Its workers and threads were stopped in the hold before it, and prepared nothing meanwhile."""
        self.ends: list[Any] = []
        self.waits: list[float] = []
        """Seconds waited for loaders inside each step."""
        self.losses: list[Loss] = []
        self.read_losses: list[list[Any]] = []
        self.lost_losses = 0
        self.agent_ns = 0
        self.wait_seconds = 0.0
        self.start_wait_seconds = 0.0
        """Of that, for the first batch of an epoch: workers that start."""
        self.pending_wait = 0.0
        self.batches = 0
        self.wall_start = time.perf_counter()

    def add_wait(self, seconds: float, *, first: bool = False) -> None:
        self.pending_wait += seconds
        self.wait_seconds += seconds
        if first:
            self.start_wait_seconds += seconds
        self.batches += 1

    def end_step(self) -> None:
        self.ends.append(self.clock.mark())
        self.waits.append(self.pending_wait)
        self.pending_wait = 0.0
        if len(self.losses) >= MOST_PENDING_LOSSES:
            self.read()

    def read(self) -> None:
        """Fetch the losses. Waits for the device."""
        for loss in self.losses:
            value = loss.value()
            if value is None:
                self.lost_losses += 1
            else:
                self.read_losses.append([loss.step, value])
        self.losses.clear()

    def step_seconds(self, prefetched_batches: int) -> list[float | None]:
        """One per step; None for the first after a hold, and for those that a starving loader had
        prepared meanwhile. Call after ``clock.wait()``."""
        seconds: list[float | None] = []
        for place, end in enumerate(self.ends):
            seconds.append(None if place == 0 else self.clock.seconds(self.ends[place - 1], end))
        if not seconds or not self.after_hold or self.held_still:
            return seconds
        per_step = max(1.0, self.batches / len(seconds))
        most = 1 + math.ceil(prefetched_batches / per_step)
        known = [(w, s) for w, s in zip(self.waits, seconds) if s]
        later = [(w, s) for w, s in zip(self.waits[most:], seconds[most:]) if s]
        judged = later or known
        if judged and sum(w for w, _ in judged) > STARVED_SHARE * sum(s for _, s in judged):
            # a loader that starves the program makes no more in a hold than what steps of that length take
            step = sum(s for _, s in later) / len(later) if later else max(s for _, s in known)
            prepared = min(most, 1 + math.ceil(self.held_seconds / step))
            seconds[1:prepared] = [None] * (prepared - 1)
        return seconds

    def event(self, torch: Any, prefetched_batches: int) -> dict[str, Any]:
        """The ``block`` event. Waits for the device."""
        self.clock.wait()
        wall = time.perf_counter() - self.wall_start
        self.read()
        seconds = self.step_seconds(prefetched_batches)
        self.clock.release(self.ends)
        return {
            "event": "block",
            "first_step": self.first_step,
            "steps": len(self.ends),
            "step_seconds": seconds,
            "losses": self.read_losses,
            "loader_wait_seconds": self.wait_seconds,
            "loader_start_seconds": self.start_wait_seconds,
            "agent_seconds": self.agent_ns / 1e9,
            "peak_bytes": _peak_bytes(torch),
            "wall_seconds": wall,
        }


def _peak_bytes(torch: Any) -> int:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    return 0


def compile_counts() -> dict[str, int]:
    """Recompiles and graph breaks of the whole process so far; nil where nothing was compiled."""
    import sys

    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {"recompiles": 0, "graph_breaks": 0}
    counters = utils.counters
    return {
        "recompiles": _recompiles(sys.modules),
        "graph_breaks": int(sum(counters["graph_break"].values())) if "graph_break" in counters else 0,
    }


def _recompiles(modules: Any) -> int:
    """Compilations of a piece of code beyond its first, from the compiler's own cache entries."""
    convert = modules.get("torch._dynamo.convert_frame")
    frame_compile_id = getattr(convert, "FRAME_COMPILE_COUNTER", None)
    if not frame_compile_id:
        return 0
    return int(sum(max(0, count - 1) for count in frame_compile_id.values()))
