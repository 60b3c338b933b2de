"""The rounding of a format with fewer bits, woven into the truth: what honest arithmetic of that format
does to this program's gradients, in everything but the order of sums.

What autocast lowers is rounded where it goes into a product, and so are the gradients that flow back
through it. From the first training call to ``backward``, as the techniques open autocast themselves; a
region that the program opens inside with autocast off stays exact, and one that it opens to fewer bits
still keeps those. TF32 knows no regions: every product's inputs lose bits, and nothing else does. What
runs on another device than the model (data made on a CPU) stays exact. The range of a format is left
out: numbers that overflow or vanish are never to be excused.

``draw`` 0 rounds to the format's own numbers. Each other one rounds to a grid that is shifted anew for
every tensor (times a number from 1 to 2, rounded, divided again): other errors of the same size, as another
kernel's would be; ``fewer_bits`` makes them larger.

Not seen: what goes on inside one fused operator (an attention's weights, a recurrent net's state from step
to step), whose inputs and outputs alone are rounded.
"""

from __future__ import annotations

import functools
import random
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

BITS = {"tf32": 11, "fp16": 11, "bf16": 8, "fp8": 4, "mxfp8": 4, "nvfp4": 2}
"""Of the significand, the hidden one included."""
_FLOAT32_BITS = 24
_LEAST_BITS = 2
_PRODUCTS = frozenset(
    (
        *("linear", "bilinear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "chain_matmul"),
        *("addmm", "addmv", "addbmm", "baddbmm", "einsum", "tensordot", "multi_dot", "conv_tbc"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"),
        *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    )
)
_MADE_OF_PRODUCTS = ("multi_head_attention_forward",)
"""Functions of torch's own, in Python, whose products are to be seen one by one."""


class Rounding:
    """``format``: a key of ``BITS``."""

    def __init__(
        self,
        torch: Any,
        format: str,  # noqa: A002
        draw: int = 0,
        fewer_bits: int = 0,
    ) -> None:
        self.torch = torch
        self.bits = max(_LEAST_BITS, BITS[format] - fewer_bits)
        self.everywhere = format == "tf32"
        self.open = False
        """The program is between its first training call and ``backward``."""
        self.device = "cuda" if self.everywhere else ""
        """Whose products lose bits; empty: not known yet, and so all."""
        self._regions: list[tuple[Any, int | None]] = []
        """Autocast regions of the program that are open, outermost first: how many bits they keep; None:
        all."""
        self._shift: Any = random.Random(draw).random if draw else None
        self._apply: Any = _function(torch, self.nearest).apply

    def nearest(self, tensor: Any, bits: int) -> Any:
        """Of the grid of this draw."""
        if self._shift is None:
            return rounded(self.torch, tensor, bits)
        scale = 1.0 + self._shift()
        near = rounded(self.torch, tensor * scale, bits) / scale
        return self.torch.where(self.torch.isfinite(near), near, tensor)

    @property
    def present(self) -> int | None:
        """Bits that a product keeps now; None: all."""
        bits = self._regions[-1][1] if self._regions else None
        if self.everywhere:
            return self.bits if bits is None else min(self.bits, bits)
        if self._regions and self._regions[-1][1] is None:
            return None
        if not self.open:
            return bits
        return self.bits if bits is None else min(self.bits, bits)

    def training_call(self, module: Any) -> None:
        """An outermost call of a model in training begins."""
        self.open = True
        if not self.everywhere:
            self.device = next((one.device.type for one in module.parameters()), self.device)

    def watch_autocast(self) -> None:
        """Know of the program's own regions."""
        autocast = self.torch.amp.autocast_mode.autocast
        enter, leave = autocast.__enter__, autocast.__exit__

        @functools.wraps(enter)
        def __enter__(region: Any) -> Any:  # noqa: N807
            self._entered(region)
            return enter(region)

        @functools.wraps(leave)
        def __exit__(region: Any, *error: Any) -> Any:  # noqa: N807
            for place in range(len(self._regions) - 1, -1, -1):
                if self._regions[place][0] is region:
                    del self._regions[place]
                    break
            return leave(region, *error)

        autocast.__enter__, autocast.__exit__ = __enter__, __exit__

    def _entered(self, region: Any) -> None:
        # a truth in float32 puts them off, and a program may enter one object again and again
        if not hasattr(region, "_flatout_enabled"):
            region._flatout_enabled = bool(region._enabled)
        kept = {self.torch.bfloat16: BITS["bf16"], self.torch.float16: BITS["fp16"]}.get(region.fast_dtype)
        if region._flatout_enabled and kept is not None:
            self._regions.append((region, kept))
        elif self.open:
            self._regions.append((region, None))
        # one around the training call is what a technique overrides

    def product(self, func: Any) -> Callable[..., Any] | None:
        """What is to be called in place of ``func``; None: it is left as it is."""
        name = getattr(func, "__name__", "")
        if name in _MADE_OF_PRODUCTS and isinstance(func, types.FunctionType):
            opened: Callable[..., Any] = _opened(func)
            return opened
        bits = self.present if name in _PRODUCTS else None
        if bits is None:
            return None

        def product(*args: Any, **kwargs: Any) -> Any:
            return self._rounded_call(func, bits, args, kwargs)

        return product

    def _rounded_call(self, func: Any, bits: int, args: Any, kwargs: Any) -> Any:
        with_output = not (self.everywhere and bits == self.bits)
        args = self._each(args, bits, bits if with_output else None)
        kwargs = self._each(kwargs, bits, bits if with_output else None)
        result = func(*args, **kwargs)
        if kwargs.get("out") is not None:
            return result
        return self._each(result, bits if with_output else None, bits)

    def _each(self, value: Any, forward: int | None, backward: int | None) -> Any:
        """All floating-point tensors in nested containers, rounded on their way in and out."""
        torch = self.torch
        if isinstance(value, torch.Tensor):
            if value.dtype not in (torch.float64, torch.float32) or value.layout is not torch.strided:
                return value
            if self.device and value.device.type != self.device:
                return value
            with torch._C.DisableTorchFunction():
                return self._apply(value, forward, backward)
        if type(value) in (list, tuple):
            return type(value)(self._each(one, forward, backward) for one in value)
        if type(value) is dict:
            return {
                key: one if key == "out" else self._each(one, forward, backward)
                for key, one in value.items()
            }
        return value

    def mode(self) -> Any:
        """For a truth in float32, which has no mode of its own."""
        from torch.overrides import TorchFunctionMode

        rounding = self

        class Rounded(TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                product = rounding.product(func) or func
                if getattr(product, "flatout_opened", False):
                    with self:
                        return product(*args, **(kwargs or {}))
                return product(*args, **(kwargs or {}))

        return Rounded()


def rounded(torch: Any, tensor: Any, bits: int) -> Any:
    """The nearest numbers of so many bits, of two equally near ones the even; in the dtype that it had.
    What is too large for it stays as it is."""
    values = tensor.float()
    drop = _FLOAT32_BITS - bits
    whole = values.view(torch.int32)
    whole = (whole + ((1 << (drop - 1)) - 1) + ((whole >> drop) & 1)) & -(1 << drop)
    near = whole.view(torch.float32)
    return torch.where(torch.isfinite(values) & torch.isfinite(near), near.to(tensor.dtype), tensor)


def _function(torch: Any, nearest: Callable[[Any, int], Any]) -> Any:
    class Round(torch.autograd.Function):  # type: ignore[misc]
        """``forward`` and ``backward``: bits kept each way; None: all."""

        @staticmethod
        def forward(ctx: Any, tensor: Any, forward: int | None, backward: int | None) -> Any:
            ctx.forward_bits, ctx.backward_bits = forward, backward
            return tensor.view_as(tensor) if forward is None else nearest(tensor, forward)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            with torch._C.DisableTorchFunction():
                return Round.apply(gradient, ctx.backward_bits, ctx.forward_bits), None, None

    return Round


def _opened(func: Any) -> Any:
    """The same function without its first lines' detour for function modes, so that a mode sees what it
    is made of."""
    names = {
        name: _never if name.startswith("has_torch_function") else value
        for name, value in func.__globals__.items()
    }
    copy = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    copy.flatout_opened = True  # type: ignore[attr-defined]
    return copy


def _never(*_: Any) -> bool:
    return False
