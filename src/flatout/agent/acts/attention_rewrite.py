"""The graph pass: hand-written attention becomes ``scaled_dot_product_attention``.

The compiler's own rewrites match no ``masked_fill(tril == 0)`` form and never set ``is_causal``, so
they miss most of what people write. Here a mask is *evaluated*: where it is a constant that keeps
exactly the lower triangle it becomes ``is_causal=True``, which reads no mask at all; else it is passed
on as ``attn_mask``. Each replacement is checked numerically before use.
"""

from __future__ import annotations

import math
from typing import Any

from . import attention_check
from .attention_match import ABSORBING_FILL, Mask, Matcher, NotAttention, Side, Site, use_in_place_results
from .graph_backend import location
from .graph_mask import Evaluator, NotConstant, is_causal
from .graph_ops import hint_of, same_sizes, shape_of, value_of
from .mask_guard import Anchor

_LONGEST_TRIED = 4096
"""A mask of varying length that the graph builds itself is proved up to this length."""


class Rewritten:
    """What one pass over a graph did."""

    def __init__(self) -> None:
        self.sites: list[dict[str, Any]] = []
        self.left: list[dict[str, str]] = []
        self.anchors: list[Anchor] = []
        """Kept tensors on whose value a replacement relies."""


def rewrite_attention(
    torch: Any,
    graph_module: Any,
    example_inputs: Any,
    kept: dict[int, str],
    *,
    randomness_off: bool = False,
) -> Rewritten:
    """Replace every attention of the graph that can be proved, in place.

    ``randomness_off``: without its dropout. A graph's code calls SDPA by torch's own name, past whatever
    stands in its place for the gradient probe.
    """
    result = Rewritten()
    graph = graph_module.graph
    use_in_place_results(graph)
    evaluator = Evaluator(torch, graph_module, example_inputs, kept)
    matcher = Matcher(torch, graph_module, evaluator)
    for softmax in matcher.softmaxes():
        where = location(softmax)
        try:
            site = matcher.read(softmax)
            plan = _Replacement(torch, graph_module, evaluator, site)
            checked = attention_check.check(torch, graph_module, site, plan.compute, plan.constant)
        except NotAttention as reason:
            result.left.append({"where": where, "reason": str(reason)})
        except attention_check.Different as reason:
            result.left.append({"where": where, "reason": f"the numerical check failed: {reason}"})
        except Exception as error:
            # Whatever it is, the attention stays as it was written, which is right.
            result.left.append({"where": where, "reason": f"could not be checked: {_first_line(error)}"})
        else:
            plan.emit(dropout=0.0 if randomness_off else site.dropout)
            result.anchors.extend(plan.anchors)
            result.sites.append({"where": where, "form": plan.form, "checked": checked})
    if result.sites:
        graph.lint()
        graph_module.recompile()
    return result


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


class _Replacement:
    """How one site is written anew. Made before anything in the graph is changed."""

    def __init__(self, torch: Any, graph_module: Any, evaluator: Evaluator, site: Site) -> None:
        self._torch = torch
        self._graph = graph_module.graph
        self._evaluator = evaluator
        self._site = site
        self.anchors: list[Anchor] = []
        shapes = [_ordered_shape(side) for side in (site.query, site.key, site.value)]
        if any(shape is None or not 2 <= len(shape) <= 4 for shape in shapes):
            raise NotAttention(f"queries, keys and values of shapes {shapes}")
        query, key, value = (shape for shape in shapes if shape is not None)
        if (
            not len(query) == len(key) == len(value)
            or not same_sizes(query[-1:], key[-1:])
            or not same_sizes(key[-2:-1], value[-2:-1])
        ):
            raise NotAttention(f"queries, keys and values of shapes {shapes}")
        self._query, self._key, self._value = query, key, value
        self._dims = len(query)
        if not same_sizes(query[:-2], key[:-2]) or not same_sizes(query[:-2], value[:-2]):
            raise NotAttention(f"queries and keys of different batch sizes, {query} and {key}")
        self._check_dtypes()
        self._check_one_region()
        self._causal = self._prove_causal()
        self._masks = [] if self._causal else self._attention_masks()
        kinds = "is_causal=True" if self._causal else "attn_mask" if self._masks else "no mask"
        self.form = kinds + (f", dropout_p={site.dropout:g}" if site.dropout else "")

    # what must hold

    def _check_dtypes(self) -> None:
        sides = (self._site.query, self._site.key, self._site.value)
        dtypes = {str(value_of(side.node).dtype) for side in sides}
        device = value_of(self._site.query.node).device
        self._autocast = self._torch.is_autocast_enabled(device.type)
        if len(dtypes) > 1 and not self._autocast:
            raise NotAttention(f"queries, keys and values of different dtypes: {', '.join(sorted(dtypes))}")
        if any(not value_of(side.node).dtype.is_floating_point for side in sides):
            raise NotAttention(f"queries, keys and values of dtype {', '.join(sorted(dtypes))}")

    def _check_one_region(self) -> None:
        """No autocast or gradient switch of the program's between the first product and the last."""
        inside = set(self._site.nodes)
        started = False
        for node in self._graph.nodes:
            started = started or node in inside
            if node is self._site.output:
                return
            name = getattr(node.target, "__name__", "")
            if started and ("autocast" in name or "grad_enabled" in name or "inference_mode" in name):
                raise NotAttention(f"{name}() lies between its two products")

    # masks

    def constant(self, node: Any) -> Any:
        """The real value of a constant node, floats as float64; NotConstant else."""
        value, _ = self._evaluator.evaluate(node, self._hints(node))
        if self._torch.is_tensor(value) and value.is_floating_point():
            value = value.double()
        return value

    def _hints(self, node: Any) -> dict[Any, int]:
        """Each symbolic size's number in the call that is being traced."""
        shape = [size for side in (self._query, self._key, self._value) for size in side]
        hints: dict[Any, int] = {}
        for size in shape:
            symbolic = getattr(size, "node", None)
            if symbolic is not None and len(symbolic.expr.free_symbols) == 1:
                (symbol,) = symbolic.expr.free_symbols
                if symbolic.expr == symbol:
                    hints[symbol] = hint_of(size)
        return hints

    def _prove_causal(self) -> bool:
        length = self._query[-2]
        if not self._site.masks or not same_sizes((length,), self._key[-2:-1]):
            return False
        symbols = set().union(*(self._evaluator.symbols(mask.node) for mask in self._site.masks))
        symbol = getattr(getattr(length, "node", None), "expr", None)
        if symbol is None:
            return not symbols and self._causal_at({}, length)
        if symbols != {symbol} or not self._causal_at({symbol: hint_of(length)}, hint_of(length)):
            return False
        # A length that varies: masks are made by slices and comparisons that treat all lengths alike,
        # so a few lengths and the largest possible one tell a triangle from a band. The comparison of
        # the symbolic length makes dynamo guard that limit: beyond it, the graph is captured anew.
        limit = max(
            [max(anchor.tensor.shape, default=0) for anchor in self.anchors]
            or [max(_LONGEST_TRIED, hint_of(length))]
        )
        lengths = {2, 3, max(4, hint_of(length) // 2), limit}
        return all(self._causal_at({symbol: size}, size) for size in lengths) and bool(length <= limit)

    def _causal_at(self, sizes: dict[Any, int], length: int) -> bool:
        anchors: list[Anchor] = []
        keep: Any = None
        for mask in self._site.masks:
            try:
                value, found = self._evaluator.evaluate(mask.node, sizes)
            except NotConstant:
                return False
            one = self._kept_positions(mask, value)
            if one is None:
                return False
            keep = one if keep is None else keep & one
            anchors.extend(
                Anchor(self._evaluator.index_of.get(node), tensor, node.name) for node, tensor in found
            )
        self.anchors = anchors
        return keep.shape[-1] == length and is_causal(self._torch, keep)

    def _kept_positions(self, mask: Mask, value: Any) -> Any:
        """Boolean tensor of the positions that a constant mask keeps; None where it does not say."""
        if not self._torch.is_tensor(value):
            return None
        if mask.kind == "keep":
            return value.to(self._torch.bool)
        if mask.kind == "drop":
            return ~value.to(self._torch.bool)
        kept, dropped = value == 0, value <= ABSORBING_FILL
        return kept if bool((kept | dropped).all()) else None

    def _attention_masks(self) -> list[Mask]:
        masks = self._site.masks
        for mask in masks:
            fake = value_of(mask.node)
            if getattr(fake, "requires_grad", False):
                raise NotAttention("the added mask is trained or depends on the queries")
            if fake is None or not hasattr(fake, "dtype"):
                raise NotAttention("a mask of unknown dtype")
            if mask.kind != "add" and fake.dtype != self._torch.bool:
                raise NotAttention(f"a mask of dtype {fake.dtype}")
            if mask.kind == "add" and not fake.dtype.is_floating_point:
                raise NotAttention(f"an added mask of dtype {fake.dtype}")
            if mask.kind != "add" and mask.fill > ABSORBING_FILL:
                raise NotAttention(
                    f"masked scores are filled with {mask.fill}, and the mask is not constant"
                )
            if fake.dim() > self._dims:
                raise NotAttention(f"a mask of {fake.dim()} dimensions for scores of {self._dims}")
        if sum(mask.kind == "add" for mask in masks) > 1:
            raise NotAttention("two added masks")
        finite = any(mask.kind != "add" and mask.fill != -math.inf for mask in masks)
        if finite and self._half():
            raise NotAttention("masked scores are filled with a finite number, in float16")
        return masks

    def _half(self) -> bool:
        value = value_of(self._site.query.node)
        dtype = self._torch.get_autocast_dtype(value.device.type) if self._autocast else value.dtype
        return bool(dtype == self._torch.float16)

    def _combine(self, masks: list[Any], torch_where: Any, dtype: Any) -> Any:
        """One ``attn_mask`` from all masks: boolean where all are boolean with -inf, else added.

        A finite fill is kept finite: a fully masked row then stays uniform, as written, where -inf
        would make it NaN or nil.
        """
        torch = self._torch
        call = torch_where
        keep: Any = None
        added: Any = None
        for mask, value in zip(self._masks, masks):
            if mask.kind == "add":
                added = call(torch.Tensor.to, value, dtype)
                continue
            one = value if mask.kind == "keep" else call(torch.logical_not, value)
            keep = one if keep is None else call(torch.logical_and, keep, one)
        if keep is None:
            return added
        fill = max(mask.fill for mask in self._masks if mask.kind != "add")
        if added is None and fill == -math.inf:
            return keep
        number = -1e30 if fill != -math.inf else -math.inf
        base = added if added is not None else call(torch.zeros_like, keep, dtype=dtype)
        return call(torch.Tensor.masked_fill, base, call(torch.logical_not, keep), number)

    # the replacement, once on real tensors and once as graph nodes

    def compute(self, query: Any, key: Any, value: Any, masks: list[Any]) -> Any:
        """The replacement on real tensors, dropout left out."""

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return self._write(call, (query, key, value), masks, dropout=0.0, dtype=query.dtype)

    def emit(self, *, dropout: float) -> None:
        """Put the replacement into the graph in the place of the site."""
        graph, site = self._graph, self._site
        torch = self._torch
        wanted = getattr(value_of(site.output), "dtype", None)
        device = value_of(site.query.node).device
        dtype = torch.get_autocast_dtype(device.type) if self._autocast else value_of(site.query.node).dtype
        # Autocast casts what SDPA is given, except float64.
        if value_of(site.query.node).dtype == torch.float64:
            dtype = torch.float64
        with graph.inserting_before(site.output):

            def call(function: Any, *args: Any, **kwargs: Any) -> Any:
                name = str(getattr(function, "__name__", ""))
                if getattr(torch.Tensor, name, None) is function:
                    node = graph.call_method(name, args, kwargs)
                else:
                    node = graph.call_function(function, args, kwargs)
                node.meta.update(
                    (key, site.output.meta[key])
                    for key in ("stack_trace", "nn_module_stack")
                    if key in site.output.meta
                )
                return node

            masks = [mask.node for mask in self._masks]
            new = self._write(
                call,
                (site.query.node, site.key.node, site.value.node),
                masks,
                dropout=dropout,
                dtype=dtype,
                cast=wanted if wanted is not None and wanted != dtype else None,
            )
        new.meta["example_value"] = value_of(site.output)
        site.output.replace_all_uses_with(new)
        inside = set(site.nodes)
        for node in reversed(list(graph.nodes)):
            if node in inside and not node.users:
                graph.erase_node(node)
        for mask in site.masks:
            _erase(graph, mask.node)

    def _write(
        self,
        call: Any,
        operands: tuple[Any, Any, Any],
        masks: list[Any],
        *,
        dropout: float,
        dtype: Any,
        cast: Any = None,
    ) -> Any:
        """Write it with ``call(function, *args)``, which computes or makes a graph node."""
        torch, site = self._torch, self._site
        permute, unsqueeze, squeeze = torch.Tensor.permute, torch.Tensor.unsqueeze, torch.Tensor.squeeze

        def ordered(side: Side, operand: Any) -> Any:
            return operand if side.order is None else call(permute, operand, side.order)

        query, key, value = (
            ordered(side, operand) for side, operand in zip((site.query, site.key, site.value), operands)
        )
        mask = self._combine(masks, call, dtype) if self._masks else None
        # The fast kernels take four dimensions only.
        for _ in range(4 - self._dims):
            at = 1 if self._dims == 3 else 0
            query, key, value = (call(unsqueeze, x, at) for x in (query, key, value))
        if (
            mask is not None
            and self._dims == 3
            and max(len(shape_of(m.node) or ()) for m in self._masks) == 3
        ):
            mask = call(unsqueeze, mask, 1)
        result = call(
            torch.nn.functional.scaled_dot_product_attention,
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=self._causal,
            scale=site.scale,
        )
        for _ in range(4 - self._dims):
            result = call(squeeze, result, 1 if self._dims == 3 else 0)
        if site.output_order is not None and site.output_order != tuple(range(self._dims)):
            result = call(permute, result, site.output_order)
        return result if cast is None else call(torch.Tensor.to, result, cast)


def _erase(graph: Any, node: Any) -> None:
    """Erase a node without users, and what only it used, as far as that is neither input nor random."""
    if node.users or node.op in ("placeholder", "output", "root"):
        return
    inputs = list(node.all_input_nodes)
    graph.erase_node(node)
    for other in inputs:
        name = other.target if isinstance(other.target, str) else getattr(other.target, "__name__", "")
        if other.op == "get_attr" or (other.op.startswith("call_") and not _impure(name)):
            _erase(graph, other)


def _impure(name: str) -> bool:
    return (
        (name.endswith("_") and not name.endswith("__"))
        or name in ("setitem", "dropout", "copy_")
        or "rand" in name
        or "autocast" in name
        or "grad" in name
    )


def _ordered_shape(side: Side) -> tuple[Any, ...] | None:
    shape = shape_of(side.node)
    if shape is None:
        return None
    return shape if side.order is None else tuple(shape[i] for i in side.order)
