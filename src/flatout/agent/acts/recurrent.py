"""Recurrent layers under BF16 autocast on a GPU.

Autocast hands ``torch._cudnn_rnn`` float16 whatever dtype it was asked for (aten/src/ATen/cudnn/
AutocastRNN.cpp casts to ``at::kHalf``): an LSTM under ``autocast(dtype=torch.bfloat16)`` runs in FP16,
without a loss scaler, and small gradients become nil (of a language model's hidden weights 8 %, with the
loss a mean over its tokens). So the layers are called outside autocast, with what they are given cast to
bfloat16 where cuDNN has it (9.13 and later, pytorch#164411) and to float32 elsewhere.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable

_NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CUDNN_WITH_BFLOAT16 = 91300
_TORCH_WITH_BFLOAT16 = (2, 10)


class Recurrent:
    """Stands before the functions that ``nn.LSTM`` and the like call."""

    def __init__(self, torch: Any, device_type: str = "cuda") -> None:
        self._torch = torch
        self._device_type = device_type
        self._originals: dict[str, Callable[..., Any]] = {}
        self._dtype: Any = None
        self.calls: dict[str, int] = {}
        """Dtype -> calls."""

    def watch(self) -> None:
        # of the cast copies, at each call: true, and nothing that the program could do about it
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
        for name in _NAMES:
            original = getattr(self._torch._VF, name, None)
            if original is not None:
                self._originals[name] = original
                wrapper = self._around(original)
                setattr(self._torch._VF, name, wrapper)
                self._tell_jit(wrapper, f"aten::{name}")

    def unwatch(self) -> None:
        for name, original in self._originals.items():
            setattr(self._torch._VF, name, original)
        self._originals = {}

    def _tell_jit(self, wrapper: Callable[..., Any], operator: str) -> None:
        """torch.jit.script knows its operators by the functions' identity."""
        with contextlib.suppress(AttributeError):  # an internal of torch's
            self._torch.jit._builtins._register_builtin(wrapper, operator)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        torch, device_type = self._torch, self._device_type

        def recurrent(*args: Any, **kwargs: Any) -> Any:
            if not (
                args
                and torch.is_autocast_enabled(device_type)
                and torch.get_autocast_dtype(device_type) == torch.bfloat16
                and args[0].device.type == device_type
                and args[0].dtype != torch.float64
            ):
                return original(*args, **kwargs)
            if self._dtype is None:
                self._dtype = self.chosen_dtype()
            dtype = self._dtype
            if not torch.compiler.is_compiling():
                name = str(dtype).replace("torch.", "")
                self.calls[name] = self.calls.get(name, 0) + 1
            torch.set_autocast_enabled(device_type, False)
            try:
                return original(
                    *(self._cast(one, dtype) for one in args),
                    **{key: self._cast(one, dtype) for key, one in kwargs.items()},
                )
            finally:
                torch.set_autocast_enabled(device_type, True)

        return recurrent

    def chosen_dtype(self) -> Any:
        """What torch and cuDNN allow here."""
        torch = self._torch
        if self._device_type != "cuda":
            return torch.bfloat16
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        cudnn = torch.backends.cudnn
        enough = not torch.version.hip and version >= _TORCH_WITH_BFLOAT16
        if enough and cudnn.enabled and (cudnn.version() or 0) >= _CUDNN_WITH_BFLOAT16:
            return torch.bfloat16
        return torch.float32

    def _cast(self, value: Any, dtype: Any) -> Any:
        if isinstance(value, (list, tuple)):  # a state may be a named tuple
            return [self._cast(one, dtype) for one in value]
        if self._torch.is_tensor(value) and value.is_floating_point():
            return value.to(dtype)
        return value
