"""The training process: what happens at each backward, optimiser step, batch and hold."""

from __future__ import annotations

import functools
import time
import weakref

from . import process
from .hold import Hold
from .record import Block, Clock, Loss, compile_counts
from .refused import Refused
from .steps import Nesting, Steps
from .units import NotCalled, Units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

EVIDENCE_AFTER_STEPS = 3


def _hook(method: Callable[..., Any]) -> Callable[..., Any]:
    """A moment of the program's that the agent uses: its cost is counted, its failure is ours."""

    @functools.wraps(method)
    def hook(self: Any, *args: Any) -> Any:
        start = time.perf_counter_ns()
        held = self.held_ns
        try:
            return method(self, *args)
        except Exception as error:
            self.guest.fail(method.__name__, error)
            return None
        finally:
            self.block.agent_ns += time.perf_counter_ns() - start - (self.held_ns - held)

    return hook


_OF_THE_PARENT: list[dict[str, Any]] = []


class Training:
    """One per process; made with torch's import, idle until the process trains."""

    def __init__(self, guest: Any) -> None:
        self.guest = guest
        self.torch = guest.torch
        self.spec = guest.spec
        self._made: list[Any] = []
        self.held_ns = 0
        self.discovery: Any = None
        self.units: Any = None
        self._late = False
        """The weights of a later step have been written down."""
        self.guarding: Any = None
        if self.spec.guard:
            from .guarding import Guarding

            self.guarding = Guarding(self)
        self._reset()

    def _reset(self) -> None:
        spec = self.spec
        self.steps = Steps(spec.step_unit, spec.anchor)
        self.clock = Clock(self.torch)
        self.block = Block(self.clock, 1)
        self.nesting = Nesting()
        self.hold: Hold | None = None
        self.watch: Any = None
        self.probe: Any = None
        self.claimed = False
        self.backward_depth = 0
        self.scaler_depth = 0
        self.scaler_used = False
        self.copy_losses = False
        """Losses live in memory that is written again: a CUDA graph's, or changed in place."""
        self._inner_steps = 0
        self.loaders: dict[int, dict[str, Any]] = {}
        self._iterators: Any = weakref.WeakKeyDictionary()
        self._begun: Any = weakref.WeakSet()
        """Loaders' iterators that have given their first batch."""
        self._acted_on: Any = weakref.WeakSet()
        self._scaled: list[tuple[Any, Any, Any]] = []
        self._window: list[tuple[Any, float]] = []
        """While discovering: for each of the counter's notes its moment and the loader wait so far."""
        self._counts = {"recompiles": 0, "graph_breaks": 0}
        self._evidence_given = False
        self._device_known = False

    def forget(self) -> None:
        """In a forked child: begin anew."""
        if self.discovery is not None:
            self.discovery.stop()
        # The parent's events and losses belong to its device, which a forked child must not touch, and
        # letting go of them here would: they are kept, unused, for as long as the child lives.
        _OF_THE_PARENT.append(dict(self.__dict__))
        self.discovery = None
        self._reset()
        if self.guarding is not None:
            self.guarding.forget()

    # --- getting to know the process

    def claim(self) -> bool:
        if self.claimed:
            return True
        if not self.guest.claim():
            return False
        self.claimed = True
        self.hold = Hold(self)
        if self.spec.mode == "run":
            from .watch import Watch

            self.watch = Watch(self)
        if self.spec.reference_role and process.rank(self.torch) == 0 and self.guest.file.first:
            from .gradients import Probe

            self.probe = Probe(self)
        if self.steps.discovering and self.discovery is None:
            self._start_discovery()
        return True

    def torch_ready(self) -> None:
        """After the acts have seen torch. A program without optimisers gives no later sign before its
        first training call."""
        if self.guarding is not None:
            self.guarding.torch_ready()
        if self.acting and self.spec.step_unit == "backward":
            self.units = Units(self.guest, self.spec.units)
            self.units.watch_calls()

    def _start_discovery(self) -> None:
        from .discovery import Discovery

        self.discovery = Discovery(self)
        self.discovery.start()

    @property
    def made(self) -> list[Any]:
        """All optimisers that the program made and still has, in that order."""
        return [one for one in (reference() for reference in self._made) if one is not None]

    @property
    def acting(self) -> bool:
        """Some technique wraps units."""
        return bool(self.guest.acts)

    def _know_device(self, tensor: Any) -> None:
        if not self._device_known and hasattr(tensor, "device"):
            self._device_known = True
            self.clock.use(tensor.device.type)

    # --- optimisers

    @_hook
    def optimizer_made(self, optimizer: Any) -> None:
        self._made.append(weakref.ref(optimizer))
        if self.steps.discovering and self.discovery is None:
            self._start_discovery()
        if self.acting:
            if self.units is None:
                self.units = Units(self.guest, self.spec.units)
            self.look_for_units(optimizer)
        if self.guarding is not None:
            self.guarding.optimizer_made()

    def look_for_units(self, optimizer: Any) -> None:
        try:
            self.units.look_for(optimizer)
        except Refused as refused:
            self.guest.refuse(self.guest.acts[0].name, str(refused))

    @_hook
    def optimizer_begins(self, optimizer: Any, args: Any, kwargs: Any, frame: Any) -> Any:
        outermost = self.nesting.enter(frame)
        self._inner_steps += 1
        if not self.claim():
            return None
        self._meet(optimizer)
        if self.discovery is not None:
            self.discovery.optimizer_seen(optimizer)
        if self.guarding is not None:
            return self.guarding.update_begins(optimizer, args, kwargs, outermost)
        if self.probe is not None:
            return self.probe.at_optimizer(optimizer, args, kwargs, outermost)
        return None

    def _meet(self, optimizer: Any) -> None:
        """Before an optimiser's first step, and before each: whatever surrounds the forward ends."""
        if not self.guest.acts:
            return
        self.guest.ask_all("close", "optimizer step")
        if optimizer not in self._acted_on:
            self._acted_on.add(optimizer)
            self.guest.ask_all("on_optimizer", optimizer)

    @_hook
    def optimizer_loaded(self, optimizer: Any) -> None:
        if optimizer in self._acted_on:
            self.guest.ask_all("on_optimizer", optimizer)

    @_hook
    def optimizer_ends(self, optimizer: Any) -> None:
        if self.nesting.leave():
            if self.guarding is not None:
                self.guarding.update_ends(optimizer)
            if self.scaler_depth == 0:
                self._outermost_ended(optimizer)

    @_hook
    def scaler_step_begins(self, scaler: Any, optimizer: Any) -> None:
        self.scaler_depth += 1
        self.scaler_used = True
        self._inner_steps = 0
        if self.claim():
            self._meet(optimizer)

    @_hook
    def scaler_step_raised(self) -> None:
        self.scaler_depth -= 1

    @_hook
    def scaler_step_ends(self, optimizer: Any) -> None:
        self.scaler_depth -= 1
        if self.scaler_depth == 0 and self.nesting.depth == 0:
            if self.watch is not None and not self._inner_steps:
                self.watch.skipped += 1
            if self.guarding is not None and not self._inner_steps:
                self.guarding.scaler_skipped()
            # Also when the scaler skipped the step: the program has gone once through its loop.
            self._outermost_ended(optimizer)

    def _outermost_ended(self, optimizer: Any) -> None:
        if not self.claimed:
            return
        moved = self.steps.moved_anchor
        ended = self.steps.optimizer_ended(optimizer, inside_backward=self.backward_depth > 0)
        if self.steps.moved_anchor and not moved:
            text = "the optimiser whose step ended a step has stopped stepping: another one's ends it now"
            self.guest.emit({"event": "note", "note": text})
        self._after_mark(ended, noted=self.backward_depth == 0)

    # --- backward

    @_hook
    def scaled(self, scaler: Any, loss: Any, scaled_loss: Any) -> None:
        if hasattr(loss, "grad_fn") and hasattr(scaled_loss, "grad_fn"):
            self._scaled = [*self._scaled[-3:], (weakref.ref(scaled_loss), loss.detach(), scaler)]

    def _unscaled(self, loss: Any) -> Any:
        """The program's own loss behind one that a scaler scaled: itself, or divided again."""
        for place, (reference, own, _) in enumerate(self._scaled):
            if reference() is loss:
                del self._scaled[: place + 1]
                return self._kept(own)
        if self._scaled:
            # Such as scaler.scale(loss) / accumulation: some number made of a scaled one.
            *_, scaler = self._scaled.pop()
            if scaler._scale is not None:
                return loss.detach() / scaler._scale
        return self._kept(loss.detach())

    def _kept(self, loss: Any) -> Any:
        """A loss to be read at the next hold. On a GPU a copy costs a launch, which a full queue makes
        wait: the tensor itself will do, unless CUDA graphs replay into its memory or the program has been
        seen to change its loss afterwards."""
        return loss if self.clock.on_gpu and not self.copy_losses else loss.clone()

    @_hook
    def backward_begins(self, tensors: Any) -> None:
        self.backward_depth += 1
        if self.backward_depth > 1 or not self.claim():
            return
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if self.guest.acts:
            self.guest.ask_all("before_backward", loss)
        if not hasattr(loss, "numel"):
            return
        self._know_device(loss)
        if self.discovery is not None:
            self.discovery.backward_seen(loss)
        if self.watch is not None:
            self.watch.loss(loss)
        elif loss.numel() == 1:
            step = len(self.steps.marks) if self.steps.discovering else self.steps.taken + 1
            self.block.losses.append(Loss(step, self._unscaled(loss)))
        if self.guarding is not None:
            whole = self.watch is None and loss.numel() == 1
            self.guarding.backward_begins(self.block.losses[-1].tensor if whole else None)

    @_hook
    def backward_raised(self) -> None:
        self.backward_depth -= 1
        if self.backward_depth == 0 and self.guest.acts:
            self.guest.ask_all("close", "exception")

    @_hook
    def backward_ends(self) -> None:
        self.backward_depth -= 1
        if self.backward_depth > 0 or not self.claimed:
            return
        if self.discovery is not None:
            self.discovery.backward_over()
        if self.probe is not None:
            self.probe.after_backward()
        if self.guarding is not None:
            self.guarding.backward_ends()
        self._after_mark(self.steps.backward_ended(), noted=True)

    # --- loaders

    @_hook
    def loader_started(self, iterator: Any, loader: Any) -> None:
        sampler = getattr(iterator, "_index_sampler", None)
        workers = int(getattr(loader, "num_workers", 0) or 0)
        self._iterators[iterator] = {
            "num_workers": workers,
            "pin_memory": bool(getattr(loader, "pin_memory", False)),
            "batch_size": getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None),
            "prefetch_factor": getattr(loader, "prefetch_factor", None) if workers else None,
            "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
        }

    @_hook
    def loader_waited(self, iterator: Any, seconds: float) -> None:
        if not self.torch.is_grad_enabled():
            return  # an evaluation's loader
        first = iterator not in self._begun
        if first:
            self._begun.add(iterator)
        self.block.add_wait(seconds, first=first)
        known = self._iterators.get(iterator)
        if known is not None and id(known) not in self.loaders:
            self.loaders[id(known)] = known

    def prefetched_batches(self) -> int:
        """Batches that workers prepare while the program holds still."""
        return sum(
            int(known["num_workers"]) * int(known["prefetch_factor"] or 2)
            for known in self._iterators.values()
            if known["num_workers"]
        )

    def loaders_seen(self) -> list[dict[str, Any]]:
        unique: list[dict[str, Any]] = []
        for known in self.loaders.values():
            if known not in unique:
                unique.append(known)
        return unique

    # --- steps

    def _after_mark(self, ended: bool, *, noted: bool) -> None:
        if self.steps.discovering:
            if not noted:
                return
            self._window.append((self.clock.mark(), self.block.wait_seconds))
            if not self.steps.understood(self.made):
                return
            self._settle()
        elif not ended:
            return
        elif self.watch is None:
            # A real job's steps are not timed: nothing would ever fetch the marks of weeks.
            self.block.end_step()
        self._step_ended()

    def _settle(self) -> None:
        """Turn the notes of the discovery into steps."""
        numbers = self.steps.settle()
        for loss in self.block.losses:
            loss.step = numbers[loss.step] if loss.step < len(numbers) else self.steps.taken
        before = 0.0
        for mark, (moment, wait) in zip(self.steps.marks, self._window):
            if mark == self.steps.anchor:
                self.block.ends.append(moment)
                self.block.waits.append(wait - before)
                before = wait
        self._window = []
        if self.discovery is not None:
            self.guest.emit(self.discovery.finish())
            self.discovery = None

    def _step_ended(self) -> None:
        taken = self.steps.taken
        if self.guest.acts:
            self.guest.ask_all("after_step", taken)
            if self.units is not None and not self.units.checked:
                self._check_units()
            if not self._evidence_given and taken >= EVIDENCE_AFTER_STEPS:
                self._evidence_given = True
                self._say_applied()
                self._give_evidence()
        if self.watch is not None:
            self.watch.step(taken)
        if self.guarding is not None:
            self.guarding.step_ended(taken)
        if self.hold is not None:
            self.hold.step_ended(taken)

    def profiled(self) -> None:
        """The untouched program has been timed: its weights are now those of a later step."""
        if self.spec.late_path and not self._late and process.rank(self.torch) == 0:
            self._late = True
            from .guarding import weights

            weights.save(self.torch, self.made, self.spec.late_path)

    def _check_units(self) -> None:
        try:
            self.units.check(self.steps.taken)
        except NotCalled as error:
            self.guest.refuse(error.technique, str(error))

    def _say_applied(self) -> None:
        for act in self.guest.acts:
            self.guest.emit(
                {"event": "applied", "technique": act.name, "detail": getattr(act, "detail", act.settings)}
            )

    def _give_evidence(self) -> None:
        for act in list(self.guest.acts):
            evidence = self.guest.ask(act, "evidence") or {}
            self.guest.emit(
                {"event": "active", "technique": act.name, "active": bool(evidence), "evidence": evidence}
            )

    def flush(self) -> None:
        """Write the block so far and begin the next. Waits for the device."""
        block = self.block
        if block.ends or block.losses:
            event = block.event(self.torch, self.prefetched_batches())
            self.copy_losses = self.copy_losses or block.lost_losses > 0
            counts = compile_counts()
            for name in ("recompiles", "graph_breaks"):
                event[name] = counts[name] - self._counts[name]
                self._counts[name] = counts[name]
            self.guest.emit(event)
        self.next_block()

    def next_block(self) -> None:
        self.block = Block(self.clock, self.steps.taken + 1)

    def finish(self, *, flush: bool) -> None:
        """The end of this process's training, before its ``end`` event."""
        if self.steps.discovering and self.steps.marks:
            self._settle()
        if self.guest.acts:
            if not self._evidence_given:
                self._say_applied()
            self._give_evidence()
        if flush and self.spec.mode == "trial":
            self.flush()
