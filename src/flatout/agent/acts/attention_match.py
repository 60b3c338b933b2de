"""Finding hand-written attention in a torch-level graph: softmax(scale * q k^T, masked) v.

The forms read are those that people write: ``@``, ``matmul``, ``bmm``, ``baddbmm`` or ``einsum`` for the
two products; the scale by ``*`` or ``/`` on q, on k, on the product, or absent; masks by
``masked_fill``, ``torch.where`` or an added tensor; softmax as a function, method or module, with or
without ``dtype``; dropout; casts in between. What differs is left alone, with the reason.
"""

from __future__ import annotations

import math
from typing import Any

from .graph_mask import Evaluator, NotConstant
from .graph_ops import IN_PLACE, Ops, argument, same_sizes, shape_of, value_of

SMALLEST_FILL = -1e4
"""A fill value above this does not surely remove a position."""
ABSORBING_FILL = -1e9
"""At or below this, float32 scores vanish beside the fill: a fully masked row is uniform either way."""


class NotAttention(Exception):
    """This softmax is left as it is; ``str`` is the reason."""


class Mask:
    """One mask of a site: ``kind`` is ``drop`` or ``keep`` (boolean, with a ``fill``) or ``add``."""

    def __init__(self, kind: str, node: Any, fill: float = -math.inf) -> None:
        self.kind = kind
        self.node = node
        self.fill = fill


class Side:
    """One operand of a product and the permutation that brings it to (batch..., rows, columns)."""

    def __init__(self, node: Any, order: tuple[int, ...] | None = None) -> None:
        self.node = node
        self.order = order


class Site:
    """One attention: ``nodes`` are those that become unused, ``output`` the one to be replaced."""

    def __init__(self, softmax: Any) -> None:
        self.softmax = softmax
        self.output: Any = None
        self.query: Side
        self.key: Side
        """Brought to (batch..., length, size) by its order."""
        self.value: Side
        self.output_order: tuple[int, ...] | None = None
        self.scale = 1.0
        self.masks: list[Mask] = []
        self.dropout = 0.0
        self.nodes: list[Any] = []


def use_in_place_results(graph: Any) -> None:
    """Make later users of a tensor changed in place use the operation's result, which is that tensor.

    ``scores.masked_fill_(mask, value)`` as a statement has no users otherwise, and the softmax seems to
    read the unmasked scores.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op != "call_method" or node.target not in IN_PLACE or not node.args:
            continue
        changed = node.args[0]
        if getattr(changed, "op", "") not in ("call_function", "call_method"):
            continue
        for user in list(changed.users):
            if user is not node and order[user] > order[node]:
                user.replace_input_with(changed, node)


class Matcher:
    """Reads sites of one graph."""

    def __init__(self, torch: Any, graph_module: Any, evaluator: Evaluator) -> None:
        self._ops = Ops(torch)
        self._torch = torch
        self._graph_module = graph_module
        self._evaluator = evaluator

    def op(self, node: Any) -> str:
        return self._ops.name(self._graph_module, node) if hasattr(node, "op") else ""

    def softmaxes(self) -> list[Any]:
        return [node for node in self._graph_module.graph.nodes if self.op(node) == "softmax"]

    def read(self, softmax: Any) -> Site:
        """The site around one softmax. NotAttention says why it is none, or not one to touch."""
        site = Site(softmax)
        site.nodes.append(softmax)
        self._check_dim(softmax)
        self._forward(site)
        self._backward(site)
        return site

    def _check_dim(self, softmax: Any) -> None:
        shape = shape_of(softmax)
        if shape is None:
            raise NotAttention("its shape is not known")
        if softmax.op == "call_module":
            dim = self._graph_module.get_submodule(softmax.target).dim
        else:
            dim = argument(softmax, 1, "dim")
        if dim not in (-1, len(shape) - 1):
            raise NotAttention(f"softmax over dimension {dim} of {len(shape)}, not over the keys")

    # from the softmax on to the product with v

    def _forward(self, site: Site) -> None:
        node = site.softmax
        while True:
            users = list(node.users)
            if len(users) != 1:
                raise NotAttention(f"the attention weights are used {len(users)} times, not once")
            user = users[0]
            op = self.op(user)
            if op == "dropout" and user.args and user.args[0] is node:
                site.dropout = 1 - (1 - site.dropout) * (1 - self._dropout_rate(user))
            elif op not in ("cast", "same") or user.args[0] is not node:
                break
            site.nodes.append(user)
            node = user
        site.output = user
        if op == "matmul":
            left, right = argument(user, 0, "input"), argument(user, 1, "other", argument(user, 1, "mat2"))
            if left is not node or right is node:
                raise NotAttention("the attention weights are not the left side of the second product")
            site.value = Side(right)
        elif op == "einsum":
            site.value, site.output_order = self._second_einsum(user, node)
        else:
            raise NotAttention(f"softmax is followed by {op or user.target}, not by a product with v")
        site.nodes.append(user)

    def _dropout_rate(self, node: Any) -> float:
        if node.op == "call_module":
            module = self._graph_module.get_submodule(node.target)
            return float(module.p) if module.training else 0.0
        rate = argument(node, 1, "p", 0.5)
        training = argument(node, 2, "training", True)
        number = self._number(rate)
        if number is None or not isinstance(training, bool):
            raise NotAttention("the dropout rate is not a constant")
        return number if training else 0.0

    def _einsum(self, node: Any) -> tuple[list[str], str, list[Any]]:
        equation = node.args[0]
        operands = list(node.args[1:])
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = list(operands[0])
        if not isinstance(equation, str) or len(operands) != 2 or "->" not in equation or "." in equation:
            raise NotAttention("an einsum that is not of two operands with named dimensions")
        inputs, output = equation.replace(" ", "").split("->")
        parts = inputs.split(",")
        if any(len(set(part)) != len(part) for part in [*parts, output]):
            raise NotAttention(f"einsum {equation!r} repeats a dimension")
        return parts, output, operands

    def _second_einsum(self, node: Any, weights: Any) -> tuple[Side, tuple[int, ...]]:
        parts, output, operands = self._einsum(node)
        which = 0 if operands[0] is weights else 1
        if operands[1 - which] is weights:
            raise NotAttention("the attention weights are multiplied with themselves")
        w, v = parts[which], parts[1 - which]
        batch, query, key = w[:-2], w[-2], w[-1]
        size = [c for c in v if c not in w]
        if (
            key not in v
            or query in v
            or key in output
            or len(size) != 1
            or set(v) != {*batch, key, size[0]}
        ):
            raise NotAttention(f"einsum {node.args[0]!r} is not weights times values")
        standard = batch + query + size[0]
        if set(output) != set(standard):
            raise NotAttention(f"einsum {node.args[0]!r} is not weights times values")
        return (
            Side(operands[1 - which], _permutation(v, batch + key + size[0])),
            _permutation(standard, output) or tuple(range(len(standard))),
        )

    # from the softmax back to the product of q and k

    def _backward(self, site: Site) -> None:
        node = argument(site.softmax, 0, "input")
        while True:
            op = self.op(node)
            if op in ("matmul", "einsum", "baddbmm"):
                break
            if op in ("cast", "same"):
                following = node.args[0]
            elif op in ("mul", "div"):
                following = self._scaled(site, node, op)
            elif op in ("masked_fill", "where", "add", "sub"):
                following, mask = self._masked(site, node, op)
                # Going backwards: what has been seen of the scale is applied after this mask.
                if mask.kind == "add" and site.scale != 1.0:
                    raise NotAttention("the added mask is scaled too")
                mask.fill *= site.scale
                if mask.kind != "add" and mask.fill > SMALLEST_FILL:
                    raise NotAttention(
                        f"masked scores are filled with {mask.fill}, which does not surely remove them"
                    )
                site.masks.append(mask)
            else:
                raise NotAttention(f"softmax of {op or getattr(node, 'target', node)}, not of a product")
            self._check_single(node)
            site.nodes.append(node)
            node = following
        self._check_single(node)
        site.nodes.append(node)
        self._first_product(site, node, op)

    def _check_single(self, node: Any) -> None:
        if len(node.users) != 1:
            raise NotAttention("the scores are used elsewhere too")

    def _scaled(self, site: Site, node: Any, op: str) -> Any:
        left, right = argument(node, 0, "input"), argument(node, 1, "other")
        number = self._number(right)
        following = left
        if number is None and op == "mul":
            number, following = self._number(left), right
        if number is None:
            raise NotAttention("the scores are scaled by something that is not a constant")
        scale = number if op == "mul" else 1.0 / number
        if not math.isfinite(scale) or scale <= 0:
            raise NotAttention(f"the scores are scaled by {scale}")
        site.scale *= scale
        return following

    def _number(self, argument_: Any) -> float | None:
        """A constant number, or a constant tensor of one element; None for anything else."""
        if isinstance(argument_, (int, float)) and not isinstance(argument_, bool):
            return float(argument_)
        if not hasattr(argument_, "op"):
            return None
        symbolic = value_of(argument_)
        # dynamic=True makes numbers of the module symbolic too; asking for it fixes this one by a guard.
        if isinstance(symbolic, self._torch.SymFloat):
            return float(symbolic.node.guard_float(__file__, 0))
        if isinstance(symbolic, self._torch.SymInt):
            return float(symbolic.node.guard_int(__file__, 0))
        shape = shape_of(argument_)
        if shape is not None and shape not in ((), (1,)):
            return None
        try:
            value, anchors = self._evaluator.evaluate(argument_)
        except NotConstant:
            return None
        if anchors:
            # A kept tensor may change later; only numbers written in the program are taken.
            return None
        return float(value)

    def _masked(self, site: Site, node: Any, op: str) -> tuple[Any, Mask]:
        if op == "masked_fill":
            following, mask, fill = node.args[0], argument(node, 1, "mask"), argument(node, 2, "value")
            return following, Mask("drop", mask, self._fill(fill))
        if op == "where":
            if node.op == "call_method":
                following, mask, other = node.args[0], node.args[1], argument(node, 2, "other")
                return following, Mask("keep", mask, self._fill(other))
            mask, left, right = node.args[0], argument(node, 1, "input"), argument(node, 2, "other")
            if self._is_scores(left, site):
                return left, Mask("keep", mask, self._fill(right))
            return right, Mask("drop", mask, self._fill(left))
        if op == "sub":
            raise NotAttention("something is subtracted from the scores")
        left, right = argument(node, 0, "input"), argument(node, 1, "other")
        if argument(node, 2, "alpha", 1) != 1:
            raise NotAttention("a mask added with alpha")
        following, mask = (left, right) if self._is_scores(left, site) else (right, left)
        if not hasattr(mask, "op"):
            raise NotAttention(f"{mask} is added to the scores")
        return following, Mask("add", mask)

    def _is_scores(self, node: Any, site: Site) -> bool:
        """Whether going back from a node reaches a product without leaving the shape of the scores."""
        for _ in range(12):
            if not hasattr(node, "op"):
                return False
            op = self.op(node)
            if op in ("matmul", "einsum", "baddbmm"):
                shape, wanted = shape_of(node), shape_of(site.softmax)
                return shape is not None and wanted is not None and same_sizes(shape[-2:], wanted[-2:])
            if op not in ("cast", "same", "mul", "div", "masked_fill", "add"):
                return False
            node = node.args[0]
        return False

    def _fill(self, fill: Any) -> float:
        number = self._number(fill)
        if number is None:
            raise NotAttention("the masked scores are filled with something that is not a constant")
        return number

    def _first_product(self, site: Site, node: Any, op: str) -> None:
        if op == "einsum":
            parts, output, operands = self._einsum(node)
            batch, query, key = output[:-2], output[-2], output[-1]
            which = 0 if query in parts[0] else 1
            q, k = parts[which], parts[1 - which]
            size = [c for c in q if c not in output]
            if (
                key not in k
                or query in k
                or key in q
                or len(size) != 1
                or set(q) != {*batch, query, size[0]}
                or set(k) != {*batch, key, size[0]}
            ):
                raise NotAttention(f"einsum {node.args[0]!r} is not queries times keys")
            site.query = Side(operands[which], _permutation(q, batch + query + size[0]))
            site.key = Side(operands[1 - which], _permutation(k, batch + key + size[0]))
            return
        if op == "baddbmm":
            added, left, right = node.args[0], argument(node, 1, "batch1"), argument(node, 2, "batch2")
            beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
            alpha, beta = self._number(alpha), self._number(beta)
            if alpha is None or beta is None or alpha <= 0:
                raise NotAttention("baddbmm with an alpha or beta that is not a positive constant")
            if beta == 1:
                if site.scale != 1.0:
                    raise NotAttention("the added mask is scaled too")
                site.masks.append(Mask("add", added))
            elif beta != 0:
                raise NotAttention(f"baddbmm with beta={beta}")
            site.scale *= alpha
        else:
            left, right = argument(node, 0, "input"), argument(node, 1, "other", argument(node, 1, "mat2"))
        dims = len(shape_of(right) or ())
        last_two_swapped = (*range(dims - 2), dims - 1, dims - 2)
        site.query = Side(left)
        untransposed = self._untransposed(right, dims)
        site.key = Side(right, last_two_swapped) if untransposed is None else Side(untransposed)

    def _untransposed(self, node: Any, dims: int) -> Any:
        """x, when ``node`` is x with its last two dimensions swapped; else None."""
        op = self.op(node)
        if op == "transpose":
            axes = {argument(node, 1, "dim0", argument(node, 1, "axis0")), argument(node, 2, "dim1")}
            if {axis % dims for axis in axes if isinstance(axis, int)} == {dims - 1, dims - 2}:
                return node.args[0]
        return None


def _permutation(have: str, want: str) -> tuple[int, ...] | None:
    """Dimensions of ``have`` in the order of ``want``; None where they agree already."""
    order = tuple(have.index(c) for c in want)
    return None if order == tuple(range(len(order))) else order
