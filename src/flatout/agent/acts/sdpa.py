"""SDPA: hand-written attention through torch's fused attention kernels."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable

from ..refused import Refused
from .attention_rewrite import rewrite_attention
from .base import Act as _Base
from .graph_backend import Backend, capture, compiled_by_program, quiet
from .graph_mask import kept_tensors
from .mask_guard import guarded

_ENOUGH_STEPS = 3
_MOST_KEPT = 64


class Act(_Base):
    """Rewrites attention in the graph of the training call; switches Hugging Face models by their name.

    With ``compile`` in the plan the rewrite is a pass in its backend. Without it, the call is captured
    as a graph, rewritten, and that graph run as it stands, by eager kernels.
    """

    name = "sdpa"

    def __init__(self, settings: dict[str, Any], context: Any) -> None:
        super().__init__(settings, context)
        self._units: list[Any] = []
        """Weak references: the program may train another model later."""
        self._backend: Backend | None = None
        self._switched: list[str] = []
        self._sites: list[dict[str, Any]] = []
        self._rewritten = 0
        self._left: list[dict[str, str]] = []
        self._changed = ""
        self._calls = 0
        self._runs_of_rewritten = 0
        self._in_inductor = False

    def on_torch(self, torch: Any) -> None:
        self.context.graph_passes.append(self._rewrite)

    def wrap(self, unit: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        torch = self.context.torch
        self._units.append(weakref.ref(unit.module))
        self._switched.extend(_switch_hugging_face(unit.module))
        if "compile" in self.context.acts:
            plain = call
        elif compiled_by_program(unit.module, call):
            # Capturing it once more would take the program's own compiled code away.
            self._rewrite_for_inductor()
            plain = call
        elif self._switched:
            # Nothing is left to rewrite, and running through a graph costs time.
            plain = call
        else:
            if self._backend is None:
                self._backend = Backend(self.context, _as_it_stands)
            plain = capture(torch, call, self._backend)

        def training_call(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return plain(*args, **kwargs)

        return training_call

    def _rewrite_for_inductor(self) -> None:
        """Put the rewrite before the compiler that the program itself uses."""
        if self._in_inductor:
            return
        self._in_inductor = True
        with quiet():
            from torch._inductor import compile_fx as inductor

        plain = inductor.compile_fx

        @functools.wraps(plain)
        def compile_fx(graph_module: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not hasattr(graph_module, "graph") or not hasattr(graph_module, "meta"):
                return plain(graph_module, example_inputs, *args, **kwargs)
            with quiet():
                self._rewrite(graph_module, example_inputs)
            guard = graph_module.meta.pop("flatout_guard", None)
            run = plain(graph_module, example_inputs, *args, **kwargs)
            return run if guard is None else guard(run)

        inductor.compile_fx = compile_fx

    def _rewrite(self, graph_module: Any, example_inputs: Any) -> int:
        torch = self.context.torch
        kept: dict[int, str] = {}
        for module in (reference() for reference in self._units):
            if module is not None:
                kept.update(kept_tensors(torch, module))
        as_written = _copy(torch, graph_module)
        result = rewrite_attention(
            torch, graph_module, example_inputs, kept, randomness_off=self.context.randomness_off
        )
        self._rewritten += len(result.sites)
        self._sites.extend(result.sites[: _MOST_KEPT - len(self._sites)])
        self._left.extend(result.left[: _MOST_KEPT - len(self._left)])
        if result.sites:
            anchors = result.anchors

            def guard(run: Callable[..., Any]) -> Callable[..., Any]:
                checked = guarded(torch, anchors, run, as_written, self._mask_changed) if anchors else run

                def counted(*inputs: Any) -> Any:
                    self._runs_of_rewritten += 1
                    return checked(*inputs)

                return counted

            graph_module.meta["flatout_guard"] = guard
        return len(result.sites)

    def _mask_changed(self, reason: str) -> None:
        self._changed = reason

    def after_step(self, step: int) -> None:
        if self._changed:
            raise Refused(self._changed)
        if step == _ENOUGH_STEPS and self._calls and not self._rewritten and not self._switched:
            reasons = sorted({f"{item['where']}: {item['reason']}" for item in self._left})
            raise Refused(
                "no attention could be rewritten: " + "; ".join(reasons[:5])
                if reasons
                else "no softmax between two products was found in the training call"
            )

    def evidence(self) -> dict[str, Any]:
        return {
            "rewritten": self._rewritten,
            "sites": list(self._sites),
            "left": list(self._left),
            "switched": list(self._switched),
            "calls": self._calls,
            "runs_of_rewritten_graphs": self._runs_of_rewritten,
            "mask_changed": self._changed,
        }


def _as_it_stands(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
    forward: Callable[..., Any] = graph_module.forward
    return forward


def _copy(torch: Any, graph_module: Any) -> Callable[..., Any]:
    """A callable that runs the graph as it is now, on the same parameters."""
    graph = torch.fx.Graph()
    output = graph.graph_copy(graph_module.graph, {})
    graph.output(output)
    copied: Callable[..., Any] = torch.fx.GraphModule(graph_module, graph).forward
    return copied


def _switch_hugging_face(module: Any) -> list[str]:
    """Switch each Hugging Face model in a module tree from eager attention to SDPA, in its own way."""
    transformers = sys.modules.get("transformers")
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if transformers is None or base is None:
        return []
    switched = []
    for child in module.modules():
        config = getattr(child, "config", None)
        if (
            not isinstance(child, base)
            or config is None
            or getattr(config, "_attn_implementation", None) != "eager"
        ):
            continue
        if getattr(config, "output_attentions", False):
            raise Refused(f"{type(child).__name__} returns its attention weights (output_attentions=True)")
        if not hasattr(child, "set_attn_implementation"):
            continue
        try:
            child.set_attn_implementation("sdpa")
        except (ValueError, ImportError) as error:
            raise Refused(f"{type(child).__name__} has no SDPA: {str(error).splitlines()[0]}") from error
        if config._attn_implementation == "sdpa":
            switched.append(type(child).__name__)
    return switched
