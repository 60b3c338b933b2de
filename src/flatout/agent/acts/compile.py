"""torch.compile of the training call, in place."""

from __future__ import annotations

from typing import Any, Callable

from ..refused import Refused
from .base import Act as _Base
from .graph_backend import Backend, capture, quiet

_MOST_RECOMPILING_STEPS = 4


class Act(_Base):
    """Compiles what the unit's training call runs; ``state_dict`` keys and ``isinstance`` stay.

    Settings: ``dynamic`` as in torch.compile: absent or None lets it find out, True from the start.
    """

    name = "compile"

    def __init__(self, settings: dict[str, Any], context: Any) -> None:
        super().__init__(settings, context)
        self._dynamic = settings.get("dynamic")
        self._backend: Backend | None = None
        self._calls = 0
        self._eager_calls = 0
        self._last_call_compiled = False
        self._recompiles_before_step = 0
        self._recompiling_steps = 0

    def wrap(self, unit: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        torch = self.context.torch
        if self._backend is None:
            self._backend = Backend(self.context, _inductor)
        backend = self._backend
        compiled = capture(torch, call, backend, self._dynamic)
        failures = _compiler_errors()

        def training_call(*args: Any, **kwargs: Any) -> Any:
            runs = backend.runs
            try:
                result = compiled(*args, **kwargs)
            except failures as error:
                raise Refused(f"torch.compile failed: {_first_line(error)}") from error
            self._calls += 1
            self._last_call_compiled = backend.runs > runs
            if not self._last_call_compiled:
                self._eager_calls += 1
            return result

        return training_call

    def after_step(self, step: int) -> None:
        backend = self._backend
        if backend is None or not self._calls:
            return
        if not self._last_call_compiled:
            if backend.graphs == 0:
                raise Refused("torch.compile found no graph to compile in the training call")
            raise Refused(
                f"torch.compile gave up and runs without compiling at step {step}, after "
                f"{self._recompiled()}{self._advice()}"
            )
        if backend.recompiles > self._recompiles_before_step:
            self._recompiles_before_step = backend.recompiles
            self._recompiling_steps += 1
            if self._recompiling_steps > _MOST_RECOMPILING_STEPS:
                raise Refused(
                    f"torch.compile compiled again in {self._recompiling_steps} of {step} steps: "
                    f"{self._recompiled()}{self._advice()}"
                )

    def _recompiled(self) -> str:
        backend = self._backend
        if backend is None:
            return "0 recompiles"
        frames = sorted(backend.recompiled_frames.items(), key=lambda item: -item[1])
        where = f", most at {frames[0][0]}" if frames else ""
        return f"{backend.recompiles} recompiles{where}"

    def _advice(self) -> str:
        if self._dynamic:
            return "; its inputs change in more than their lengths: leave compile out"
        return "; lengths change: dynamic=True, or pad to a few lengths"

    def evidence(self) -> dict[str, Any]:
        backend = self._backend
        if backend is None:
            return {"calls": 0, "graphs": 0}
        return {
            "calls": self._calls,
            "eager_calls": self._eager_calls,
            "last_call_compiled": self._last_call_compiled,
            "graphs": backend.graphs,
            "graph_runs": backend.runs,
            "compile_seconds": round(backend.seconds, 3),
            "recompiles": backend.recompiles,
            "recompiled_at": dict(backend.recompiled_frames),
            "recompiling_steps": self._recompiling_steps,
            "graph_breaks": backend.break_count,
            "breaks": list(backend.breaks),
            "dynamic": self._dynamic,
            **_cached(),
        }


def _cached() -> dict[str, int]:
    """How often the compiler found in its cache what it needed; nothing where torch does not count."""
    try:
        from torch._dynamo.utils import counters
    except ImportError:
        return {}
    pairs = (("aot_autograd", "autograd_cache"), ("inductor", "fxgraph_cache"))
    return {
        f"cache_{what}": sum(int(counters[group][f"{name}_{word}"]) for group, name in pairs)
        for what, word in (("hits", "hit"), ("misses", "miss"))
    }


def _inductor(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    result: Callable[..., Any] = compile_fx(graph_module, example_inputs)
    return result


def _compiler_errors() -> tuple[type[BaseException], ...]:
    """What torch raises when compiling itself fails, as opposed to the program's own errors."""
    import torch._dynamo.exc

    kinds: list[type[BaseException]] = [torch._dynamo.exc.TorchDynamoException]
    try:
        with quiet():
            from torch._inductor import exc
    except ImportError:
        return tuple(kinds)
    kinds += [getattr(exc, name) for name in ("InductorError", "CppCompileError") if hasattr(exc, name)]
    return tuple(kinds)


def _first_line(error: BaseException) -> str:
    """What went wrong, without the frame that dynamo puts around it."""
    error = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
