"""The guard inside a program: what it computes at chosen steps, beside the untouched program and the truth.

A guard trial is a short process that nobody times. Its role is one of ``baseline`` (the untouched program,
which writes down weights, gradients and updates for the others), ``truth`` (the same in float64), ``again``
(the untouched program once more: the floor), ``plan``, and ``control`` (the truth with a format's rounding
woven in). At each *guarded step* all of them stand at the
same weights, batch and random state; dropout is off. In the first of them everybody's optimisers are given
the untouched program's gradients, so that the updates can be compared by themselves.

Everything is told by ``guarding`` events and judged in flatout's core (guard/).
"""

from __future__ import annotations

import contextlib
import os

from .. import events, process, units
from ..protocol import STOP
from . import rows, weights
from .facts import Facts, of_model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LARGEST_BYTES = 6 << 30
"""Of weights that are written down for the others; beyond it only the first step is compared."""
POINT_SEED = 4_021_771
MOST_TAKES = 8
"""Optimiser steps of one step of the program that are looked at."""


def vmapped(torch: Any) -> bool:
    """The program is inside a ``torch.func.vmap``, whose tensors stand for many and have no values."""
    layers = getattr(torch._C._functorch, "get_interpreter_stack", lambda: None)()
    return any(str(layer.key()).endswith("Vmap") for layer in layers or ())


class Guarding:
    """Lives as long as the process. Every moment is a method; none of them may change what is computed,
    but for loading weights and handing gradients to the optimiser."""

    def __init__(self, training: Any) -> None:
        self.training = training
        self.torch = training.torch
        self.role: str = training.spec.guard["role"]
        self.folder: str = training.spec.guard["folder"]
        self.points: dict[int, str] = {
            int(step): name for name, steps in training.spec.guard["points"].items() for step in steps
        }
        self.updates_at: list[int] = list(training.spec.guard.get("updates", ()))
        self.facts = Facts(self)
        self.truth: Any = None
        if self.role in ("truth", "control"):
            from .rounding import Rounding
            from .truth import Truth

            guard, rounding = training.spec.guard, None
            if self.role == "control":
                which = guard["draw"], guard["fewer_bits"]
                rounding = Rounding(self.torch, guard["rounding"], *which)
            self.truth = Truth(self, guard.get("precision") or "float64", rounding)
        self.dropout: Any = None
        if self.role == "random":
            from .dropout import Dropout

            self.dropout = Dropout(self)
        self._busy = 0
        self._calls: Any = None
        self._steps_of: dict[int, int] = {}
        """Place of an optimiser -> its outermost steps in this step of the program."""
        self._takes = 0
        self._before: dict[str, Any] = {}
        self._pending: Any = None
        self._updating = False
        self._apart: bool | None = None
        self._inside: list[Any] = []
        self._entries: dict[int, Any] = {}
        self._units: dict[int, bool] = {}
        self._marks = {want["fingerprint"].rpartition("|")[0] for want in training.spec.units}
        self._in_unit = False
        self._light = False
        """The weights are too large to be written down."""
        self._told_model = False
        self._notes: set[str] = set()

    def forget(self) -> None:
        """In a forked child."""
        self.facts.clear()
        self._steps_of, self._takes, self._before, self._pending = {}, 0, {}, None

    # --- what it is in

    @property
    def step(self) -> int:
        """The step in progress."""
        return int(self.training.steps.taken) + 1

    @property
    def point(self) -> str | None:
        return self.points.get(self.step)

    @property
    def speaks(self) -> bool:
        """This process is the one that compares."""
        guest = self.training.guest
        return guest.file is not None and guest.file.first and process.rank(self.torch) == 0

    @property
    def looking(self) -> bool:
        """The program is running, and not the agent or an act."""
        guest = self.training.guest
        return not (self._busy or guest.inert or guest.in_act or self.capturing)

    @property
    def capturing(self) -> bool:
        """A CUDA graph is being captured, or ``vmap`` is at work: no tensor may be read."""
        cuda = self.torch.cuda
        return vmapped(self.torch) or bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What happens inside is the agent's doing."""
        self._busy += 1
        if self.truth is not None:
            self.truth.asleep += 1
        try:
            with self.torch.no_grad():
                yield
        finally:
            self._busy -= 1
            if self.truth is not None:
                self.truth.asleep -= 1

    def note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self.tell("note", note=text)

    def tell(self, what: str, **more: Any) -> None:
        if self.speaks:
            self.training.guest.emit({"event": "guarding", "what": what, "role": self.role, **more})

    # --- moments

    def torch_ready(self) -> None:
        self._calls = units.CallPatch(self.torch, self._called)
        self._calls.put_in()
        self.facts.watch_losses()
        if self.truth is not None:
            self.truth.prepare()

    def compiler_there(self) -> None:
        """The compiler has been imported: it must know whose ``Module.__call__`` it meets."""
        self._calls.tell_compiler()

    def innermost(self, unit: Any, call: Any) -> Any:
        """``call`` inside all techniques: what reaches the model itself, where that is not compiled."""
        is_compiling = self.torch.compiler.is_compiling

        def watched(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                self._reached(unit.module, args, kwargs)
            return call(*args, **kwargs)

        return watched

    def _reached(self, module: Any, args: Any, kwargs: Any) -> None:
        guest = self.training.guest
        if not (self._busy or guest.inert or self.training.backward_depth or self.capturing):
            with self.aside():
                self.facts.reached(module, args, kwargs)

    def optimizer_made(self) -> None:
        if self.truth is not None:
            self.truth.lift()

    def _called(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """In the way of every module's call that is not compiled."""
        if self.truth is not None and not self._busy:
            if self.step == 1 and self.looking and self.torch.is_grad_enabled():
                self.truth.lift(once=True)
            args, kwargs = self.truth.raised_inputs(args, kwargs)
        if self._is_unit(module):
            self._in_unit = True
            try:
                self._reached(module, args, kwargs)
                return self._call(original, module, args, kwargs)
            finally:
                self._in_unit = False
        return self._call(original, module, args, kwargs)

    def _is_unit(self, module: Any) -> bool:
        """An untouched program's call of what the techniques act on; under a plan ``innermost`` sees it."""
        if (
            self._in_unit
            or self.training.guest.acts
            or not self.looking
            or not self.torch.is_grad_enabled()
        ):
            return False
        known = self._units.get(id(module))
        if known is None:
            mark = units.fingerprint(units.unwrap(module))
            known = self._units[id(module)] = mark in self._marks
        return known

    def _call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        outermost = (
            self._calls.depth == 1
            and self.looking
            and self.torch.is_grad_enabled()
            and not self.training.backward_depth
            and any(parameter.requires_grad for parameter in module.parameters())
        )
        if not outermost:
            return original(module, *args, **kwargs)
        with self.aside():
            self.facts.call(module, args, kwargs)
        if self.dropout is not None:
            self.dropout.before_call(original, module, args, kwargs)
        if self.truth is not None:
            self.truth.training_call(module)
        return original(module, *args, **kwargs)

    def backward_begins(self, loss: Any) -> None:
        """``loss``: unscaled, or None where what goes backward is no single number."""
        self.facts.backwards += 1
        if loss is not None and not self.capturing:
            with self.aside():
                self.facts.losses.append(float(loss))

    def backward_ends(self) -> None:
        """The moment of programs that have no optimiser object, or whose optimisers have just run."""
        if self.truth is not None:
            self.truth.backward_ended()
        if self._inside:
            inside, self._inside = self._inside, []
            with self.aside():
                self._take("inside", inside, 1.0)
        if self.training.steps.unit == "backward" and not self.training.made and self.point:
            with self.aside():
                found = weights.entries(self.torch, [])
                self._take("0", [(one.key, one.name, one.tensor) for one in found if one.is_parameter], 1.0)
                if self.step in self.updates_at:
                    self.note("updates could not be checked: the program has no optimiser object")

    def scaler_skipped(self) -> None:
        self.facts.skipped += 1

    def update_begins(self, optimizer: Any, args: Any, kwargs: Any, outermost: bool) -> Any:
        """Before an optimiser's step; other arguments for it, or None."""
        if not outermost or not self.looking:
            return None
        if self.training.backward_depth:
            self.note("updates could not be checked: the optimisers run inside the backward")
            if self.point:
                with self.aside():
                    self._keep_inside(optimizer)
            return None
        if self.truth is not None and not self._updating:
            self.truth.asleep += 1
        self._updating = True
        self.facts.update(optimizer)
        closure = kwargs.get("closure") or next((one for one in args[1:2] if callable(one)), None)
        if closure is None:
            if self.point:
                with self.aside():
                    self._optimizer_take(optimizer, own_update=True)
            return None
        return self._watched_closure(optimizer, closure, args, kwargs)

    def _watched_closure(self, optimizer: Any, closure: Any, args: Any, kwargs: Any) -> Any:
        """Torch's optimisers evaluate it once and then step, LBFGS as often as its search needs."""
        taken: list[bool] = []
        searches = type(optimizer).__name__ == "LBFGS"

        def watched(*a: Any, **k: Any) -> Any:
            asleep = self.truth.asleep if self.truth is not None else 0
            if self.truth is not None:
                self.truth.asleep = 0
            try:
                result = closure(*a, **k)
            finally:
                if self.truth is not None:
                    self.truth.asleep = asleep
            if self.point and not taken:
                taken.append(True)
                with self.aside():
                    self._optimizer_take(optimizer, own_update=not searches)
                if searches:
                    self.note("updates could not be checked: LBFGS evaluates its closure again and again")
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def update_ends(self, optimizer: Any) -> None:
        """After the outermost step of an optimiser."""
        if self.truth is not None and self._updating:
            self.truth.asleep -= 1
        self._updating = False
        pending, self._pending = self._pending, None
        if pending is not None and pending[0] is optimizer:
            with self.aside():
                self._after_update(*pending[1:])

    def step_ended(self, taken: int) -> None:
        """Tell of the step that is over, and stand where the next one is to begin."""
        self._steps_of, self._takes = {}, 0
        if self.truth is not None:
            self.truth.no_tf32()
        with self.aside():
            if taken <= max(self.points, default=0):
                self.tell("facts", **self.facts.told(taken))
                if taken in self.points:
                    self._buffers(taken)
            if not self._told_model and taken >= 2:
                self._told_model = True
                self.tell("model", **of_model(self.torch, self.training.made))
            self.facts.clear()
            if taken + 1 in self.points:
                self._stand_at(taken + 1)
            self._end_step(taken)

    # --- the same weights

    @property
    def _own_files(self) -> bool:
        """Each rank has parameters of its own (shards, stages), and so files of its own: rank 0's will not
        do, as they do where DistributedDataParallel keeps all alike."""
        if self._apart is None:
            self._apart = process.world_size(self.torch) > 1 and not any(
                type(one).__name__ == "DistributedDataParallel" for one in units.modules_alive(self.torch)
            )
        return self._apart

    @property
    def _writes(self) -> bool:
        return self.speaks or self._own_files

    def _path(self, name: str) -> str:
        rank = process.rank(self.torch) if self._own_files else 0
        return os.path.join(self.folder, f"{name}.rank{rank}" if rank else name)

    def _read(self, name: str, *, of: str, after: int) -> Any:
        """A file that the trial of role ``of`` writes before it ends its step ``after``; None where it has
        ended that step without it. Waits while that trial is on its way."""
        hold = self.training.hold
        ended = [self._path(f"ended-{of}-{after}"), self._path(f"ended-{of}")]

        def given_up() -> bool:
            stopped = hold is not None and hold.control is not None and hold.control.command == STOP
            return stopped or any(os.path.exists(path) for path in ended)

        try:
            return weights.read(self.torch, self._path(name), given_up)
        except FileNotFoundError:
            return None
        except Exception as error:
            self.note(f"{name} cannot be read: {type(error).__name__}: {error}")
            return None

    def _end_step(self, taken: int) -> None:
        """The others need not wait for any more files of this step."""
        if self.role in ("baseline", "truth") and self._writes and taken <= max(self.points, default=0):
            with events.open_for_writing(self._path(f"ended-{self.role}-{taken}")):
                pass

    def _stand_at(self, step: int) -> None:
        """At the beginning of a guarded step: the untouched program's weights, a random state of ours."""
        torch, made = self.torch, self.training.made
        first_late = self.points[step] == "late" and self.points.get(step - 1) != "late"
        if first_late and self.role == "baseline":
            if os.path.exists(self._path("late.pt")) and not self._own_files:
                content = self._read("late.pt", of="baseline", after=0)
                absent = weights.load(torch, made, content) if content is not None else []
                if absent:
                    self.note(f"{len(absent)} parameters are not in the late weights: {absent[0]}")
            else:
                self.note("late in training: no weights of a later step were written down")
        if self.role == "baseline":
            if not self._light:
                self._light = weights.total_bytes(torch, made) > LARGEST_BYTES
                if self._light:
                    self.note(
                        "the weights are too large to be written down: only the first step is compared"
                    )
            if self._writes and not self._light:
                weights.save(torch, made, self._path(f"weights-{step}.pt"))
            elif self._writes:
                weights.write(torch, self._path(f"weights-{step}.pt"), {})
        else:
            content = self._read(f"weights-{step}.pt", of="baseline", after=step - 1)
            if content is None:
                self.note(f"step {step}: the untouched program's weights are not there to be loaded")
                self.points = {one: name for one, name in self.points.items() if one < step}
            else:
                absent = weights.load(torch, made, content)
                if not content:
                    self._light = True
                    self.points = {one: name for one, name in self.points.items() if one < step}
                elif absent:
                    self.note(
                        f"{len(absent)} trained parameters have no counterpart in the untouched program: "
                        f"{', '.join(absent[:3])}"
                    )
        torch.manual_seed(POINT_SEED + step + 1000 * process.rank(torch))

    # --- gradients

    def _keep_inside(self, optimizer: Any) -> None:
        """Gradients that an optimiser inside the backward uses and drops at once."""
        if not self._entries:
            self._entries = {id(one.tensor): one for one in weights.entries(self.torch, self.training.made)}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                entry = self._entries.get(id(parameter))
                if entry is not None and parameter.grad is not None:
                    self._inside.append((entry.key, entry.name, _Kept(parameter)))

    def _optimizer_take(self, optimizer: Any, *, own_update: bool) -> None:
        made = self.training.made
        place = next((i for i, one in enumerate(made) if one is optimizer), len(made))
        count = self._steps_of[place] = self._steps_of.get(place, 0) + 1
        self._takes += 1
        take = f"{place}.{count}"
        handed = self.step in self.updates_at and own_update
        if self._takes > MOST_TAKES:
            return
        if self._takes > 1 and self.step not in self.updates_at:
            return  # another optimiser has changed the weights meanwhile, by its own gradients
        names = {id(one.tensor): one for one in weights.entries(self.torch, made)}
        parameters = []
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                entry = names.get(id(parameter))
                spare = f"optimizer {place}.{group_index}.{index}"
                key, name = (entry.key, entry.name) if entry is not None else (spare, spare)
                parameters.append((key, name, parameter))
        scale = getattr(optimizer, "grad_scale", None)
        factor = 1.0 if scale is None else float(scale)
        self._take(take, parameters, factor)
        if handed:
            self._hand_over(take, optimizer, parameters, factor)

    def _take(self, take: str, parameters: list[Any], scale: float) -> None:
        """Write down (baseline, truth) or compare the gradients of these (key, name, parameter)."""
        torch = self.torch
        if not self.speaks:
            return
        reference = None
        if self.role != "baseline":
            name = f"gradients-baseline-{self.step}-{take}.pt"
            reference = self._read(name, of="baseline", after=self.step)
            if reference is None:
                if self.role == "plan":
                    text = "the untouched program took no optimiser step that could be compared"
                    self.note(f"step {self.step}: {text}")
                return
        tensors, where, names, absent = {}, {}, {}, []
        for key, name, parameter in parameters:
            if key in names:
                continue
            names[key] = name
            if parameter.grad is None:
                if parameter.requires_grad or reference is not None:
                    absent.append(key)
                continue
            values = rows.flat(parameter.grad)
            if not values.numel():
                continue
            if reference is None:
                where[key] = rows.places(torch, key, values)
            chosen = where.get(key) if reference is None else reference["places"].get(key)
            if chosen is not None and int(chosen.max()) >= values.numel():
                chosen = None
            sampled = rows.sample(values, chosen)
            tensors[key] = sampled / scale if scale != 1.0 else sampled
        content = {
            "names": names,
            "places": {key: one for key, one in where.items() if one is not None},
            "tensors": tensors,
            "absent": absent,
            "losses": list(self.facts.losses),
        }
        if self.role in ("baseline", "truth"):
            path = self._path(f"gradients-{self.role}-{self.step}-{take}.pt")
            weights.write(torch, path, content)
        if reference is not None:
            self._compare(take, content, reference)

    def _compare(self, take: str, mine: Any, baseline: Any) -> None:
        common: dict[str, Any] = {"step": self.step, "point": self.point, "take": take}
        if self.role == "truth":
            # what the untouched program itself is worth
            self._tell_rows(baseline, mine, baseline, of="baseline", **common)
            return
        truth = None
        if self.training.spec.guard.get("truth", True):
            path = f"gradients-truth-{self.step}-{take}.pt"
            truth = self._read(path, of="truth", after=self.step)
        self._tell_rows(mine, truth, baseline, of=self.role, **common)

    def _tell_rows(self, mine: Any, truth: Any, baseline: Any, **more: Any) -> None:
        """Rows of ``mine`` against the truth, or against the baseline where there is no truth."""
        torch = self.torch
        reference = truth if truth is not None else baseline
        found, equal, shapes = [], mine["losses"] == baseline["losses"], []
        for key, wanted in reference["tensors"].items():
            own = mine["tensors"].get(key)
            if own is None:
                continue
            if own.shape != wanted.shape:
                shapes.append(reference["names"][key])
                continue
            row = rows.gradient_row(reference["names"][key], own, wanted)
            other = baseline["tensors"].get(key)
            same = other is not None and other.dtype == own.dtype and bool(torch.equal(own, other))
            row["equal"] = same
            equal = equal and same
            found.append(row)
        lost = [baseline["names"][key] for key in baseline["tensors"] if key not in mine["tensors"]]
        gained = [mine["names"][key] for key in mine["tensors"] if key not in baseline["tensors"]]
        self.tell(
            "gradients",
            against="truth" if truth is not None else "baseline",
            rows=found,
            equal=bool(equal and not lost and not gained and not shapes),
            lost=lost[:50],
            gained=gained[:50],
            shapes=shapes[:50],
            losses=mine["losses"],
            wanted_losses=reference["losses"],
            **more,
        )

    # --- updates

    def _hand_over(self, take: str, optimizer: Any, parameters: list[Any], scale: float) -> None:
        """The untouched program's gradients for everybody's optimiser, and the weights before the step."""
        torch = self.torch
        path = f"handed-{self.step}-{take}.pt"
        if self.role == "baseline":
            if weights.total_bytes(torch, self.training.made) > LARGEST_BYTES:
                self.note("updates could not be checked: the gradients are too large to be written down")
                return
            if any(
                parameter.grad is not None and str(parameter.grad.layout) != "torch.strided"
                for _, _, parameter in parameters
            ):
                self.note("updates could not be checked: gradients are sparse")
                return
            content = {
                key: (weights.local(parameter.grad) / scale).to("cpu")
                for key, _, parameter in parameters
                if parameter.grad is not None
            }
            if self._writes:
                weights.write(torch, self._path(path), content)
        else:
            content = self._read(path, of="baseline", after=self.step)
            if content is None:
                return  # the untouched program has said why
            for key, _, parameter in parameters:
                self._replace(parameter, content.get(key), scale)
        self._before = self._sampled(parameters)
        self._pending = (optimizer, take, parameters)

    def _replace(self, parameter: Any, wanted: Any, scale: float) -> None:
        if wanted is None:
            if parameter.grad is not None:
                parameter.grad = None
            return
        if wanted.shape != weights.local(parameter).shape:
            return
        if parameter.grad is None:
            parameter.grad = self.torch.zeros_like(parameter)
        target = weights.local(parameter.grad)
        if str(target.layout) != "torch.strided":
            return
        target.data.copy_(wanted if scale == 1.0 else wanted * scale)

    def _sampled(self, parameters: list[Any]) -> dict[str, Any]:
        found = {}
        for key, _, parameter in parameters:
            values = rows.flat(parameter)
            count = values.numel()
            where = None
            if count > rows.MOST_ELEMENTS:
                where = rows.drawn_places(self.torch, key, count, rows.MOST_ELEMENTS)
            if count:
                found[key] = rows.sample(values, where)
        return found

    def _after_update(self, take: str, parameters: list[Any]) -> None:
        torch = self.torch
        if not self.speaks:
            return
        before, self._before = self._before, {}
        after = self._sampled(parameters)
        name = f"updated-{self.step}-{take}.pt"
        if self.role == "baseline":
            weights.write(torch, self._path(name), {"before": before, "after": after})
            return
        if self.role in ("truth", "control"):
            return  # its updates are made in float64, and nobody asks for them
        wanted = self._read(name, of="baseline", after=self.step)
        if wanted is None:
            return
        names = {key: name for key, name, _ in parameters}
        found = []
        for key in wanted["before"]:
            if key not in before or before[key].shape != wanted["before"][key].shape:
                continue
            kind = wanted["before"][key].dtype
            spacing = torch.finfo(kind).eps if kind.is_floating_point else 0.0
            found.append(
                rows.update_row(
                    names[key],
                    (before[key], after[key]),
                    (wanted["before"][key], wanted["after"][key]),
                    spacing,
                )
            )
        self.tell("updates", step=self.step, take=take, rows=found)

    # --- buffers

    def _buffers(self, step: int) -> None:
        """Running statistics after a guarded step."""
        torch = self.torch
        found = {
            one.key: (one.name, rows.sample(rows.flat(one.tensor), None))
            for one in weights.entries(torch, self.training.made)
            if not one.is_parameter
            and weights.usable(one.tensor)
            and one.tensor.numel() <= rows.MOST_ELEMENTS
            and not one.tensor.is_complex()
        }
        path = f"buffers-{step}.pt"
        if self.role == "baseline":
            if self.speaks:
                weights.write(torch, self._path(path), {key: values for key, (_, values) in found.items()})
            return
        if self.role in ("truth", "control") or not self.speaks or not found:
            return
        wanted = self._read(path, of="baseline", after=step)
        if wanted is None:
            return
        start = None
        if step > min(self.points, default=1):
            start = self._read(f"weights-{step}.pt", of="baseline", after=step - 1)
        told = []
        for key, (name, values) in found.items():
            other = wanted.get(key)
            if other is None or other.shape != values.shape:
                continue
            row: dict[str, Any] = {"name": name, "apart": _rms(values.double() - other.double())}
            row["size"] = _rms(other.double())
            if start is not None and key in start:
                row["moved"] = _rms(values.double() - start[key].double().reshape(-1))
                row["wanted_moved"] = _rms(other.double() - start[key].double().reshape(-1))
            told.append(row)
        self.tell("buffers", step=step, rows=told)


class _Kept:
    """A parameter's gradient as it was."""

    requires_grad = True

    def __init__(self, parameter: Any) -> None:
        self.grad = parameter.grad.detach().clone()


def _rms(values: Any) -> float:
    return float((values * values).mean().sqrt()) if values.numel() else 0.0
