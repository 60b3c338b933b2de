"""Is a replaced attention the same function? Both are run, in float64, with gradients.

The nodes of the program's own graph are run as they stand, not our reading of them, so a fault in the
reading shows here. In float64 (casts in between become casts to float64) rounding cannot hide a
difference, and dropout is left out on both sides: its draws differ by nature.
"""

from __future__ import annotations

from typing import Any, Callable

from .attention_match import Mask, Site
from .graph_mask import NotConstant
from .graph_ops import Ops, hint_of, shape_of, value_of

TOLERANCE = 1e-9
"""Largest difference over the largest value, in outputs and in gradients of q, k and v."""


class Different(Exception):
    """The replacement gives other numbers; ``str`` says how far off."""


def check(
    torch: Any,
    graph_module: Any,
    site: Site,
    replacement: Callable[..., Any],
    constants: Callable[[Any], Any],
) -> float:
    """Run both on random q, k, v of the site's shapes; the largest relative difference.

    ``replacement(q, k, v, masks)`` computes it anew from real tensors, where ``masks`` has a tensor for
    each of ``site.masks``; ``constants(node)`` gives the real value of a constant node, or raises.
    First with all batch dimensions 1; as they stand where the graph does not take that.
    """
    try:
        return _check(torch, graph_module, site, replacement, constants, small=True)
    except Different:
        raise
    except Exception:
        # A mask or a permutation that insists on the full batch.
        return _check(torch, graph_module, site, replacement, constants, small=False)


def _check(
    torch: Any, graph_module: Any, site: Site, replacement: Any, constants: Any, *, small: bool
) -> float:
    device = value_of(site.query.node).device
    generator = torch.Generator(device=device)
    generator.manual_seed(20240717)
    nodes = (site.query.node, site.key.node, site.value.node)
    leaves: dict[Any, Any] = {}
    for node, side in zip(nodes, (site.query, site.key, site.value)):
        if node in leaves:
            continue
        shape = [hint_of(size) for size in shape_of(node) or ()]
        if small:
            order = side.order or tuple(range(len(shape)))
            for dimension in order[:-2]:
                shape[dimension] = 1
        leaf = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
        leaves[node] = leaf.requires_grad_(True)
    masks = [_mask_value(torch, mask, constants, generator) for mask in site.masks]
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        expected = _run_site(torch, graph_module, site, leaves=leaves, masks=masks, constants=constants)
        found = replacement(*(leaves[node] for node in nodes), masks)
        if expected.shape != found.shape:
            raise Different(f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
        weights = torch.randn(expected.shape, generator=generator, device=device, dtype=torch.float64)
        inputs = list(leaves.values())
        wanted = torch.autograd.grad((expected * weights).sum(), inputs)
        given = torch.autograd.grad((found * weights).sum(), inputs)
    worst = 0.0
    for a, b in zip((expected, *wanted), (found, *given)):
        difference = _relative(a.detach(), b.detach())
        if not difference <= TOLERANCE:
            raise Different(f"differs by {difference:.1e} of the largest value")
        worst = max(worst, difference)
    return worst


def _relative(a: Any, b: Any) -> float:
    largest = float(a.abs().max())
    return float((a - b).abs().max()) / (largest or 1.0)


def _mask_value(torch: Any, mask: Mask, constants: Any, generator: Any) -> Any:
    """The mask's real value where it is constant; else a random one of its shape and dtype.

    A random one keeps the first key of every row: for a row that is masked whole, a finite fill gives
    the same output either way but stops gradients only as written.
    """
    try:
        return constants(mask.node)
    except NotConstant:
        fake = value_of(mask.node)
    shape = [hint_of(size) for size in fake.shape]
    random = torch.rand(shape, generator=generator, device=fake.device)
    if fake.dtype != torch.bool:
        return random.to(torch.float64) * 2 - 1
    keep = random > 0.3
    if keep.dim():
        keep[..., 0] = True
    return keep if mask.kind == "keep" else ~keep


def _run_site(torch: Any, graph_module: Any, site: Site, *, leaves: Any, masks: Any, constants: Any) -> Any:
    """Run the site's own nodes on real tensors, with every float dtype read as float64."""
    from torch.fx.node import map_arg

    ops = Ops(torch)
    values = dict(leaves)
    for mask, value in zip(site.masks, masks):
        values[mask.node] = value
    doubles = (torch.float16, torch.bfloat16, torch.float32)

    def real(node: Any) -> Any:
        if node not in values:
            values[node] = run(node) if node in inside else constants(node)
        return values[node]

    inside = set(site.nodes)
    for node in list(site.nodes):
        # Transpositions between q or k and the product: views that the replacement writes anew.
        inside.update(n for n in node.all_input_nodes if ops.name(graph_module, n) == "transpose")

    def widen(item: Any) -> Any:
        if isinstance(item, (tuple, list)):
            return type(item)(widen(x) for x in item)
        return torch.float64 if isinstance(item, torch.dtype) and item in doubles else item

    def run(node: Any) -> Any:
        op = ops.name(graph_module, node)
        unread = node.args[0] if op == "baddbmm" and node.kwargs.get("beta", 1) == 0 else None
        args = map_arg(tuple(widen(a) for a in node.args if a is not unread), real)
        kwargs = map_arg({key: widen(value) for key, value in node.kwargs.items()}, real)
        if op == "dropout":
            return args[0]
        if unread is not None:
            # Mostly torch.empty, whose numbers nothing reads.
            args = (torch.zeros((), dtype=torch.float64, device=args[0].device), *args)
        if op == "cast":
            return args[0].double()
        if node.op == "call_module":
            return graph_module.get_submodule(node.target)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)

    return real(site.output)
