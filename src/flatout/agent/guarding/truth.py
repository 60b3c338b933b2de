"""The program in float64: what its gradients truly are, at the weights and batch that others round.

Its parameters and buffers are cast up in place, and a function mode casts up whatever else is given to
torch and turns every request for fewer bits into one for 64. Random numbers are drawn as float32, as in
the untouched program, and then cast up, so that they are the same. Autocast leaves float64 alone. The
optimiser and the gradient scaler are left alone too: their steps only pass the time between two looks.

Where that does not work (memory, an operator without float64, a graph of the program's own), the truth is
float32 without TF32 and without autocast.

A *control* is the truth with the rounding of a format woven in (rounding.py).
"""

from __future__ import annotations

import functools

from . import weights
from .rounding import Rounding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DRAWING = (
    "rand",
    "randn",
    "rand_like",
    "randn_like",
    "normal",
    "bernoulli",
    "poisson",
    "multinomial",
    "dropout",
)
_DRAWING_IN_PLACE = (
    "normal_",
    "uniform_",
    "bernoulli_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "trunc_normal_",
)
_LEFT_ALONE = ("view", "untyped_storage", "storage", "data_ptr", "__set__", "__get__", "__delete__")
_SCALER = ("scale", "unscale_", "step", "update")


class Truth:
    """``precision``: ``float64``, or ``float32`` for what is as near as this program can be brought;
    ``rounding``: of a control, or None."""

    def __init__(self, guarding: Any, precision: str, rounding: Rounding | None = None) -> None:
        self.guarding = guarding
        self.torch = guarding.torch
        self.double = precision == "float64"
        self.rounding = rounding
        self._mode: Any = None
        self.asleep = 0
        """Above 0 the mode lets everything through: optimiser, scaler, the agent itself."""

    def prepare(self) -> None:
        """Right after torch's import."""
        if self.double:
            self._patch_scaler()
            self._patch_ddp()
        else:
            self._patch_autocast()
            self.no_tf32()
        if self.rounding is not None:
            self.rounding.watch_autocast()
            if not self.double:
                self._mode = self.rounding.mode()
                self._mode.__enter__()

    def training_call(self, module: Any) -> None:
        """An outermost call of a model in training begins."""
        if self.rounding is not None:
            self.rounding.training_call(module)

    def backward_ended(self) -> None:
        if self.rounding is not None:
            self.rounding.open = False

    def no_tf32(self) -> None:
        """Also before each look, since the program may have set it."""
        if self.double:
            return
        torch = self.torch
        try:
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
        except RuntimeError:  # the program uses the newer settings
            torch.backends.fp32_precision = "ieee"

    def lift(self, *, once: bool = False) -> None:
        """Cast up everything that is there by now, and what is made from now on. ``once``: unless that has
        been done before."""
        if not self.double or (once and self._mode is not None):
            return
        torch = self.torch
        self.asleep += 1
        try:
            with torch.no_grad():
                for entry in weights.entries(torch, self.guarding.training.made):
                    if weights.usable(entry.tensor):
                        self._lift_tensor(entry.tensor)
        finally:
            self.asleep -= 1
        if self._mode is None:
            self._mode = _make_mode(torch, self)
            self._mode.__enter__()

    def raised_inputs(self, args: Any, kwargs: Any) -> Any:
        """What a module is called with, cast up: recurrent ones look at dtypes themselves."""
        if not self.double or self._mode is None or self.asleep:
            return args, kwargs
        torch = self.torch

        def up(value: Any) -> Any:
            if torch.is_tensor(value) and value.dtype in (torch.float32, torch.float16, torch.bfloat16):
                return value.double()
            if type(value) in (list, tuple):
                return type(value)(up(one) for one in value)
            return value

        return tuple(up(one) for one in args), {key: up(one) for key, one in kwargs.items()}

    def _lift_tensor(self, tensor: Any) -> None:
        torch = self.torch
        if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16):
            tensor.data = tensor.data.double()
            if tensor.grad is not None:
                tensor.grad = None
        elif tensor.dtype == torch.complex64:
            tensor.data = tensor.data.to(torch.complex128)

    def _patch_scaler(self) -> None:
        scaler_class = self.torch.amp.grad_scaler.GradScaler
        for name in _SCALER:
            setattr(scaler_class, name, self._asleep_in(getattr(scaler_class, name)))

    def _asleep_in(self, original: Any) -> Any:
        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            self.asleep += 1
            try:
                return original(*args, **kwargs)
            finally:
                self.asleep -= 1

        return method

    def _patch_ddp(self) -> None:
        """Its buckets are made for the dtype that it finds."""
        try:
            from torch.nn.parallel import DistributedDataParallel
        except ImportError:
            return
        make = DistributedDataParallel.__init__

        @functools.wraps(make)
        def __init__(wrapper: Any, module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            for tensor in [*module.parameters(), *module.buffers()]:
                if weights.usable(tensor):
                    self._lift_tensor(tensor)
            make(wrapper, module, *args, **kwargs)

        DistributedDataParallel.__init__ = __init__

    def _patch_autocast(self) -> None:
        autocast = self.torch.amp.autocast_mode.autocast
        enter = autocast.__enter__

        @functools.wraps(enter)
        def __enter__(region: Any) -> Any:  # noqa: N807
            region._enabled = False
            return enter(region)

        autocast.__enter__ = __enter__


def _make_mode(torch: Any, truth: Truth) -> Any:
    from torch.overrides import TorchFunctionMode

    low = (torch.float32, torch.float16, torch.bfloat16)
    casts = {
        torch.Tensor.float: torch.float64,
        torch.Tensor.half: torch.float64,
        torch.Tensor.bfloat16: torch.float64,
    }
    # printing, indexing helpers and the like: nothing that computes
    get_default = torch.get_default_dtype

    def up(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.dtype in low:
                return value.double()
            return value.to(torch.complex128) if value.dtype == torch.complex64 else value
        if isinstance(value, torch.dtype):
            if value in low:
                return torch.float64
            return torch.complex128 if value == torch.complex64 else value
        if type(value) in (list, tuple):
            return type(value)(up(one) for one in value)
        if type(value) is dict:
            return {key: up(one) for key, one in value.items()}
        return value

    def raised(result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            if result.dtype in low:
                leaf = result.requires_grad and result.is_leaf
                lifted = result.detach().double() if leaf else result.double()
                return lifted.requires_grad_() if leaf else lifted
            return result.to(torch.complex128) if result.dtype == torch.complex64 else result
        if type(result) in (list, tuple):
            return type(result)(raised(one) for one in result)
        return result

    class Double(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if truth.asleep or name in _LEFT_ALONE:
                return func(*args, **kwargs)
            if func in casts:
                return args[0].to(casts[func])
            product = truth.rounding.product(func) if truth.rounding is not None else None
            if product is not None:
                return self._product(product, args, kwargs)
            if name in _DRAWING:
                return self._draw(func, args, kwargs)
            if name in _DRAWING_IN_PLACE and isinstance(args[0], torch.Tensor):
                return self._draw_in_place(func, args, kwargs)
            in_place = name.endswith("_") and not name.endswith("__")
            if (in_place or name in ("__setitem__", "copy_") or name.startswith("__i")) and args:
                return func(args[0], *up(args[1:]), **up(kwargs))
            out = kwargs.get("out")
            if out is not None:
                rest = {key: up(one) for key, one in kwargs.items() if key != "out"}
                return func(*up(args), out=out, **rest)
            return raised(func(*up(args), **up(kwargs)))

        def _product(self, func: Any, args: Any, kwargs: Any) -> Any:
            if not getattr(func, "flatout_opened", False):
                return raised(func(*up(args), **up(kwargs)))
            with self:
                return func(*args, **kwargs)

        def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
            """As the untouched program draws: in float32."""

            def down(value: Any) -> Any:
                if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                    return value.float()
                return value

            with torch._C.DisableTorchFunction():
                result = func(*[down(one) for one in args], **{key: down(v) for key, v in kwargs.items()})
            if isinstance(result, torch.Tensor) and result.dtype in low and get_default() in low:
                return raised(result)
            return result

        def _draw_in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
            target = args[0]
            if target.dtype != torch.float64:
                return func(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                drawn = torch.empty_like(target, dtype=torch.float32)
                func(drawn, *args[1:], **kwargs)
                with torch.no_grad():
                    target.copy_(drawn)
            return target

    return Double()
