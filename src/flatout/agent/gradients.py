"""The same-weights probe: the first step's gradients, saved by the baseline and compared by a trial.

Both processes start from the same seed, so weights, batch and random state are the same at the first
optimiser step; what differs is what the technique did. The gradients are taken at that step's very
beginning: after unscaling and clipping, before any weight has moved.

A parameter's signal-to-noise against the reference r is ``10 log10(|r|^2 / |g - r|^2)`` decibels, as in
torchao's float8 tests. Parameters whose true gradient is nil (a key's bias, a bias before a norm) hold
rounding noise on both sides: whose root-mean-square per element is below ``NIL`` of the largest is left
out.

Above ``LARGEST_BYTES`` of gradients a fixed sample of each parameter's elements stands for it.
"""

from __future__ import annotations

import math
import threading

from . import events, units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NIL = 1e-7
LARGEST_BYTES = 4 << 30
FEWEST_SAMPLED = 65_536
SAMPLE_SEED = 20_240_601
NOISELESS_DB = 300.0
"""Stands for a parameter equal to the bit, whose signal-to-noise has no number."""


class Probe:
    """Used once, at the first step, then gone."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.torch = training.torch
        self.spec = training.spec
        self._models: list[tuple[str, str, Any]] | None = None
        self._inside: dict[str, tuple[str, Any]] = {}
        """Gradients taken by optimisers that run inside the backward and drop them at once."""
        self._unused = threading.Lock()
        """Of several threads that train at once, one takes it."""

    # --- moments

    def at_optimizer(self, optimizer: Any, args: Any, kwargs: Any, outermost: bool) -> Any:
        """Before an optimiser's step. May give back other arguments for it, as torch's hooks may."""
        if self.training.backward_depth:
            for key, name, parameter in self._of_optimizers([optimizer]):
                if parameter.grad is not None:
                    self._inside[key] = (name, self._flat(parameter.grad, None).clone())
            return None
        closure = kwargs.get("closure") or next((one for one in args[1:2] if callable(one)), None)
        if closure is None:
            self._take(self._scale(optimizer))
            return None
        if not outermost:
            return None

        def watched(*a: Any, **k: Any) -> Any:
            result = closure(*a, **k)
            if self.training.probe is self:
                self._take(self._scale(optimizer))
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def after_backward(self) -> None:
        """After each backward: the moment of programs without an optimiser object."""
        steps = self.training.steps
        if self._inside:
            self._finish([(key, name, grad) for key, (name, grad) in self._inside.items()], 1.0)
        elif steps.unit == "backward" or (steps.discovering and not self.training.made):
            self._take(1.0)

    # --- gradients

    def _scale(self, optimizer: Any) -> float:
        """What a fused optimiser under a scaler still has to divide by itself."""
        scale = getattr(optimizer, "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    def _of_optimizers(self, optimizers: list[Any]) -> list[tuple[str, str, Any]]:
        """(key, name, parameter); the key is the same in every process of the same program."""
        known = self.training.made
        names = self._names()
        found = []
        for optimizer in optimizers:
            place = next((i for i, one in enumerate(known) if one is optimizer), len(known))
            for group_index, group in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(group["params"]):
                    key = f"{place}.{group_index}.{index}"
                    found.append((key, names.get(id(parameter), f"optimizer {key}"), parameter))
        return found

    def _names(self) -> dict[int, str]:
        return {id(parameter): name for _, name, parameter in self._of_models()}

    def _of_models(self) -> list[tuple[str, str, Any]]:
        """The same for the parameters of all modules that are no other's part, by a walk over them."""
        if self._models is None:
            alive = units.modules_alive(self.torch)
            inner = {
                id(child) for module in alive for child in module._modules.values() if child is not None
            }
            roots = [units.unwrap(module) for module in alive if id(module) not in inner]
            seen: dict[str, int] = {}
            self._models = []
            for root in units.in_order(self.torch, roots, self.training.made):
                mark = units.fingerprint(root)
                seen[mark] = seen.get(mark, -1) + 1
                self._models += [
                    (f"{mark}.{seen[mark]}.{name}", name, p) for name, p in root.named_parameters()
                ]
        return self._models

    def _parameters(self) -> list[tuple[str, str, Any]]:
        return self._of_optimizers(self.training.made) or self._of_models()

    def _take(self, scale: float) -> None:
        seen: set[int] = set()
        taken = []
        for key, name, parameter in self._parameters():
            if id(parameter) not in seen and parameter.grad is not None:
                seen.add(id(parameter))
                taken.append((key, name, parameter.grad))
        self._finish(taken, scale)

    def _flat(self, grad: Any, share: float | None, key: str = "") -> Any:
        """One dimension, dense, local to this rank, sampled where ``share`` says so."""
        grad = grad.detach()
        if hasattr(grad, "to_local"):
            grad = grad.to_local()
        if grad.layout is not self.torch.strided:
            grad = grad.to_dense()
        grad = grad.reshape(-1)
        if share is None or grad.numel() <= FEWEST_SAMPLED:
            return grad
        count = max(FEWEST_SAMPLED, int(grad.numel() * share))
        generator = self.torch.Generator().manual_seed(SAMPLE_SEED + len(key))
        places = self.torch.randint(grad.numel(), (count,), generator=generator)
        return grad[places.to(grad.device)]

    def _finish(self, taken: list[tuple[str, str, Any]], scale: float) -> None:
        if not self._unused.acquire(blocking=False):
            return
        self.training.probe = None
        self._inside = {}
        self._models = None
        total = sum(grad.numel() * 4 for _, _, grad in taken)
        share = LARGEST_BYTES / total if total > LARGEST_BYTES else None
        values = [loss.value() for loss in self.training.block.losses]
        losses = [value for value in values if value is not None]
        if self.spec.reference_role == "save":
            event = self._save_reference(taken, scale, share, losses)
        else:
            event = self._compare(taken, scale, share, losses)
        if share is not None:
            event["sampled_share"] = share
        self.training.guest.emit({"event": "guard", "role": self.spec.reference_role, **event})

    def _save_reference(
        self, taken: list[tuple[str, str, Any]], scale: float, share: float | None, losses: list[float]
    ) -> dict[str, Any]:
        tensors = {}
        for key, _, grad in taken:
            flat = self._flat(grad, share, key)
            tensors[key] = (flat / scale if scale != 1.0 else flat).to("cpu", copy=True)
        content = {
            "format": 1,
            "names": {key: name for key, name, _ in taken},
            "losses": losses,
            "share": share,
            "tensors": tensors,
        }
        path = self.spec.reference_path
        with events.open_for_writing(path + ".part") as file:
            self.torch.save(content, file)
        events.replace(path + ".part", path)
        return {"saved": len(tensors), "path": path, "loss": _mean(losses)}

    def _compare(
        self, taken: list[tuple[str, str, Any]], scale: float, share: float | None, losses: list[float]
    ) -> dict[str, Any]:
        torch = self.torch
        try:
            load = getattr(torch.load, "_flatout_original", torch.load)
            reference = load(self.spec.reference_path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            return _nothing(f"the reference cannot be read: {type(error).__name__}: {error}", losses)
        names, tensors = reference["names"], reference["tensors"]
        rows: list[_Row] = []
        equal = losses == reference["losses"]
        mine = {key: (name, grad) for key, name, grad in taken}
        missing = [names[key] for key in tensors if key not in mine]
        missing += [name for key, (name, _) in mine.items() if key not in tensors]
        for key, (_, grad) in mine.items():
            if key not in tensors:
                continue
            flat = self._flat(grad, share, key)
            if scale != 1.0:
                flat = flat / scale
            wanted = tensors[key].to(flat.device)
            if wanted.shape != flat.shape:
                missing.append(f"{names[key]} (shape {tuple(grad.shape)} differs)")
                continue
            equal = equal and wanted.dtype == flat.dtype and bool(torch.equal(wanted, flat))
            rows.append(_Row(names[key], flat, wanted))
        if not rows:
            return _nothing("no parameter has a gradient in both", losses, reference["losses"], missing)
        says_nothing = "" if missing else _says_nothing(rows)
        if says_nothing:
            return _nothing(says_nothing, losses, reference["losses"])
        return {
            **_summary(rows),
            "equal": bool(equal and not missing),
            "loss": _mean(losses),
            "reference_loss": _mean(reference["losses"]),
            "missing": missing[:50],
            "reason": "",
        }


class _Row:
    """One parameter's sums, in float64."""

    __slots__ = ("dot", "elements", "grad_square", "name", "noise_square", "signal_square")

    def __init__(self, name: str, flat: Any, wanted: Any) -> None:
        self.name = name
        self.elements = wanted.numel()
        grad, reference = flat.double(), wanted.double()
        noise = grad - reference
        self.signal_square = float((reference * reference).sum().item())
        self.grad_square = float((grad * grad).sum().item())
        self.noise_square = float((noise * noise).sum().item())
        self.dot = float((grad * reference).sum().item())

    @property
    def decibels(self) -> float:
        return decibels(self.signal_square, self.noise_square)


def decibels(signal_square: float, noise_square: float) -> float:
    """Signal-to-noise; ``NOISELESS_DB`` for no noise, its negative for a value that is not finite."""
    if not math.isfinite(noise_square) or not math.isfinite(signal_square):
        return -NOISELESS_DB
    if noise_square == 0.0:
        return NOISELESS_DB
    if signal_square == 0.0:
        return -NOISELESS_DB
    return max(-NOISELESS_DB, min(NOISELESS_DB, 10.0 * math.log10(signal_square / noise_square)))


def _says_nothing(rows: list[_Row]) -> str:
    """Why equal gradients would prove nothing, or an empty text."""
    if all(row.signal_square == 0.0 == row.grad_square for row in rows):
        return "every gradient is nil: its loss does not depend on its parameters"
    if not any(math.isfinite(row.signal_square) for row in rows):
        return "no gradient of the untouched program is finite"
    return ""


def _summary(rows: list[_Row]) -> dict[str, Any]:
    def rms(row: _Row) -> float:
        value = row.signal_square / max(1, row.elements)
        return math.sqrt(value) if math.isfinite(value) else math.inf

    floor = NIL * max((rms(row) for row in rows if math.isfinite(rms(row))), default=0.0)
    judged = [row for row in rows if rms(row) > floor] or rows
    levels = sorted(row.decibels for row in judged)
    worst = min(judged, key=lambda row: row.decibels)
    middle = len(levels) // 2
    signal = sum(row.signal_square for row in judged)
    grads = sum(row.grad_square for row in judged)
    dot = sum(row.dot for row in judged)
    product = math.sqrt(signal) * math.sqrt(grads) if signal >= 0 and grads >= 0 else math.nan
    return {
        "compared": len(judged),
        "left_out": len(rows) - len(judged),
        "worst_db": worst.decibels,
        "worst_parameter": worst.name,
        "median_db": levels[middle] if len(levels) % 2 else (levels[middle - 1] + levels[middle]) / 2,
        "overall_db": decibels(signal, sum(row.noise_square for row in judged)),
        "cosine": dot / product if product else None,
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _nothing(
    reason: str, losses: list[float], reference: list[float] | None = None, missing: list[str] | None = None
) -> dict[str, Any]:
    return {
        "compared": 0,
        "equal": False,
        "loss": _mean(losses),
        "reference_loss": _mean(reference or []),
        "missing": (missing or [])[:50],
        "reason": reason,
    }
