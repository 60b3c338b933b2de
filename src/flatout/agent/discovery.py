"""What the baseline's first steps show of a program: its units and what it already does by itself.

Two things are looked at: the calls of modules, for the first steps only; and the autograd graph of the
first loss, which shows attention and its operators without touching the forward.
"""

from __future__ import annotations

import sys
import threading

from . import process, units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MOST_GRAPH_NODES = 200_000
MOST_UNITS = 64
_AROUND_SOFTMAX = 12
"""Autograd nodes between a softmax and the batched products on both sides: masks, scales, views."""


class Call:
    """A module that was called with gradients enabled."""

    def __init__(self, module: Any, called: str, order: int) -> None:
        self.module = module
        self.called = called
        self.order = order
        self.outermost = False
        self.training = bool(units.unwrap(module).training)
        self.children: dict[int, Call] = {}
        """Modules called directly from inside its call, by id."""


class Discovery:
    """Watches from the first optimiser's making (or the first backward) until steps are understood."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.torch = training.torch
        self.calls: dict[int, Call] = {}
        self.frameworks: set[str] = set()
        self.already: dict[str, str] = {}
        self.random = False
        self.attention = "none"
        self._stack: list[Call] = []
        self._thread = 0
        self._patch = units.CallPatch(self.torch, self._called)
        self._graph_seen = False
        self._sparse: set[int] = set()
        self._stacks_seen = 0
        self._functions: set[Any] = set()
        self._sdpa: Any = None
        self._sdpa_called = False

    def start(self) -> None:
        self._patch.put_in()
        self._watch_sdpa()

    def stop(self) -> None:
        self._patch.take_out()
        self._unwatch_sdpa()

    def _watch_sdpa(self) -> None:
        """Note whether the program calls SDPA: where no fused kernel serves a case, the operator falls
        apart into two products and a softmax, and the autograd graph no longer shows which it was.
        """
        functional = self.torch.nn.functional
        plain = self._sdpa = functional.scaled_dot_product_attention

        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            self._sdpa_called = True
            return plain(*args, **kwargs)

        functional.scaled_dot_product_attention = scaled_dot_product_attention

    def _unwatch_sdpa(self) -> None:
        if self._sdpa is not None:
            self.torch.nn.functional.scaled_dot_product_attention = self._sdpa
            self._sdpa = None

    # --- module calls

    def _called(self, original: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        thread = threading.get_ident()
        if not self.torch.is_grad_enabled() or (self._stack and thread != self._thread):
            return original(module, *args, **kwargs)
        call = self._note(module, "call")
        self._look_at_autocast()
        if _compiled_by_program(module):
            # The compiler would guard on the function that it finds, and compile again without ours.
            self._unwatch_sdpa()
        outermost = not self._stack
        parent = self._stack[-1] if self._stack else self._direct_forward(module)
        if parent is None:
            call.outermost = True
        else:
            parent.children[id(module)] = call
        self._thread = thread
        self._stack.append(call)
        states = self._random_states() if outermost else None
        try:
            return original(module, *args, **kwargs)
        finally:
            self._stack.pop()
            if states is not None and not self.random:
                self.random = not _same_states(self.torch, states, self._random_states())

    def _note(self, module: Any, called: str) -> Call:
        call = self.calls.get(id(module))
        if call is None:
            call = self.calls[id(module)] = Call(module, called, len(self.calls))
        return call

    def _direct_forward(self, module: Any) -> Call | None:
        """The module whose ``.forward()`` the program called itself, where that led to this call."""
        base = self.torch.nn.Module
        found = None
        frame: Any = sys._getframe(1)
        for _ in range(40):
            if frame is None:
                break
            code = frame.f_code
            if code.co_name == "forward" and code.co_varnames:
                owner = frame.f_locals.get(code.co_varnames[0])
                if issubclass(type(owner), base) and owner is not module:
                    found = owner
            frame = frame.f_back
        if found is None:
            return None
        call = self._note(found, "forward")
        call.outermost = True
        return call

    def _look_at_autocast(self) -> None:
        torch = self.torch
        for device in ("cuda", "cpu"):
            if torch.is_autocast_enabled(device):
                dtype = torch.get_autocast_dtype(device)
                if dtype == torch.bfloat16:
                    self.already["bf16"] = "autocast bfloat16"
                elif dtype == torch.float16:
                    self.already["bf16"] = self.already["fp16"] = "autocast float16"

    def _random_states(self) -> list[Any]:
        torch = self.torch
        states = [torch.get_rng_state()]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states.append(torch.cuda.get_rng_state())
        return states

    # --- moments

    def optimizer_seen(self, optimizer: Any) -> None:
        """Before each optimiser step of the window."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                grad = parameter.grad
                if grad is not None and grad.layout is not self.torch.strided:
                    self._sparse.add(id(optimizer))
        self._look_at_stack()

    def backward_seen(self, loss: Any) -> None:
        """Before each backward of the window."""
        self._look_at_stack()
        if not self._graph_seen and getattr(loss, "grad_fn", None) is not None:
            self._graph_seen = True
            self.attention = attention_in_graph(loss.grad_fn)
            if self.attention == "hand-written" and (self._sdpa_called or self._sdpa_configured()):
                self.attention = "sdpa"

    def backward_over(self) -> None:
        """After each backward: the frameworks' hooks may run in it."""

    def _look_at_stack(self) -> None:
        if self._stacks_seen < 4:
            self._stacks_seen += 1
            process.frameworks_on_stack(self.frameworks)

    def _sdpa_configured(self) -> bool:
        """Whether a Hugging Face model was called that is set to SDPA."""
        configs = [getattr(call.module, "config", None) for call in self.calls.values()]
        return any(getattr(config, "_attn_implementation", None) == "sdpa" for config in configs)

    # --- conclusions

    def trained(self) -> dict[int, Any]:
        """The parameters that training is about, by id."""
        found: dict[int, Any] = {}
        for optimizer in self.training.steps.stepped() or self.training.made:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.requires_grad:
                        found[id(parameter)] = parameter
        if not found:
            for call in self.calls.values():
                for parameter in call.module.parameters():
                    if parameter.requires_grad and parameter.grad is not None:
                        found[id(parameter)] = parameter
        return found

    def choose(self) -> list[tuple[Call, str]]:
        """The units, by order of first call, each with its dotted name below the module called first."""
        trained = set(self.trained())
        chosen: list[tuple[Call, str]] = []
        covered = {key: _cover(call.module, trained) for key, call in self.calls.items()}
        for call in sorted(self.calls.values(), key=lambda one: one.order):
            if not call.outermost or not covered[id(call.module)]:
                continue
            unit = _smallest(call, covered)
            if any(unit.module is other.module for other, _ in chosen):
                continue
            chosen.append((unit, _name(call.module, unit.module)))
        inside: set[int] = set()
        for unit, _ in chosen:
            modules = {id(m) for m in unit.module.modules()} | {
                id(m) for m in units.unwrap(unit.module).modules()
            }
            inside |= modules - {id(unit.module), id(units.unwrap(unit.module))}
        return [(unit, name) for unit, name in chosen if id(unit.module) not in inside][:MOST_UNITS]

    def unit_list(self) -> list[dict[str, Any]]:
        trained = set(self.trained())
        result: list[dict[str, Any]] = []
        seen: dict[str, int] = {}
        for call, name in self.choose():
            module = units.unwrap(call.module)
            mark = units.fingerprint(module)
            ordinal = seen[mark] = seen.get(mark, -1) + 1
            result.append(
                {
                    "name": name or type(module).__name__,
                    "class_name": type(module).__name__,
                    "parameters": sum(p.numel() for p in module.parameters() if id(p) in trained),
                    "called": call.called,
                    "fingerprint": f"{mark}|{ordinal}",
                    "training": call.training,
                }
            )
        return result

    def finish(self) -> dict[str, Any]:
        """Stop watching and tell: the ``discovered`` event, field by field a ``workload.Discovery``."""
        self.stop()
        training = self.training
        steps = training.steps
        trained = self.trained()
        devices = {parameter.device.type for parameter in trained.values()}
        device = "cuda" if "cuda" in devices else (sorted(devices)[0] if devices else "cpu")
        optimizers = [self._optimizer(one) for one in steps.stepped()]
        self._look_for_already(device, optimizers)
        recurrent = self._recurrent()
        event = {
            "event": "discovered",
            "step_unit": steps.unit,
            "anchor": steps.anchor if steps.unit == "optimizer" else None,
            "backwards_per_step": steps.backwards_per_step(),
            "device": device,
            "units": self.unit_list(),
            "optimizers": optimizers,
            "frameworks": sorted(self.frameworks),
            "already": self.already,
            "loaders": training.loaders_seen(),
            "world_size": process.world_size(self.torch),
            "random": self.random,
            "torch_version": str(self.torch.__version__),
            "grad_scaler": training.scaler_used,
            "parameter_dtypes": sorted({str(p.dtype).replace("torch.", "") for p in trained.values()}),
            "trainable_parameters": sum(parameter.numel() for parameter in trained.values()),
            "attention": self.attention,
            "recurrent": recurrent,
        }
        self.calls = {}
        return event

    def _recurrent(self) -> list[str]:
        """Classes of torch's recurrent layers in what is trained."""
        base = self.torch.nn.RNNBase
        return sorted(
            {
                type(one).__name__
                for call, _ in self.choose()
                for one in units.unwrap(call.module).modules()
                if isinstance(one, base)
            }
        )

    def _optimizer(self, optimizer: Any) -> dict[str, Any]:
        groups = optimizer.param_groups
        kind = type(optimizer)
        return {
            "class_name": kind.__name__,
            "fused": bool(groups) and all(bool(group.get("fused")) for group in groups),
            "foreach": groups[0].get("foreach") if groups else None,
            "parameters": sum(p.numel() for group in groups for p in group["params"]),
            "sparse": id(optimizer) in self._sparse,
            "exact_class": getattr(self.torch.optim, kind.__name__, None) is kind,
        }

    def _look_for_already(self, device: str, optimizers: list[dict[str, Any]]) -> None:
        torch = self.torch
        if device == "cuda":
            precision = _matmul_precision(torch)
            if precision not in ("highest", "ieee", "none"):
                self.already["tf32"] = f"float32 matmul precision {precision}"
        compiled = [
            type(units.unwrap(call.module)).__name__
            for call in self.calls.values()
            if _compiled_by_program(call.module)
        ]
        dynamo = sys.modules.get("torch._dynamo.utils")
        graphs = dynamo.counters["stats"].get("unique_graphs", 0) if dynamo is not None else 0
        if compiled:
            self.already["compile"] = f"torch.compile of {', '.join(sorted(set(compiled))[:3])}"
        elif graphs:
            self.already["compile"] = f"torch.compile, {graphs} graphs"
        if optimizers and all(one["fused"] for one in optimizers):
            self.already["fused_optimizer"] = f"fused {optimizers[0]['class_name']}"
        if self.attention == "sdpa":
            self.already["sdpa"] = "scaled_dot_product_attention"
        workers = max((int(one["num_workers"]) for one in self.training.loaders_seen()), default=0)
        if workers:
            self.already["loader_workers"] = f"DataLoader with {workers} workers"


def _compiled_by_program(module: Any) -> bool:
    own = module.__dict__.get("_compiled_call_impl")
    return units.is_compiled_wrapper(module) or (own is not None and not isinstance(own, units.UnitCall))


def _cover(module: Any, trained: set[int]) -> frozenset[int]:
    return frozenset(id(parameter) for parameter in module.parameters() if id(parameter) in trained)


def _smallest(call: Call, covered: dict[int, frozenset[int]]) -> Call:
    """Go down while all that is trained lies in the one module that this one calls.

    A wrapper with a criterion, a task, DDP: yes. A Sequential around one layer: no, since the wrapper
    is the user's and the layer is torch's.
    """
    for _ in range(64):
        inner = [child for key, child in call.children.items() if covered.get(key)]
        if len(inner) != 1 or covered[id(inner[0].module)] != covered[id(call.module)]:
            return call
        child = inner[0]
        wrapper = units.unwrap(call.module) is not call.module
        if type(child.module).__module__.startswith("torch.nn.modules") and not wrapper:
            return call
        call = child
    return call


def _name(root: Any, module: Any) -> str:
    root, module = units.unwrap(root), units.unwrap(module)
    for name, inner in root.named_modules():
        if inner is module:
            return name or type(module).__name__
    return type(module).__name__


def _matmul_precision(torch: Any) -> str:
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        # The program set the newer per-backend precision, after which the older reading raises.
        return str(torch.backends.cuda.matmul.fp32_precision)


def _same_states(torch: Any, before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after))


def attention_in_graph(root: Any) -> str:
    """``sdpa``, ``hand-written`` or ``none``, from the names of the autograd nodes above a loss."""
    consumers: dict[Any, list[Any]] = {root: []}
    order = [root]
    softmaxes = []
    for node in order:
        if len(order) > MOST_GRAPH_NODES:
            break
        name = node.name()
        if "ScaledDotProduct" in name or "EfficientAttention" in name or "FlashAttention" in name:
            return "sdpa"
        if "Softmax" in name and "LogSoftmax" not in name:
            softmaxes.append(node)
        for inner, _ in node.next_functions:
            if inner is None:
                continue
            if inner not in consumers:
                consumers[inner] = []
                order.append(inner)
            consumers[inner].append(node)
    for node in softmaxes:
        below = _reaches_product(node, lambda one: [inner for inner, _ in one.next_functions if inner])
        above = _reaches_product(node, lambda one: consumers.get(one, []))
        if below and above:
            return "hand-written"
    return "none"


def _reaches_product(node: Any, neighbours: Callable[[Any], list[Any]]) -> bool:
    """Is there a batched product close by in this direction, with no other product before it?"""
    seen = {node}
    front = [node]
    for _ in range(_AROUND_SOFTMAX):
        following = []
        for one in front:
            for other in neighbours(one):
                if other in seen:
                    continue
                seen.add(other)
                if "Bmm" in other.name():
                    return True
                if "AddmmBackward" not in other.name() and "MmBackward" not in other.name():
                    following.append(other)
        front = following
    return False
