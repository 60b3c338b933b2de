"""The least time that an operator's work can take: arithmetic over the peak of its precision, or bytes
over the memory's bandwidth, whichever is more (Williams, Waterman and Patterson, CACM 52, 2009).

Arithmetic and bytes follow from the shapes and dtypes of the inputs, each input read once, each output
written once: what no order of the same operators can save. Only products, convolutions and attention are
counted as arithmetic; beside these, bytes decide. An operator that only calls
others has no work of its own. Where a cache serves what was just written, a kernel can be faster than
this; its floor is then its own time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flatout.search.peaks import BYTES
from flatout.trial import Work

ITEM_BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4,
    "short int": 2, "short": 2, "signed char": 1, "unsigned char": 1, "bool": 1, "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1, "c10::complex<float>": 8, "c10::complex<double>": 16, "list": 4,
}  # fmt: skip
"""By the names that torch's profiler gives. Of a list of tensors the dtype is not told: taken for float32,
as an optimiser's states are."""
PRECISIONS = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
}
_TF32_KERNEL = re.compile(r"tf32|s1688|tensorop_s\d", re.IGNORECASE)
"""In the names of cuBLAS's, CUTLASS's and cuDNN's kernels that multiply in TF32."""

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one call."""

    flops: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Of all calls of one row of work."""

    seconds: float
    arithmetic: bool
    """Bound by arithmetic; else by memory."""
    precision: str


def floor_of(work: Work, peaks: Mapping[str, float]) -> Floor | None:
    """None where shapes do not tell its work, or nothing is known of the device."""
    cost = cost_of(work)
    if cost is None or not peaks.get(BYTES):
        return None
    memory = work.calls * cost.bytes / peaks[BYTES]
    precision = precision_of(work)
    arithmetic = 0.0
    if cost.flops:
        rate = peaks.get(precision)
        if rate is None:
            return None
        arithmetic = work.calls * cost.flops / rate
        if precision == "float32" and arithmetic > work.seconds and peaks.get("tf32", 0.0) > rate:
            # faster than FP32 can be: it ran in TF32, whatever its kernel is called
            precision = "tf32"
            arithmetic = work.calls * cost.flops / peaks["tf32"]
    least = max(memory, arithmetic)
    return Floor(
        seconds=min(least, work.seconds),
        arithmetic=arithmetic >= memory and arithmetic > 0,
        precision=precision if cost.flops else "",
    )


def precision_of(work: Work) -> str:
    """Of its arithmetic, as it ran: ``tf32`` is told by the kernel's name."""
    low = [PRECISIONS[dtype] for dtype, shape in work.inputs if dtype in PRECISIONS and len(shape) >= 2]
    precision = low[0] if low else "float32"
    if precision == "float32" and any(_TF32_KERNEL.search(name) for name, _ in work.kernels):
        return "tf32"
    return precision


def cost_of(work: Work) -> Cost | None:
    """Arithmetic and bytes of one call; None where the shapes do not tell."""
    name = work.operator
    if not work.inputs:
        return None
    if name.startswith("triton_"):
        return _inductor(work)
    if "::" not in name:
        return None  # a range, a backward node or a kernel's own name: not an operator
    name = name.partition("::")[2]
    for pattern, cost in _KINDS:
        if pattern.fullmatch(name):
            try:
                return cost(work, name)
            except (IndexError, ValueError, ZeroDivisionError):
                return None
    return None


def _size(shape: Shape) -> int:
    return math.prod(shape)


def _bytes(work: Work, place: int) -> float:
    return _item(work, place) * _size(work.inputs[place][1])


def _all_bytes(work: Work) -> float:
    return sum(_bytes(work, place) for place in range(len(work.inputs)))


def _item(work: Work, place: int = 0) -> int:
    dtype = work.inputs[place][0]
    if dtype not in ITEM_BYTES:
        raise ValueError(dtype)
    return ITEM_BYTES[dtype]


def _product(work: Work, name: str) -> Cost:
    """``mm(a, b)``, ``addmm(c, a, b)``, ``bmm``, ``baddbmm``; ``linear(x, w, bias)``."""
    if "linear" in name:
        (_, x), (_, weight) = work.inputs[:2]
        rows, inner, columns, batch = _size(x[:-1]), x[-1], weight[0], 1
    else:
        first = 1 if "add" in name else 0
        a, b = work.inputs[first][1], work.inputs[first + 1][1]
        batch = a[0] if len(a) == 3 else 1
        rows, inner, columns = a[-2], a[-1], b[-1]
        if b[-2] != inner:
            raise ValueError(name)
    output = batch * rows * columns * _item(work)
    return Cost(flops=2.0 * batch * rows * inner * columns, bytes=_all_bytes(work) + output)


def _convolution(work: Work, name: str) -> Cost:
    (_, given), (_, weight) = work.inputs[:2]
    lists = [numbers for numbers in work.numbers if len(numbers) == len(weight) - 2]
    if "transpose" in name:
        flops = 2.0 * _size(given) * _size(weight[1:])
        return Cost(flops=flops, bytes=_all_bytes(work) + _bytes(work, 0))
    if "depthwise" in name:
        _, stride, padding, dilation = lists[:4]
    elif name == "convolution_overrideable":
        stride, padding, dilation = lists[:3]
    else:
        padding, stride, dilation = lists[:3]
    places = [
        (size + 2 * pad - step * (kernel - 1) - 1) // stride_ + 1
        for size, kernel, pad, stride_, step in zip(
            given[2:], weight[2:], padding, stride, dilation, strict=True
        )
    ]
    output = given[0] * weight[0] * _size(tuple(places))
    return Cost(flops=2.0 * output * _size(weight[1:]), bytes=_all_bytes(work) + output * _item(work))


def _convolution_backward(work: Work, _name: str) -> Cost:
    (_, above), (_, _given), (_, weight) = work.inputs[:3]
    mask = next((numbers for numbers in reversed(work.numbers) if len(numbers) == 3), (1, 1, 0))
    wanted = sum(1 for one in mask[:2] if one)
    one = 2.0 * _size(above) * _size(weight[1:])
    moved = _all_bytes(work) + mask[0] * _bytes(work, 1) + mask[1] * _bytes(work, 2)
    return Cost(flops=wanted * one, bytes=moved)


_CAUSAL_AT = {
    "_flash_attention_forward": 8,
    "_flash_attention_backward": 11,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_flash_attention_for_cpu": 4,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "_efficient_attention_forward": 9,
    "_efficient_attention_backward": 14,
    "_scaled_dot_product_cudnn_attention": 6,
    "_cudnn_attention_forward": 10,
}
"""Where torch's own schema has whether the mask is causal (or of which kind): half of the products are
then not needed."""
_LENGTH_BEFORE_HEADS = ("_flash_attention_", "_efficient_attention_")
"""Called with (batch, length, heads, size); the others with (batch, heads, length, size)."""


def _attention(work: Work, name: str) -> Cost:
    backward = "backward" in name
    first = 1 if backward else 0
    query, key = work.inputs[first][1], work.inputs[first + 1][1]
    if len(query) != 4:
        raise ValueError(name)
    batch, size = query[0], query[3]
    if name.startswith(_LENGTH_BEFORE_HEADS):
        queries, heads, keys = query[1], query[2], key[1]
    else:
        heads, queries, keys = query[1], query[2], key[2]
    place = _CAUSAL_AT.get(name)
    told = work.numbers[place] if place is not None and place < len(work.numbers) else ()
    # not told: half, since this is to be the least
    part = 0.5 if not told or told[0] else 1.0
    products = 5.0 if backward else 2.0
    flops = part * products * 2.0 * batch * heads * queries * keys * size
    output = sum(_bytes(work, place) for place in range(first, first + (3 if backward else 1)))
    return Cost(flops=flops, bytes=sum(_bytes(work, i) for i in range(first + 3)) + output)


def _lists(work: Work, name: str) -> Cost:
    """Operators over lists of tensors: an optimiser's."""
    lists = [4.0 * shape[0] for dtype, shape in work.inputs if dtype == "list" and shape]
    if not lists or not lists[0]:
        raise ValueError(name)
    largest = max(lists)
    if "adam" in name:
        return Cost(bytes=sum(lists) + 3 * largest)  # writes weights and both moments
    if "sgd" in name:
        return Cost(bytes=sum(lists) + (2 if len(lists) > 2 else 1) * largest)
    if "zero" in name:
        return Cost(bytes=largest)
    if any(part in name for part in ("norm", "non_finite", "copy")):
        return Cost(bytes=sum(lists))
    return Cost(bytes=sum(lists) + lists[0])


def _filled(work: Work, _name: str) -> Cost:
    return Cost(bytes=_bytes(work, 0))


def _copied(work: Work, _name: str) -> Cost:
    """``copy_(to, from)``."""
    return Cost(bytes=_bytes(work, 0) + _bytes(work, 1))


def _reduced(work: Work, _name: str) -> Cost:
    return Cost(bytes=_all_bytes(work))


def _gathered(work: Work, name: str) -> Cost:
    """Rows taken out of a table by number: only these are read."""
    if "backward" in name:
        return Cost(bytes=3 * _bytes(work, 0))  # adds to rows: reads both, writes one
    table, numbers = work.inputs[0][1], work.inputs[1][1]
    width = table[-1] if len(table) > 1 and name != "gather" else 1
    return Cost(bytes=2.0 * _size(numbers) * width * _item(work) + _bytes(work, 1))


def _concatenated(work: Work, _name: str) -> Cost:
    return Cost(bytes=2 * _all_bytes(work))


def _normalised_backward(work: Work, _name: str) -> Cost:
    return Cost(bytes=_all_bytes(work) + _bytes(work, 0))


def _elementwise(work: Work, _name: str) -> Cost:
    """Reads its inputs, writes an output of their common shape."""
    rank = max(len(shape) for _, shape in work.inputs)
    common = [1] * rank
    item = 1
    for place, (dtype, shape) in enumerate(work.inputs):
        item = max(item, _item(work, place)) if shape and dtype != "bool" else item
        for back, size in enumerate(reversed(shape), start=1):
            common[-back] = max(common[-back], size)
    return Cost(bytes=_all_bytes(work) + item * math.prod(common))


def _compared(work: Work, _name: str) -> Cost:
    return Cost(bytes=_all_bytes(work) + max(_size(shape) for _, shape in work.inputs))


def _inductor(work: Work) -> Cost | None:
    """A generated kernel is called with every buffer that it reads or writes."""
    try:
        moved = [_bytes(work, place) for place in range(len(work.inputs))]
    except ValueError:
        return None
    if any(part in work.operator for part in ("embedding", "index", "gather")) and len(moved) > 1:
        moved.remove(max(moved))  # a table, of which it may read little
    return Cost(bytes=sum(moved))


_KINDS: tuple[tuple[re.Pattern[str], Callable[[Work, str], Cost]], ...] = tuple(
    (re.compile(pattern), cost)
    for pattern, cost in (
        (
            r"mm|bmm|addmm|baddbmm|_addmm_activation|mkldnn_linear|_mkl_linear|_linear_pointwise|_int_mm"
            r"|_scaled_mm",
            _product,
        ),
        (r"convolution_backward(_overrideable)?|mkldnn_convolution_backward", _convolution_backward),
        (
            r"(cudnn|mkldnn|miopen)_convolution(_transpose|_relu|_add_relu)?|_convolution_pointwise"
            r"|convolution_overrideable|_?conv_depthwise[23]d",
            _convolution,
        ),
        (r".*(flash|efficient|cudnn)_attention.*", _attention),
        (r"_foreach_\w+|_fused_(adamw?|sgd|adagrad)_|_amp_foreach\w+", _lists),
        (r"(zero|fill|normal|uniform|bernoulli|random|exponential|log_normal|trunc_normal)_", _filled),
        (r"copy_", _copied),
        (
            r"(sum|max|min|amax|amin|argmax|argmin|norm|linalg_vector_norm|var|var_mean|std|prod|all"
            r"|any|logsumexp|nll_loss\w*|nonzero|item|_local_scalar_dense|dot|equal)",
            _reduced,
        ),
        (r"index_select|gather|index|embedding|embedding_dense_backward", _gathered),
        (r"cat|_cat", _concatenated),
        (
            r"(native|cudnn|_fused)_?(layer|batch|group|rms)_norm_backward|_\w+_norm_backward",
            _normalised_backward,
        ),
        (r"(eq|ne|lt|le|gt|ge|logical_\w+|isnan|isfinite|isinf)", _compared),
        (
            r"(add|sub|rsub|mul|div|neg|abs|exp|log|log1p|expm1|sqrt|rsqrt|pow|sin|cos|tanh|sigmoid|erf|silu"
            r"|gelu|relu|elu|leaky_relu|softplus|hardtanh|threshold|where|masked_fill|clamp|clamp_min"
            r"|clamp_max|minimum|maximum|lerp|addcmul|addcdiv|reciprocal|square|sign|floor|ceil|round|tril"
            r"|triu|native_dropout|native_dropout_backward|bitwise_\w+|mish|hardswish|_softmax|_log_softmax"
            r"|_safe_softmax|_softmax_backward_data|_log_softmax_backward_data|tanh_backward"
            r"|sigmoid_backward|silu_backward|gelu_backward|relu_backward|threshold_backward"
            r"|(native|cudnn)_(layer|batch|group)_norm|_batch_norm_with_update|cudnn_batch_norm"
            r"|_fused_rms_norm|glu|glu_backward|elu_backward|leaky_relu_backward|cumsum|flip|roll"
            r"|upsample_\w+|mse_loss|mse_loss_backward)_?",
            _elementwise,
        ),
    )
)
