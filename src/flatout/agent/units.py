"""Units: the modules that a program calls as a whole in training, and the techniques around them.

The baseline finds them by watching (``discovery.py``); every later process finds them again by their
fingerprint before the first training call, so that a technique acts from the first step on.

A unit's call is reached through ``Module._compiled_call_impl``, torch's own per-instance hook: it is
looked up on each call, ``Module.__getstate__`` leaves it out of pickles and copies, and it changes no
key of ``state_dict``. A unit whose ``.forward()`` the program calls itself is reached through its class.
"""

from __future__ import annotations

import collections
import functools
import gc
import hashlib
import math
import sys
import types
import weakref

from .refused import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


CHECKED_STEPS = 2
MOST_FRUITLESS_SEARCHES = 3


def unwrap(module: Any) -> Any:
    """The program's own module inside DDP, FSDP, DataParallel and compiled wrappers."""
    seen = 0
    while seen < 8:
        seen += 1
        inner = module._modules.get("_orig_mod") if hasattr(module, "_modules") else None
        if inner is None and type(module).__name__ in (
            "DistributedDataParallel",
            "DataParallel",
            "FullyShardedDataParallel",
        ):
            inner = module._modules.get("module") or module._modules.get("_fsdp_wrapped_module")
        if inner is None:
            return module
        module = inner
    return module


def is_compiled_wrapper(module: Any) -> bool:
    return "_orig_mod" in module._modules


def class_key(module: Any) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"


def fingerprint(module: Any) -> str:
    """Class and parameter names and shapes of an unwrapped module; the same in every process."""
    digest = hashlib.sha1(usedforsecurity=False)
    for name, parameter in module.named_parameters():
        try:
            shape = tuple(parameter.shape)
        except RuntimeError:  # an uninitialised parameter of a lazy module has no shape yet
            shape = ()
        digest.update(f"{name}:{shape};".encode())
    return f"{class_key(module)}|{digest.hexdigest()[:16]}"


def modules_alive(torch: Any) -> list[Any]:
    """Every module object in the process. One walk over all objects."""
    base = torch.nn.Module
    found = []
    for thing in gc.get_objects():
        # type() and not isinstance(): a proxy's __class__ may run code of its own.
        if issubclass(type(thing), base) and "_parameters" in getattr(thing, "__dict__", ()):
            found.append(thing)
    return found


def in_order(torch: Any, modules: list[Any], optimizers: list[Any]) -> list[Any]:
    """The same order in every process of the same program, of twins too, such as an agent's two critics.

    Twins are told apart by where their parameters stand in the optimisers, and those that none holds, such
    as target networks, by their values.
    """
    places: dict[int, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                places.setdefault(id(parameter), len(places))
    marks = {id(module): (class_key(module), fingerprint(module)) for module in modules}
    alike = collections.Counter(marks.values())

    def key(module: Any) -> tuple[Any, ...]:
        mark = marks[id(module)]
        if alike[mark] == 1:
            return (*mark, 0, 0.0)
        own = list(module.parameters())
        held = [places[id(one)] for one in own if id(one) in places]
        return (*mark, min(held), 0.0) if held else (*mark, len(places), _value(torch, own))

    return sorted(modules, key=key)


def _value(torch: Any, tensors: list[Any]) -> float:
    """A number that tells other values apart, the same in every process. Asks no other rank."""
    total = 0.0
    with torch.no_grad():
        for tensor in tensors:
            try:
                values = tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()
                values = torch.view_as_real(values) if values.is_complex() else values
                total += float(values.double().sum())
            except (RuntimeError, ValueError, NotImplementedError):
                continue  # on the meta device, or of a lazy module: it has no values yet
    return 0.0 if math.isnan(total) else total


class Unit:
    """What an act sees: ``module`` is the ``nn.Module`` that is called (a compiled wrapper included)."""

    def __init__(self, module: Any, name: str, called: str, training: bool) -> None:
        self.module = module
        self.inner = unwrap(module)
        """The program's own module, whose ``training`` flag counts: a wrapper's may be left behind."""
        self.name = name
        self.called = called
        self.training = training


class UnitCall:
    """Stands in a unit's ``_compiled_call_impl``: training calls go through the techniques."""

    def __init__(self, units: Units, unit: Unit, plain: Callable[..., Any], fingerprint: str) -> None:
        self.units = units
        self.unit = unit
        self.plain = plain
        self.fingerprint = fingerprint
        self.wrapped: Callable[..., Any] | None = None
        self.calls = 0
        self.inside = False
        """The techniques run already: torch 2.4 puts torch's own modules as such into the graphs that it
        compiles, and calls them by ``__call__``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        guest = self.units.guest
        if self.inside or guest.inert or not guest.acts:
            return self.plain(*args, **kwargs)
        if not guest.torch.is_grad_enabled() or self.unit.inner.training != self.unit.training:
            guest.ask_all("close", "call outside training")
            return self.plain(*args, **kwargs)
        call = self.wrapped
        if call is None:
            call = self.wrapped = self.units.compose(self)
        self.calls += 1
        self.inside = True
        try:
            return call(*args, **kwargs)
        except Refused as refused:
            self.units.refused(refused)
            return self.plain(*args, **kwargs)
        except BaseException:
            guest.ask_all("close", "exception")
            raise
        finally:
            self.inside = False

    def __reduce__(self) -> Any:
        # A wrapper that pickles its whole __dict__ must still be picklable: this becomes None.
        return (type(None), ())

    def __deepcopy__(self, memo: Any) -> None:
        return None


class Units:
    """The units of this process, found and equipped."""

    def __init__(self, guest: Any, wanted: list[dict[str, Any]]) -> None:
        self.guest = guest
        self.torch = guest.torch
        self.wanted = wanted
        self._by_class: dict[str, list[dict[str, Any]]] = {}
        for want in wanted:
            self._by_class.setdefault(want["fingerprint"].partition("|")[0], []).append(want)
        self._searched = False
        self._calls: list[Any] = []
        """Weak, as are the modules below: a program that trains one model after another lets go of each."""
        self.checked = False
        self._equipped: dict[int, Any] = {}
        self._fruitless = 0
        self._watcher: Any = None

    @property
    def calls(self) -> list[UnitCall]:
        """Of the equipped units that are still there."""
        self._calls = [reference for reference in self._calls if reference() is not None]
        return [call for call in (reference() for reference in self._calls) if call is not None]

    # --- finding

    def look_for(self, optimizer: Any) -> None:
        """At the construction of an optimiser: the models are there, and not yet called in training."""
        if not self.wanted:
            self.watch_calls()
            return
        if self.missing():
            self.search()
        elif self._fruitless < MOST_FRUITLESS_SEARCHES and self._of_another_model(optimizer):
            before = len(self.calls)
            gc.collect()  # the model before it may hang in a cycle only, and no longer be there
            self.search()
            self._fruitless += len(self.calls) <= before
        if self.missing():
            self.watch_calls()

    def _of_another_model(self, optimizer: Any) -> bool:
        """It updates a parameter like one of a unit's, but no unit's: as of the next fold's model."""
        first = next((p for group in optimizer.param_groups for p in group["params"]), None)
        own = [p for call in self.calls for p in call.unit.inner.parameters()]
        return first is not None and (
            not any(p is first for p in own) and any(p.shape == first.shape for p in own)
        )

    def search(self) -> None:
        """Equip every module alive that has a wanted fingerprint."""
        alive = modules_alive(self.torch)
        for module in alive:
            self._consider(module, alive)

    def _consider(self, module: Any, alive: list[Any]) -> None:
        wants = self._by_class.get(class_key(module))
        if not wants or self._is_equipped(module):
            return
        mark = fingerprint(module)
        want = next((one for one in wants if _mark(one["fingerprint"]) == mark), wants[0])
        if _mark(want["fingerprint"]) == mark:
            self.equip(module, want, alive)

    def missing(self) -> list[str]:
        """Marks of units for which there are fewer modules than the baseline called."""
        have = [_mark(call.fingerprint) for call in self.calls]
        marks = [_mark(want["fingerprint"]) for want in self.wanted]
        return [mark for mark in set(marks) if have.count(mark) < marks.count(mark)]

    def watch_calls(self) -> None:
        """Look at module calls themselves, until every unit is found."""
        if self._watcher is None:
            self._watcher = CallPatch(self.torch, self._called)
            self._watcher.put_in()

    def _called(self, original: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        if not self.guest.inert and self.torch.is_grad_enabled():
            if not self.wanted:
                self._adopt(module)
            elif not self._searched:
                self._searched = True
                self.search()
            else:
                self._consider(unwrap(module), [])
            if self.wanted and not self.missing():
                self._watcher.take_out()
        return original(module, *args, **kwargs)

    def _adopt(self, module: Any) -> None:
        """Without a baseline's word: the outermost training call that holds the optimiser's parameters."""
        if self._is_equipped(module) or self._watcher.depth > 1:
            return
        trained = {id(p) for o in self.guest.training.made for g in o.param_groups for p in g["params"]}
        inner = unwrap(module)
        if not any(id(parameter) in trained for parameter in inner.parameters()):
            return
        want = {
            "name": type(inner).__name__,
            "called": "call",
            "training": module.training,
            "fingerprint": fingerprint(inner) + "|0",
        }
        self.equip(inner, want, modules_alive(self.torch))

    # --- equipping

    def _is_equipped(self, module: Any) -> bool:
        known = self._equipped.get(id(module))
        return known is not None and known() is module

    def _mark_equipped(self, module: Any) -> None:
        self._equipped[id(module)] = weakref.ref(module)

    def equip(self, module: Any, want: dict[str, Any], alive: list[Any]) -> None:
        """Put the techniques in the way of this module's training calls."""
        self._mark_equipped(module)
        target = module
        for wrapper in alive:
            if not wrapper._modules or wrapper is module or unwrap(wrapper) is not module:
                continue
            if type(wrapper).__name__ == "DataParallel" and len(getattr(wrapper, "device_ids", ())) > 1:
                raise Refused(
                    f"nn.DataParallel copies {want['name']} to {len(wrapper.device_ids)} devices at every "
                    "call; run it under torchrun with DistributedDataParallel instead"
                )
            if is_compiled_wrapper(wrapper):
                target = wrapper
                self._mark_equipped(wrapper)
        unit = Unit(target, want["name"], want.get("called", "call"), want.get("training", True))
        if unit.called == "forward":
            self._equip_forward(unit, want)
            return
        plain = target.__dict__.get("_compiled_call_impl") or target._call_impl
        call = UnitCall(self, unit, plain, want["fingerprint"])
        target.__dict__["_compiled_call_impl"] = call
        self._calls.append(weakref.ref(call))

    def moved_into(self, wrapper: Any) -> None:
        """The program has compiled a unit with ``torch.compile(module)`` after it was equipped: what is
        called from now on is the wrapper, and inside it the compiler would trace into the techniques."""
        inner = unwrap(wrapper)
        for call in self.calls:
            unit = call.unit
            if unit.inner is not inner or unit.called != "call" or unit.module is wrapper:
                continue
            if unit.module.__dict__.get("_compiled_call_impl") is call:
                del unit.module.__dict__["_compiled_call_impl"]
            unit.module = wrapper
            self._mark_equipped(wrapper)
            call.plain = wrapper._call_impl
            call.wrapped = None
            wrapper.__dict__["_compiled_call_impl"] = call

    def _equip_forward(self, unit: Unit, want: dict[str, Any]) -> None:
        kind = type(unit.module)
        original = kind.forward
        dispatch = getattr(original, "_flatout_calls", None)
        if dispatch is None:
            dispatch = {}
            kind.forward = _dispatcher(original, dispatch)
        else:
            original = original.__wrapped__
        plain = types.MethodType(original, unit.module)
        call = UnitCall(self, unit, plain, want["fingerprint"])
        dispatch[id(unit.module)] = call
        self._calls.append(weakref.ref(call))

    def compose(self, call: UnitCall) -> Callable[..., Any]:
        """The techniques around one unit, the plan's first outermost."""
        self.guest.end_if_refused()
        composed = call.plain
        if self.guest.training.guarding is not None:
            composed = self.guest.training.guarding.innermost(call.unit, composed)
        for act in reversed(list(self.guest.acts)):
            was, self.guest.in_act = self.guest.in_act, True
            try:
                composed = act.wrap(call.unit, composed)
            except Refused as refused:
                self.guest.refuse(act.name, str(refused))
                self.guest.end_unless_degraded()
            finally:
                self.guest.in_act = was
        return composed

    def refused(self, refused: Refused) -> None:
        """An act refused in the midst of a training call; find out which."""
        name = "technique"
        frame = refused.__traceback__
        while frame is not None:
            module = frame.tb_frame.f_globals.get("__name__", "")
            for act in self.guest.acts:
                if module == type(act).__module__:
                    name = act.name
            frame = frame.tb_next
        self.guest.refuse(name, str(refused))
        self.guest.end_unless_degraded()

    def recompose(self) -> None:
        """At the next call of each unit: an act has gone."""
        for call in self.calls:
            call.wrapped = None

    # --- checking

    def check(self, step: int) -> None:
        """At the end of each of the first steps: has every unit been called through its techniques?

        One at least in the first two steps, all of them in those that the baseline watched and one more.
        """
        last = step > CHECKED_STEPS
        self.checked = last
        if self._watcher is not None and (last or not self.wanted):
            self._watcher.take_out()
        wrapping = [act for act in self.guest.acts if _wraps(act)]
        called = {_mark(call.fingerprint) for call in self.calls if call.calls}
        absent = [want for want in self.wanted if _mark(want["fingerprint"]) not in called]
        if not wrapping or step < 2 or (called and not (last and absent)):
            return
        names = ", ".join(f"{want['name']} ({want.get('class_name', '')})" for want in absent)
        raise NotCalled(
            wrapping[0].name,
            f"{step} steps were over without a training call of {names or 'any model'}, where it acts",
        )


def _mark(mark: str) -> str:
    """A unit's fingerprint without its ordinal."""
    return mark.rpartition("|")[0]


class NotCalled(Exception):
    """A unit was not called in the first step."""

    def __init__(self, technique: str, reason: str) -> None:
        super().__init__(reason)
        self.technique = technique


def _wraps(act: Any) -> bool:
    base = next((kind for kind in type(act).__mro__ if kind.__module__.endswith(".acts.base")), None)
    return base is None or type(act).wrap is not base.wrap  # type: ignore[attr-defined]


def _dispatcher(original: Callable[..., Any], dispatch: dict[int, UnitCall]) -> Callable[..., Any]:
    """A class's ``forward`` that lets equipped instances go their way."""

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = dispatch.get(id(self))
        if call is None or call.unit.module is not self:
            return original(self, *args, **kwargs)
        return call(*args, **kwargs)

    forward._flatout_calls = dispatch  # type: ignore[attr-defined]
    return forward


def follow_wrapping(eval_frame: Any, training: Any) -> None:
    """Tell the units of every wrapper that ``torch.compile(module)`` makes."""
    plain = eval_frame.OptimizedModule.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        if training.units is not None:
            training.units.moved_into(self)

    eval_frame.OptimizedModule.__init__ = __init__


COMPILER_MODULES = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")
COMPILER_NAME = "unpatched_nn_module_call"
"""Where the compiler keeps the ``__call__`` that it knows; torch 2.4 has no such thing yet."""


class CallPatch:
    """``nn.Module.__call__`` replaced for a while. Global forward hooks would do the same, and make
    compiled modules warn. The compiler compares with the ``__call__`` found at its own import, traces
    into any other, so it is told that ours is the one; else its code would be thrown away with the patch.
    """

    active: Any = None
    """The one that is in."""

    def __init__(self, torch: Any, called: Callable[..., Any]) -> None:
        self.torch = torch
        self.called = called
        self.depth = 0
        self._original: Any = None
        self._ours: Any = None

    def put_in(self) -> None:
        module_class = self.torch.nn.Module
        original = self._original = module_class.__call__
        is_compiling = self.torch.compiler.is_compiling
        patch = self

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if is_compiling():
                return original(self, *args, **kwargs)
            patch.depth += 1
            try:
                return patch.called(original, self, args, kwargs)
            finally:
                patch.depth -= 1

        self._ours = __call__
        module_class.__call__ = __call__
        CallPatch.active = self
        self.tell_compiler()

    def tell_compiler(self) -> None:
        """Also called when the compiler is imported while the patch is in."""
        for name in COMPILER_MODULES:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, COMPILER_NAME):
                setattr(module, COMPILER_NAME, self._ours or self._original)

    def take_out(self) -> None:
        module_class = self.torch.nn.Module
        if self._ours is not None and module_class.__call__ is self._ours:
            module_class.__call__ = self._original
        elif self._ours is not None:
            # Someone patched on top of us: stay, and do nothing.
            self.called = _straight_through
        if self._ours is not None:
            self._ours = None
            CallPatch.active = None
            self.tell_compiler()


def _straight_through(original: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
    return original(module, *args, **kwargs)
