"""What a program does in each step, apart from its numbers: told by every guard trial and compared later.

Learning rates, how many backwards and updates, what goes into the model and into the loss (as sums that
tell one batch from another), which modules are in eval mode, dtypes, ties.
"""

from __future__ import annotations

import functools

from .. import units
from . import weights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "soft_margin_loss",
    "ctc_loss",
)
_SETTINGS = ("lr", "weight_decay", "momentum", "betas", "eps", "nesterov", "amsgrad", "maximize")
MOST_ASLEEP = 2000
MOST_CALLS = 64
"""Inputs and targets noted of one step."""


def print_of(torch: Any, tensor: Any) -> list[Any]:
    """Shape and three sums of a tensor: the same for the same values, whatever their layout or dtype."""
    values = tensor.detach()
    if values.is_floating_point():
        values = values.double()
    elif values.dtype == torch.bool or not values.is_complex():
        values = values.long().double()
    else:
        values = torch.view_as_real(values.to(torch.complex128))
    values = values.reshape(-1)
    count = torch.arange(1, values.numel() + 1, device=values.device, dtype=torch.float64)
    sums = [values.sum(), (values * values).sum(), (values * (count % 8191.0)).sum()]
    return [list(tensor.shape), "float" if tensor.is_floating_point() else "whole", *map(float, sums)]


def tensors_in(torch: Any, value: Any, found: list[Any], depth: int = 0) -> list[Any]:
    """Strided tensors in nested containers, in order."""
    if torch.is_tensor(value):
        if str(value.layout) == "torch.strided" and value.numel():
            found.append(value)
    elif depth < 4 and len(found) < 16:
        if isinstance(value, dict):
            for one in value.values():
                tensors_in(torch, one, found, depth + 1)
        elif isinstance(value, (list, tuple)):
            for one in value:
                tensors_in(torch, one, found, depth + 1)
    return found


class Facts:
    """Of the step in progress."""

    def __init__(self, guarding: Any) -> None:
        self.guarding = guarding
        self.torch = guarding.torch
        self._noting = False
        self.clear()

    def clear(self) -> None:
        self.inputs: list[Any] = []
        self.targets: list[Any] = []
        self.losses: list[float] = []
        self.backwards = 0
        self.settings: list[Any] = []
        self.skipped = 0
        self.asleep: list[str] = []
        """Modules in eval mode when an outermost training call began."""
        self.inner_asleep: list[str] = []
        self.inner_inputs: list[Any] = []
        self.calls = 0

    def watch_losses(self) -> None:
        """Note what the program's loss functions are given as targets."""
        functional = self.torch.nn.functional
        from torch._guards import TracingContext

        compiling = self.torch.compiler.is_compiling

        def is_compiling() -> bool:
            # Dynamo takes this for torch's own function, by its name: it is not traced but called, with
            # tensors that have no values, and up to 2.11 nothing else says so.
            return compiling() or TracingContext.try_get() is not None

        for name in _LOSSES:
            original = getattr(functional, name, None)
            if original is not None:
                setattr(functional, name, self._watched(original, is_compiling))

    def _watched(self, original: Any, is_compiling: Any) -> Any:
        note = self._note_target

        @functools.wraps(original)
        def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
            if is_compiling() or self._noting:
                return original(input, target, *args, **kwargs)
            note(target)
            self._noting = True  # a function mode calls it once more, with what it has cast
            try:
                return original(input, target, *args, **kwargs)
            finally:
                self._noting = False

        return loss

    def _note_target(self, target: Any) -> None:
        torch = self.torch
        if not self.guarding.looking or not torch.is_grad_enabled() or len(self.targets) >= MOST_CALLS:
            return
        with self.guarding.aside():
            # a target that depends on the model carries a gradient, or differs in each precision
            if torch.is_tensor(target) and not target.requires_grad and target.numel():
                self.targets.append(print_of(torch, target))

    def call(self, module: Any, args: Any, kwargs: Any) -> None:
        """An outermost call of a module that is trained."""
        self.calls += 1
        if len(self.inputs) < MOST_CALLS:
            for tensor in tensors_in(self.torch, [*args, kwargs], []):
                if not tensor.requires_grad:
                    self.inputs.append(print_of(self.torch, tensor))
        self._look_at_modes(module, self.asleep)

    def _look_at_modes(self, module: Any, asleep: list[str]) -> None:
        root = units.unwrap(module)
        for name, one in root.named_modules():
            if not one.training and len(asleep) < MOST_ASLEEP:
                asleep.append(f"{type(root).__name__}.{name}" if name else type(root).__name__)

    def reached(self, module: Any, args: Any, kwargs: Any) -> None:
        """The same call, inside all techniques."""
        if len(self.inner_inputs) < MOST_CALLS:
            for tensor in tensors_in(self.torch, [*args, kwargs], []):
                if not tensor.requires_grad:
                    self.inner_inputs.append(print_of(self.torch, tensor))
        self._look_at_modes(module, self.inner_asleep)

    def update(self, optimizer: Any) -> None:
        groups = []
        for group in optimizer.param_groups:
            groups.append({name: _plain(group[name]) for name in _SETTINGS if name in group})
        self.settings.append(groups)

    def told(self, step: int) -> dict[str, Any]:
        """The step's facts as plain data."""
        return {
            "step": step,
            "calls": self.calls,
            "inputs": self.inputs,
            "targets": self.targets,
            "losses": self.losses,
            "backwards": self.backwards,
            "settings": self.settings,
            "skipped": self.skipped,
            "asleep": sorted(set(self.asleep)),
            "inner_asleep": sorted(set(self.inner_asleep)),
            "inner_inputs": self.inner_inputs,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, bool) or value is None:
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def of_model(torch: Any, optimizers: list[Any]) -> dict[str, Any]:
    """Dtypes, ties and trained parameters, and the precision that the program computes in."""
    ties: list[list[str]] = []
    dtypes: dict[str, str] = {}
    convolutions = False
    for root in weights.roots(torch, optimizers):
        by_tensor: dict[int, list[str]] = {}
        for name, parameter in root.named_parameters(remove_duplicate=False):
            place = parameter.data_ptr() if weights.usable(parameter) else id(parameter)
            by_tensor.setdefault(place or id(parameter), []).append(name)
            if parameter.requires_grad:
                dtypes[f"{type(root).__name__}.{name}"] = str(parameter.dtype).replace("torch.", "")
        ties += [sorted(names) for names in by_tensor.values() if len(names) > 1]
        convolutions = convolutions or any(
            "Conv" in type(one).__name__ or isinstance(one, torch.nn.RNNBase) for one in root.modules()
        )
    states: dict[str, int] = {}
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if torch.is_tensor(value) and value.is_floating_point() and value.numel() > 1:
                    kind = str(value.dtype).replace("torch.", "")
                    states[kind] = states.get(kind, 0) + 1
    return {
        "ties": sorted(ties),
        "dtypes": dtypes,
        "state_dtypes": sorted(states),
        "convolutions": convolutions,
        **_precision(torch),
    }


def _precision(torch: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"matmul": "", "cudnn_tf32": None, "capability": None}
    try:
        found["matmul"] = str(torch.get_float32_matmul_precision())
    except RuntimeError:
        found["matmul"] = str(torch.backends.cuda.matmul.fp32_precision)
    try:
        found["cudnn_tf32"] = bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        found["cudnn_tf32"] = str(torch.backends.cudnn.conv.fp32_precision) == "tf32"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["capability"] = list(torch.cuda.get_device_capability())
    return found
