"""Is a mask in a graph a constant, and is it causal? Proved by evaluating the sub-graph that makes it.

A mask may depend on constants, on what the graph itself builds (``tril``, ``arange``, ``ones`` ...)
and on tensors that the module keeps (buffers, plain attributes). Such kept tensors are ``anchors``:
they are checked by identity and version at each run, since nothing else would notice a later change.
"""

from __future__ import annotations

import operator
from typing import Any

from .graph_ops import shape_of, value_of

_MOST_NODES = 200
# Drawing, reading from the device's stream of random numbers: never a constant.
_RANDOM = ("rand", "dropout", "bernoulli", "normal", "multinomial", "poisson", "empty", "uniform")

_IN_PLACE_FUNCTIONS = frozenset(
    getattr(operator, name)
    for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "iand", "ior", "ixor")
)


class NotConstant(Exception):
    """The mask depends on the call's inputs; ``str`` says on what."""


class Evaluator:
    """Evaluates constant sub-graphs of one graph."""

    def __init__(self, torch: Any, graph_module: Any, example_inputs: Any, kept: dict[int, str]) -> None:
        """``kept`` maps ``id(tensor)`` to a name for each tensor that the unit's modules keep."""
        self._torch = torch
        self._graph_module = graph_module
        self._kept = kept
        placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        self._inputs = dict(zip(placeholders, example_inputs))
        self.index_of = {node: index for index, node in enumerate(placeholders)}

    def evaluate(self, node: Any, sizes: dict[Any, int] | None = None) -> tuple[Any, list[tuple[Any, Any]]]:
        """The node's value as a real tensor or number, and its anchors as (graph node, tensor).

        ``sizes`` maps sympy symbols of symbolic sizes to the numbers to try. NotConstant says why not.
        """
        values: dict[Any, Any] = {}
        anchors: list[tuple[Any, Any]] = []
        with self._torch.no_grad():
            return self._value(node, values, anchors, sizes or {}), anchors

    def symbols(self, node: Any) -> set[Any]:
        """Sympy symbols of symbolic sizes that a node depends on."""
        found: set[Any] = set()
        seen: set[Any] = set()
        queue = [node]
        while queue and len(seen) < _MOST_NODES:
            current = queue.pop()
            if current in seen:
                continue
            seen.add(current)
            expression = _expression(value_of(current))
            if expression is not None:
                found |= set(expression.free_symbols)
                continue
            queue.extend(current.all_input_nodes)
        return found

    def _value(self, node: Any, values: dict[Any, Any], anchors: list[Any], sizes: dict[Any, int]) -> Any:
        if node in values:
            return values[node]
        if len(values) > _MOST_NODES:
            raise NotConstant(f"more than {_MOST_NODES} operations make the mask")
        if any(_in_place_on(user, node) for user in node.users):
            raise NotConstant("is changed in place")
        expression = _expression(value_of(node))
        if expression is not None:
            number = expression.subs(sizes)
            if not number.is_number:
                raise NotConstant(f"depends on the symbolic size {expression}")
            values[node] = int(number) if number.is_integer else float(number)
            return values[node]
        if node.op == "placeholder":
            value = self._kept_tensor(node, self._inputs.get(node))
            anchors.append((node, value))
        elif node.op == "get_attr":
            value = self._attribute(node.target)
            if self._torch.is_tensor(value):
                if value.requires_grad:
                    raise NotConstant(f"depends on the parameter {node.target}")
                anchors.append((node, value))
        elif node.op in ("call_function", "call_method"):
            value = self._call(node, values, anchors, sizes)
        else:
            raise NotConstant(f"depends on {node.op} {node.target}")
        values[node] = value
        return value

    def _kept_tensor(self, node: Any, value: Any) -> Any:
        if not self._torch.is_tensor(value):
            raise NotConstant(f"depends on the input {node.name}")
        if value.requires_grad:
            raise NotConstant(f"depends on the trained tensor {node.name}")
        if id(value) not in self._kept:
            raise NotConstant(f"depends on the call's input {node.name}")
        return value

    def _attribute(self, target: str) -> Any:
        value = self._graph_module
        for part in target.split("."):
            value = getattr(value, part)
        return value

    def _call(self, node: Any, values: dict[Any, Any], anchors: list[Any], sizes: dict[Any, int]) -> Any:
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if any(word in name for word in _RANDOM):
            raise NotConstant(f"depends on {name}()")
        if name.endswith("_") and not name.endswith("__"):
            raise NotConstant(f"is changed in place by {name}()")
        if name in ("setitem", "copy_"):
            raise NotConstant("is changed in place")
        shape = shape_of(node)
        if shape is not None and not node.all_input_nodes and _numel(shape) > 1 << 28:
            raise NotConstant(f"has shape {shape}, too large to evaluate")

        def real(argument: Any) -> Any:
            return self._value(argument, values, anchors, sizes)

        from torch.fx.node import map_arg

        args, kwargs = map_arg(node.args, real), map_arg(node.kwargs, real)
        try:
            if node.op == "call_method":
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)
        except NotConstant:
            raise
        except Exception as error:
            raise NotConstant(f"could not be evaluated at {name}(): {error}") from error


def kept_tensors(torch: Any, module: Any) -> dict[int, str]:
    """``id(tensor)`` -> dotted name of each tensor that a module tree keeps and does not train."""
    kept: dict[int, str] = {}
    for prefix, child in module.named_modules():
        own = list(child._buffers.items()) + list(child._parameters.items()) + list(vars(child).items())
        for name, value in own:
            if torch.is_tensor(value) and not value.requires_grad:
                kept[id(value)] = f"{prefix}.{name}" if prefix else name
    return kept


def is_causal(torch: Any, keep: Any) -> bool:
    """Whether a boolean mask of shape (..., T, T) keeps exactly the lower triangle, diagonal included."""
    if keep.dim() < 2 or keep.shape[-1] != keep.shape[-2] or keep.numel() == 0:
        return False
    size = keep.shape[-1]
    expected = torch.ones(size, size, dtype=torch.bool, device=keep.device).tril()
    return bool((keep.to(torch.bool) == expected).all())


def _expression(value: Any) -> Any:
    """The sympy expression of a symbolic number, or None."""
    node = getattr(value, "node", None)
    return getattr(node, "expr", None) if node is not None and hasattr(node, "shape_env") else None


def _in_place_on(user: Any, node: Any) -> bool:
    if not user.args or user.args[0] is not node:
        return False
    if user.op == "call_method":
        return user.target.endswith("_") and not user.target.endswith("__")
    return user.op == "call_function" and user.target in _IN_PLACE_FUNCTIONS


def _numel(shape: tuple[Any, ...]) -> int:
    total = 1
    for size in shape:
        total = operator.mul(total, size if isinstance(size, int) else 1)
    return total
