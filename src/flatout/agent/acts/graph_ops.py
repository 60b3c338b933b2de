"""One name for each way of writing an operation in a torch-level FX graph."""

from __future__ import annotations

import operator
from typing import Any

_METHODS = {
    "matmul": "matmul",
    "__matmul__": "matmul",
    "bmm": "matmul",
    "baddbmm": "baddbmm",
    "mul": "mul",
    "mul_": "mul",
    "multiply": "mul",
    "div": "div",
    "div_": "div",
    "divide": "div",
    "true_divide": "div",
    "add": "add",
    "add_": "add",
    "sub": "sub",
    "sub_": "sub",
    "masked_fill": "masked_fill",
    "masked_fill_": "masked_fill",
    "where": "where",
    "softmax": "softmax",
    "transpose": "transpose",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "permute": "permute",
    "float": "cast",
    "half": "cast",
    "bfloat16": "cast",
    "double": "cast",
    "to": "cast",
    "type": "cast",
    "type_as": "cast",
    "contiguous": "same",
    "clone": "same",
}
IN_PLACE = frozenset(("mul_", "div_", "add_", "sub_", "masked_fill_"))


class Ops:
    """Names operations of graphs of one torch."""

    def __init__(self, torch: Any) -> None:
        functional = torch.nn.functional
        functions: dict[Any, str] = {
            operator.matmul: "matmul",
            operator.mul: "mul",
            operator.imul: "mul",
            operator.truediv: "div",
            operator.itruediv: "div",
            operator.add: "add",
            operator.iadd: "add",
            operator.sub: "sub",
            operator.isub: "sub",
            operator.getitem: "getitem",
            functional.softmax: "softmax",
            functional.dropout: "dropout",
        }
        for name, op in (
            ("matmul", "matmul"),
            ("bmm", "matmul"),
            ("baddbmm", "baddbmm"),
            ("einsum", "einsum"),
            ("mul", "mul"),
            ("multiply", "mul"),
            ("div", "div"),
            ("divide", "div"),
            ("true_divide", "div"),
            ("add", "add"),
            ("sub", "sub"),
            ("masked_fill", "masked_fill"),
            ("where", "where"),
            ("softmax", "softmax"),
            ("transpose", "transpose"),
            ("swapaxes", "transpose"),
            ("permute", "permute"),
            ("dropout", "dropout"),
        ):
            if hasattr(torch, name):
                functions[getattr(torch, name)] = op
        if hasattr(torch, "functional"):
            functions[torch.functional.einsum] = "einsum"
        self._functions = functions
        self._modules = {
            torch.nn.Softmax: "softmax",
            torch.nn.Dropout: "dropout",
            torch.nn.Identity: "same",
        }

    def name(self, graph_module: Any, node: Any) -> str:
        """Such as ``matmul``; empty for what no attention is made of."""
        if node.op == "call_function":
            return self._functions.get(node.target, "")
        if node.op == "call_method":
            return _METHODS.get(node.target, "")
        if node.op == "call_module":
            return self._modules.get(type(graph_module.get_submodule(node.target)), "")
        return ""


def argument(node: Any, index: int, name: str, default: Any = None) -> Any:
    """An argument given by position or by name."""
    if len(node.args) > index:
        return node.args[index]
    return node.kwargs.get(name, default)


def value_of(node: Any) -> Any:
    """The fake tensor (or symbolic number) that dynamo computed for a node; None where it left none."""
    return node.meta.get("example_value")


def shape_of(node: Any) -> tuple[Any, ...] | None:
    """Shape of a node's tensor; None for what is no tensor."""
    value = value_of(node)
    shape = getattr(value, "shape", None)
    return None if shape is None else tuple(shape)


def hint_of(size: Any) -> int:
    """A size's number in the call being traced. ``int(size)`` would fix a symbolic one for ever."""
    node = getattr(size, "node", None)
    return int(size if node is None else node.hint)


def same_sizes(left: Any, right: Any) -> bool:
    """Whether two shapes are the same whatever their symbols stand for; adds no guard."""
    return len(left) == len(right) and all(str(a) == str(b) for a, b in zip(left, right))
