"""One profiled step as a line of time: each instant is given to a kernel (on a CPU: an operator), or to
what the host did while the device had nothing to do.

Where several kernels run at once, each gets its part of the instant (copies and collectives only where
no kernel hides them), so that the parts sum to the union of all intervals, and with the gaps to the whole
span. Kernels are told by the operator that launched them, with the shapes and dtypes of its inputs: what a
kernel has to compute and to move at least follows from these.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_ROWS = 160
MOST_EVENTS = 400_000
"""Beyond this many, reading them would take longer than the step is worth."""
MOST_INPUTS = 12
KERNELS_OF_A_ROW = 3

LOADER, COMPILING, SYNC, OPTIMIZER, OPERATOR = "loader", "compiling", "sync", "optimizer", "launches"
PYTHON = "python"
_KERNEL, _BESIDE = "kernel", "beside"
_PRIORITY = (LOADER, COMPILING, OPTIMIZER, OPERATOR)
_SYNCS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cudaMemcpy",
)
_COMPILING = (
    "compile_fx",
    "_compile.",
    "backend_compile",
    "inductor_compile",
    "aot_",
    "create_aot",
    "FakeTensor",
)
RANGES = (
    "Optimizer.",
    "ProfilerStep",
    "enumerate(DataLoader)",
    "DataLoader",
    "TorchDynamo Cache Lookup",
    "## Call",
    "[pl]",
    "PyTorch Profiler",
)
"""Ranges around work, that are no work themselves."""
_NUMBERS_OF = ("conv", "attention")
"""Operators whose arithmetic depends on more than the shapes of their inputs."""


def lay_out(raw: Any, wall_seconds: float) -> dict[str, Any]:
    """``work`` rows, ``gaps`` by what the host did, and ``span_seconds``, to which both sum.

    ``raw``: kineto's own events. A row: operator, inputs ([dtype, shape] each), numbers, calls, seconds,
    kernels launched, [[kernel, seconds], ...].
    """
    events = [event for event in raw if _end(event) > _start(event)]
    if len(events) > MOST_EVENTS:
        return {}
    host: list[Any] = []
    device: list[Any] = []
    for event in events:
        (host if event.device_type().name == "CPU" else device).append(event)
    names = {event.name() for event in host}
    device = [event for event in device if not drawn_there(event.name(), names)]
    host = [event for event in host if not event.is_async()]
    line = _OnDevice(host, device) if device else _OnHost(host)
    line.sweep()
    inside = sum(line.seconds.values()) + sum(line.gaps.values())
    span = max(wall_seconds, inside)
    line.gaps[PYTHON] = line.gaps.get(PYTHON, 0.0) + span - inside
    return {
        "work": _rows(line),
        "gaps": {cause: seconds for cause, seconds in line.gaps.items() if seconds > 0},
        "span_seconds": span,
    }


class _Line:
    """A sweep over the ends of intervals. ``seconds``: by number of the event that the time belongs to."""

    def __init__(self, host: list[Any], owners: list[Any]) -> None:
        self.host = host
        self.owners = owners
        self.seconds: dict[int, float] = {}
        self.gaps: dict[str, float] = {}
        self.over: int | None = None
        """Where the last kernel ends, in ns: what the host does later has no kernel to be late for."""
        self._active: dict[str, int] = {}

    def sweep(self) -> None:
        ends = []
        for number, (event, what) in enumerate(self._intervals()):
            start, end = _start(event), _end(event)
            if self.over is not None:
                end = min(end, self.over)
            # at one instant ends come before starts, inner ones first; outer starts come before inner ones
            ends.append((start, 1, -end, number, event, what))
            ends.append((end, 0, -start, number, event, what))
        ends.sort(key=lambda entry: entry[:4])
        reached = ends[0][0] if ends else 0
        for time, opens, _, number, event, what in ends:
            if time > reached:
                self._give((time - reached) / 1e9)
                reached = time
            if opens:
                self._open(number, event, what)
            else:
                self._close(number, event, what)

    def _intervals(self) -> list[tuple[Any, str]]:
        raise NotImplementedError

    def _open(self, number: int, event: Any, what: str) -> None:
        raise NotImplementedError

    def _close(self, number: int, event: Any, what: str) -> None:
        raise NotImplementedError

    def _give(self, seconds: float) -> None:
        raise NotImplementedError

    def _count(self, what: str, change: int) -> None:
        self._active[what] = self._active.get(what, 0) + change

    def _gap(self, cause: str, seconds: float) -> None:
        self.gaps[cause] = self.gaps.get(cause, 0.0) + seconds


class _OnDevice(_Line):
    """Kernels own the time; in between, what the host was at."""

    def __init__(self, host: list[Any], device: list[Any]) -> None:
        super().__init__(host, device)
        self._running: set[int] = set()
        self._beside: set[int] = set()
        """Copies and collectives that run: behind a kernel they cost nothing."""
        self._drained = False
        """The host has waited for the device until it was idle: what follows is the price of that."""

    def _intervals(self) -> list[tuple[Any, str]]:
        found = [(event, _device_kind(event.name())) for event in self.owners]
        self.over = max(map(_end, self.owners))
        for event in self.host:
            if _start(event) < self.over:
                found.append((event, _host_kind(event.name())))
        return found

    def _open(self, number: int, event: Any, what: str) -> None:
        if what in (_KERNEL, _BESIDE):
            (self._running if what == _KERNEL else self._beside).add(number)
            self._drained = False
        else:
            self._count(what, 1)

    def _close(self, number: int, event: Any, what: str) -> None:
        if what in (_KERNEL, _BESIDE):
            (self._running if what == _KERNEL else self._beside).discard(number)
            return
        self._count(what, -1)
        if what == SYNC and not self._running and not self._beside:
            self._drained = True

    def _give(self, seconds: float) -> None:
        running = self._running or self._beside
        if running:
            part = seconds / len(running)
            for number in running:
                self.seconds[number] = self.seconds.get(number, 0.0) + part
            return
        cause = next((one for one in _PRIORITY if self._active.get(one)), PYTHON)
        if cause not in (LOADER, COMPILING) and (self._drained or self._active.get(SYNC)):
            cause = SYNC
        self._gap(cause, seconds)


class _OnHost(_Line):
    """The innermost operator of a thread owns the time; in between is Python."""

    def __init__(self, host: list[Any]) -> None:
        super().__init__(host, host)
        self._stacks: dict[int, list[int]] = {}

    def _intervals(self) -> list[tuple[Any, str]]:
        return [(event, _host_kind(event.name())) for event in self.owners]

    def _is_work(self, event: Any, what: str) -> bool:
        return what not in (LOADER, COMPILING) and not event.name().startswith(RANGES)

    def _open(self, number: int, event: Any, what: str) -> None:
        self._count(what, 1)
        if self._is_work(event, what):
            self._stacks.setdefault(event.start_thread_id(), []).append(number)

    def _close(self, number: int, event: Any, what: str) -> None:
        self._count(what, -1)
        stack = self._stacks.get(event.start_thread_id(), [])
        if number in stack:
            stack.remove(number)

    def _give(self, seconds: float) -> None:
        if self._active.get(LOADER):
            self._gap(LOADER, seconds)
            return
        if self._active.get(COMPILING):
            self._gap(COMPILING, seconds)
            return
        inner = [stack[-1] for stack in self._stacks.values() if stack]
        for number in inner:
            self.seconds[number] = self.seconds.get(number, 0.0) + seconds / len(inner)
        if not inner:
            self._gap(OPTIMIZER if self._active.get(OPTIMIZER) else PYTHON, seconds)


def _start(event: Any) -> int:
    """In ns; an older torch tells microseconds."""
    return int(event.start_ns() if hasattr(event, "start_ns") else 1000 * event.start_us())


def _end(event: Any) -> int:
    if hasattr(event, "duration_ns"):
        return _start(event) + int(event.duration_ns())
    return _start(event) + 1000 * int(event.duration_us())


def _device_kind(name: str) -> str:
    return _BESIDE if name.startswith("Memcpy") or "nccl" in name.lower() else _KERNEL


def _host_kind(name: str) -> str:
    if name.startswith(("enumerate(DataLoader)", "DataLoader")):
        return LOADER
    if name.startswith(_SYNCS) and not name.startswith("cudaMemcpyAsync"):
        return SYNC
    if name.startswith("Optimizer."):
        return OPTIMIZER
    if any(part in name for part in _COMPILING):
        return COMPILING
    return "range" if name.startswith(RANGES) else OPERATOR


def drawn_there(name: str, host_names: set[str]) -> bool:
    """It is a range of the host's, drawn on the device's time line. Inductor's own kernels are called as
    the host's event that launches them."""
    return name in host_names and not name.startswith("triton_")


def _rows(line: _Line) -> list[list[Any]]:
    # an operator launches its kernels under its correlation number
    launchers = {}
    if isinstance(line, _OnDevice):
        for event in line.host:
            number = event.correlation_id()
            # calls of the CUDA runtime are numbered by themselves
            if number and not event.linked_correlation_id() and not event.name().startswith("cu"):
                launchers[number] = event
    rows: dict[Any, dict[str, Any]] = {}
    for number, event in enumerate(line.owners):
        seconds = line.seconds.get(number)
        if seconds is None:
            continue
        launcher = launchers.get(event.linked_correlation_id()) if isinstance(line, _OnDevice) else event
        key = _described(launcher) if launcher is not None else ("", (), ())
        if not key[0]:
            key = (event.name()[:200], (), ())
        row = rows.setdefault(key, {"calls": set(), "seconds": 0.0, "launches": 0, "kernels": {}})
        row["calls"].add(launcher.correlation_id() if launcher is not None else -number)
        row["seconds"] += seconds
        row["launches"] += 1
        if isinstance(line, _OnDevice):
            kernels = row["kernels"]
            kernels[event.name()] = kernels.get(event.name(), 0.0) + seconds
    ordered = sorted(rows.items(), key=lambda item: -item[1]["seconds"])
    told = [
        [
            name,
            [[dtype, list(shape)] for dtype, shape in inputs],
            [list(number) for number in numbers],
            len(row["calls"]),
            row["seconds"],
            row["launches"],
            [
                [kernel[:120], seconds]
                for kernel, seconds in sorted(row["kernels"].items(), key=lambda item: -item[1])
            ][:KERNELS_OF_A_ROW],
        ]
        for (name, inputs, numbers), row in ordered[:MOST_ROWS]
    ]
    rest = [row for _, row in ordered[MOST_ROWS:]]
    if rest:
        told.append(
            [
                "",
                [],
                [],
                sum(len(row["calls"]) for row in rest),
                sum(row["seconds"] for row in rest),
                sum(row["launches"] for row in rest),
                [],
            ]
        )
    return told


def _described(event: Any) -> tuple[str, tuple[Any, ...], tuple[Any, ...]]:
    """(operator, its tensor inputs as (dtype, shape), its numbers where they matter). A list of tensors is
    one input of so many elements, its dtype ``list``; of no shape where this torch does not tell."""
    name = event.name()[:200]
    dtypes = list(event.dtypes())[:MOST_INPUTS]
    plain = list(event.shapes())
    structured = getattr(event, "structured_input_shapes", None)
    shapes = list(structured()) if structured is not None else plain
    inputs = []
    for place, dtype in enumerate(dtypes):
        shape = shapes[place] if place < len(shapes) else []
        if dtype == "TensorList":
            elements = sum(_elements(one) for one in shape if isinstance(one, (list, tuple)))
            inputs.append(("list", (elements,) if structured is not None else ()))
        elif dtype and not dtype.startswith("Scalar"):
            inputs.append((dtype, tuple(shape)))
    numbers: tuple[Any, ...] = ()
    if any(part in name for part in _NUMBERS_OF):
        concrete = getattr(event, "concrete_inputs", None)
        numbers = tuple(map(_number, concrete() if concrete is not None else ()))
    return name, tuple(inputs), numbers


def _elements(shape: Any) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _number(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(map(int, values)) if all(isinstance(one, (bool, int)) for one in values) else ()


def measure_cpu(torch: Any, *, low: bool) -> dict[str, float]:
    """What this CPU reaches with the program's own threads: FLOP/s of a product of 512 x 512 matrices (also
    in BF16 where ``low``), bytes/s of a copy of 16 MiB; the best of many, about 0.25 s."""
    import time

    def best(call: Any, budget: float) -> float:
        call()
        least, began = float("inf"), time.perf_counter()
        while time.perf_counter() - began < budget:
            start = time.perf_counter()
            call()
            least = min(least, time.perf_counter() - start)
        return least

    found = {}
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for name in ("float32", "bfloat16") if low else ("float32",):
            a = torch.full((512, 512), 0.5, dtype=getattr(torch, name), device="cpu")
            out = torch.empty_like(a)
            found[name] = 2 * 512**3 / best(lambda a=a, out=out: torch.mm(a, a, out=out), 0.05)
        source = torch.zeros(4 << 20, dtype=torch.float32, device="cpu")
        target = torch.empty_like(source)
        found["bytes"] = 2 * 4 * (4 << 20) / best(lambda: target.copy_(source), 0.1)
    return found
