"""Fused optimiser: one kernel updates all parameters of a group."""

from __future__ import annotations

import weakref
from typing import Any, Callable

from ..refused import Refused
from .base import Act as _Base

_CLASSES = ("Adam", "AdamW", "SGD", "Adagrad")
_KERNELS = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
_COUNTED_STEPS = 3
_MOST_ROWS = 64


class Act(_Base):
    """Sets ``fused=True`` in each group of the program's own optimiser object.

    What the program saves stays as it would be: ``state_dict`` shows the groups' own ``fused`` and
    ``foreach`` and a step count on the CPU, so that the untouched program loads it and runs as before.
    """

    name = "fused_optimizer"

    def __init__(self, settings: dict[str, Any], context: Any) -> None:
        super().__init__(settings, context)
        self._optimizers: Any = weakref.WeakKeyDictionary()
        """Optimiser -> _Fused; a program may make many, one after another."""
        self._rows: list[dict[str, Any]] = []
        """What the evidence says of each, also when it is gone."""
        self._probed: dict[tuple[str, str, str], str] = {}
        self._calls: dict[str, int] = {}
        self._plain_kernels: dict[str, Callable[..., Any]] = {}
        self._first_step: int | None = None

    def on_optimizer(self, optimizer: Any) -> None:
        torch = self.context.torch
        known = self._optimizers.get(optimizer)
        if known is None:
            self._check_class(torch, optimizer)
            self._check_groups(torch, optimizer)
            if not self._plain_kernels and self._first_step is None:
                self._count_kernels(torch)
            known = self._optimizers[optimizer] = _Fused(optimizer)
            if len(self._rows) < _MOST_ROWS:
                self._rows.append(known.row)
        else:
            self._check_groups(torch, optimizer)
        known.apply(torch, optimizer)

    @staticmethod
    def _check_class(torch: Any, optimizer: Any) -> None:
        kind = type(optimizer)
        if not any(kind is getattr(torch.optim, name) for name in _CLASSES):
            bases = [base.__name__ for base in kind.__mro__[1:] if base.__name__ in _CLASSES]
            what = f"a subclass of {bases[0]} that may do more than its base" if bases else "not one"
            raise Refused(
                f"{kind.__module__}.{kind.__qualname__} has no fused form: torch has one for exactly "
                f"{', '.join(_CLASSES)}, and this is {what}"
            )

    def _check_groups(self, torch: Any, optimizer: Any) -> None:
        kind = type(optimizer)
        for index, group in enumerate(optimizer.param_groups):
            where = f"{kind.__name__}, parameter group {index}"
            if group.get("differentiable"):
                raise Refused(f"{where}: differentiable=True excludes fused=True")
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                    raise Refused(
                        f"{where}: a gradient of shape {tuple(parameter.shape)} is sparse "
                        f"({parameter.grad.layout}), which no fused optimiser takes"
                    )
                reason = self._probe(torch, kind, group, parameter)
                if reason:
                    raise Refused(f"{where}: {reason}")

    def _probe(self, torch: Any, kind: Any, group: dict[str, Any], parameter: Any) -> str:
        """Whether torch itself accepts fused=True for such a parameter: asked, never read off a version.

        Empty when a throw-away optimiser over one number of the same kind takes a fused step.
        """
        key = (kind.__name__, str(parameter.device), str(parameter.dtype))
        if key not in self._probed:
            reason = ""
            try:
                with torch.enable_grad():
                    one = torch.zeros(1, dtype=parameter.dtype, device=parameter.device, requires_grad=True)
                one.grad = torch.zeros_like(one)
                options = {"lr": 1e-3, "fused": True}
                if kind is torch.optim.SGD and group.get("momentum"):
                    options["momentum"] = 0.9
                trial = kind([one], **options)
                # Past Optimizer.step, whose hooks belong to the program's own optimisers.
                plain = getattr(type(trial).step, "__wrapped__", None)
                if plain is not None:
                    plain(trial)
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
                reason = (
                    f"torch {torch.__version__} has no fused {kind.__name__} for {parameter.dtype} on "
                    f"{parameter.device}: {str(error).strip().splitlines()[0] if str(error) else error!r}"
                )
            self._probed[key] = reason
        return self._probed[key]

    def _count_kernels(self, torch: Any) -> None:
        """Count the fused kernels' calls for the first steps: the proof that they ran."""

        def counting(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                self._calls[name] = self._calls.get(name, 0) + 1
                return plain(*args, **kwargs)

            return call

        for name in _KERNELS:
            plain = getattr(torch, name, None)
            if plain is not None:
                self._plain_kernels[name] = plain
                setattr(torch, name, counting(name, plain))

    def after_step(self, step: int) -> None:
        if self._first_step is None and self._optimizers:
            self._first_step = step
        if (
            self._plain_kernels
            and self._first_step is not None
            and step - self._first_step >= _COUNTED_STEPS
        ):
            for name, plain in self._plain_kernels.items():
                setattr(self.context.torch, name, plain)
            self._plain_kernels.clear()
        for optimizer, known in list(self._optimizers.items()):
            if len(optimizer.param_groups) != known.row["groups"]:
                self._check_groups(self.context.torch, optimizer)
                known.apply(self.context.torch, optimizer)

    def evidence(self) -> dict[str, Any]:
        for optimizer, known in list(self._optimizers.items()):
            known.look_at(optimizer)
        return {"optimizers": [dict(row) for row in self._rows], "fused_calls": dict(self._calls)}


class _Fused:
    """What was done to one optimiser object of the program, and what its groups said before."""

    def __init__(self, optimizer: Any) -> None:
        self.row: dict[str, Any] = {"class_name": type(optimizer).__name__, "applied_times": 0}
        self._own: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """(group, its own fused and foreach); ``load_state_dict`` makes new groups, so by identity."""
        if hasattr(optimizer, "register_state_dict_post_hook"):
            optimizer.register_state_dict_post_hook(self._as_untouched)

    def look_at(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        self.row["groups"] = len(groups)
        self.row["fused_groups"] = sum(bool(group.get("fused")) for group in groups)

    def apply(self, torch: Any, optimizer: Any) -> None:
        known, self._own = self._own, []
        for group in optimizer.param_groups:
            own = next((own for seen, own in known if seen is group), None)
            if own is None:
                own = {key: group[key] for key in ("fused", "foreach") if key in group}
            self._own.append((group, own))
            group["fused"] = True
            group["foreach"] = False
            for parameter in group["params"]:
                state = optimizer.state.get(parameter)
                if not state or "step" not in state:
                    continue
                step = state["step"]
                # The fused kernels want the step count as float32 beside the parameter.
                if not torch.is_tensor(step):
                    step = torch.tensor(float(step))
                state["step"] = step.to(device=parameter.device, dtype=torch.float32)
        optimizer._step_supports_amp_scaling = True
        self.row["applied_times"] += 1
        self.look_at(optimizer)

    def _as_untouched(self, optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        """What ``state_dict`` would have been without us; the groups in it are already copies."""
        for group, (_, own) in zip(state_dict["param_groups"], self._own):
            for key in ("fused", "foreach"):
                if key in own:
                    group[key] = own[key]
                else:
                    group.pop(key, None)
        state = state_dict["state"]
        for key, values in list(state.items()):
            step = values.get("step") if isinstance(values, dict) else None
            if step is not None and hasattr(step, "is_cuda") and step.device.type != "cpu":
                state[key] = dict(values, step=step.cpu())
        return state_dict
