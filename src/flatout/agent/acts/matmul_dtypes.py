"""Which dtype matrix products really ran in: the proof of mixed precision."""

from __future__ import annotations

from typing import Any

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_RECURRENT = (
    "lstm",
    "gru",
    "rnn_tanh",
    "rnn_relu",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
)
_PRODUCTS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "bilinear", "__matmul__")
_ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
_NAMES = frozenset(_CONVOLUTIONS + _RECURRENT + _PRODUCTS + _ATTENTION)
_MODULES = ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")


def watched_call(torch: Any, counts: dict[str, int], call: Any, args: Any, kwargs: Any) -> Any:
    """Run ``call`` once, counting the dtypes of its matrix products into ``counts``.

    A function mode sees every torch function called from Python, whichever way the model is written.
    It costs about three times the Python time of each, so it is used for a single call.
    """
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if getattr(func, "__name__", "") in _NAMES:
                count(torch, counts, result)
            return result

    with Watch():
        return call(*args, **kwargs)


def watch_graph(torch: Any, counts: dict[str, int], graph_module: Any) -> None:
    """Count the dtypes of the matrix products in a graph that dynamo captured."""
    for node in graph_module.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op == "call_module":
            name = type(graph_module.get_submodule(node.target)).__name__
        if name in _NAMES or name in _MODULES:
            count(torch, counts, node.meta.get("example_value"))


def count(torch: Any, counts: dict[str, int], result: Any) -> None:
    """Add one for the dtype of ``result``, or of the first tensor in it."""
    while isinstance(result, (tuple, list)) and result:
        result = result[0]
    if torch.is_tensor(result):
        name = str(result.dtype).replace("torch.", "")
        counts[name] = counts.get(name, 0) + 1
