"""The dynamo backend shared by ``compile`` and ``sdpa``: rewrite the graph, then run or compile it."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any, Callable

_MOST_BREAKS_KEPT = 20
_entries = 0
_COMPILER = r"torch\.(_dynamo|_inductor|_functorch|_guards|_subclasses|_higher_order_ops|fx)(\.|$)"


class Backend:
    """Called by dynamo with each graph that it captured. Counts what it is given.

    ``finish(graph_module, example_inputs)`` makes the callable that runs the graph. The passes run
    first and change the graph in place; one may leave ``meta["flatout_guard"]``, a function that wraps
    what runs the graph.
    """

    def __init__(self, context: Any, finish: Callable[[Any, Any], Callable[..., Any]]) -> None:
        self._context = context
        self._finish = finish
        self.graphs = 0
        self.runs = 0
        """Graphs run so far, by any call."""
        self.seconds = 0.0
        """Spent after capture: rewriting and compiling forwards (backwards compile at first use)."""
        self.recompiles = 0
        self.recompiled_frames: dict[str, int] = {}
        self.breaks: list[dict[str, str]] = []
        self.break_count = 0

    def __call__(self, graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
        start = time.perf_counter()
        self.graphs += 1
        self._count_recompile(graph_module)
        self._count_break(graph_module)
        with quiet():
            for rewrite in self._context.graph_passes:
                rewrite(graph_module, example_inputs)
            guard = graph_module.meta.pop("flatout_guard", None)
            run = self._finish(graph_module, example_inputs)
        if guard is not None:
            run = guard(run)
        self.seconds += time.perf_counter() - start

        def counted(*inputs: Any) -> Any:
            self.runs += 1
            return run(*inputs)

        return counted

    def _count_recompile(self, graph_module: Any) -> None:
        from torch._guards import CompileContext

        identity = CompileContext.current_compile_id()
        if identity is not None and identity.frame_compile_id:
            self.recompiles += 1
            where = _first_location(graph_module) or "the model's call"
            self.recompiled_frames[where] = self.recompiled_frames.get(where, 0) + 1

    def _count_break(self, graph_module: Any) -> None:
        reason = getattr(graph_module, "compile_subgraph_reason", None)
        if reason is None or not getattr(reason, "graph_break", False):
            return
        self.break_count += 1
        if len(self.breaks) < _MOST_BREAKS_KEPT:
            stack = getattr(reason, "user_stack", None) or []
            where = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else ""
            self.breaks.append({"where": where, "reason": str(reason.reason).strip().split("\n")[0][:300]})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings: the compiler's own imports give some, and the program may have made them errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def capture(
    torch: Any, call: Callable[..., Any], backend: Backend, dynamic: Any = None
) -> Callable[..., Any]:
    """``call`` through ``torch.compile`` and ``backend``.

    Dynamo itself touches what warns (``.grad`` of tensors that are no leaves, deprecated modules), which
    is no word of the program's and would end one that made warnings errors.
    """
    warnings.filterwarnings("ignore", module=_COMPILER)
    with quiet():
        compiled: Callable[..., Any] = torch.compile(_entry(call), backend=backend, dynamic=dynamic)
    return compiled


def compiled_by_program(module: Any, call: Callable[..., Any]) -> bool:
    """Whether the program compiles this call, its module, or a module inside."""
    if hasattr(call, "_torchdynamo_orig_callable"):
        return True
    for child in module.modules():
        if "_orig_mod" in child._modules:
            return True
        own = child.__dict__.get("_compiled_call_impl") if child is not module else None
        if own is not None and hasattr(own, "_torchdynamo_orig_callable"):
            return True
    return False


def _entry(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a file that dynamo looks into.

    It passes over ``Module._call_impl`` itself, so that torch's own ``module.compile()`` compiles nothing
    of a module whose ``forward`` is torch's (``Sequential``, ``TransformerEncoderLayer``), up to 2.13.
    """
    global _entries

    def training_call(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    # Dynamo counts recompiles by code object: each unit gets one of its own.
    _entries += 1
    training_call.__code__ = training_call.__code__.replace(co_name=f"training_call_{_entries}")
    return training_call


def _first_location(graph_module: Any) -> str:
    """``file:line`` of the first operation of the user's in a graph."""
    for node in graph_module.graph.nodes:
        where = location(node)
        if where and node.op != "placeholder":
            return where
    return ""


def location(node: Any) -> str:
    """``file:line`` of the user's line that made a node, or empty."""
    trace = (node.meta.get("stack_trace") or "").split("\n")
    lines = [line for line in trace if 'File "' in line and __file__ not in line]
    if not lines:
        return ""
    parts = lines[-1].strip().split('"')
    number = parts[2].split("line ")[-1].split(",")[0] if len(parts) > 2 else "?"
    return f"{parts[1]}:{number}"
