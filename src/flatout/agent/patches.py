"""What is patched in torch, once, right after its import.

``torch.autograd.backward`` alone: ``Tensor.backward`` goes through it. Of GradScaler, Optimizer,
Module and the DataLoader's iterators the class's own methods, so that subclasses keep theirs.
"""

from __future__ import annotations

import functools
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def install(guest: Any, torch: Any) -> None:
    training = guest.training
    _patch_backward(guest, torch, training)
    _patch_optimizer(guest, torch, training)
    _patch_scaler(guest, torch, training)
    _patch_loader(guest, torch, training)
    _patch_graphs(torch, training)
    if guest.spec.techniques:
        _patch_zero_grad(guest, torch)


def _patch_backward(guest: Any, torch: Any, training: Any) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if guest.inert or guest.in_act:
            return original(*args, **kwargs)
        training.backward_begins(args[0] if args else kwargs.get("tensors"))
        try:
            result = original(*args, **kwargs)
        except BaseException:
            training.backward_raised()
            raise
        training.backward_ends()
        return result

    torch.autograd.backward = backward


def _patch_optimizer(guest: Any, torch: Any, training: Any) -> None:
    module = sys.modules["torch.optim.optimizer"]

    def before(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if guest.inert or guest.in_act:
            return None
        return training.optimizer_begins(optimizer, args, kwargs, sys._getframe(1))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not (guest.inert or guest.in_act):
            training.optimizer_ends(optimizer)

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)

    make = module.Optimizer.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        if not (guest.inert or guest.in_act):
            training.optimizer_made(self)

    module.Optimizer.__init__ = __init__

    load = module.Optimizer.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(self, *args, **kwargs)
        if not (guest.inert or guest.in_act):
            training.optimizer_loaded(self)
        return result

    module.Optimizer.load_state_dict = load_state_dict


def _patch_scaler(guest: Any, torch: Any, training: Any) -> None:
    # torch.cuda.amp.GradScaler is a subclass of this one and has no step of its own.
    scaler_class = torch.amp.grad_scaler.GradScaler
    step = scaler_class.step
    scale = scaler_class.scale

    @functools.wraps(step)
    def scaler_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        # a scaler that is off only passes the call on
        if guest.inert or guest.in_act or not self.is_enabled():
            return step(self, optimizer, *args, **kwargs)
        training.scaler_step_begins(self, optimizer)
        try:
            result = step(self, optimizer, *args, **kwargs)
        except BaseException:
            training.scaler_step_raised()
            raise
        training.scaler_step_ends(optimizer)
        return result

    @functools.wraps(scale)
    def scaler_scale(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        if not guest.inert and self.is_enabled():
            training.scaled(self, outputs, result)
        return result

    scaler_class.step = scaler_step
    scaler_class.scale = scaler_scale


def _patch_graphs(torch: Any, training: Any) -> None:
    """A CUDA graph writes each replay's loss over the last one's: from a capture on, losses are copied."""
    graph_class = torch.cuda.CUDAGraph
    original = graph_class.capture_begin

    @functools.wraps(original)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        training.copy_losses = True
        return original(self, *args, **kwargs)

    graph_class.capture_begin = capture_begin


def _patch_loader(guest: Any, torch: Any, training: Any) -> None:
    iterator_class = torch.utils.data.dataloader._BaseDataLoaderIter
    make = iterator_class.__init__
    advance = iterator_class.__next__

    @functools.wraps(make)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, loader, *args, **kwargs)
        if not guest.inert:
            training.loader_started(self, loader)

    @functools.wraps(advance)
    def __next__(self: Any) -> Any:  # noqa: N807
        if guest.inert:
            return advance(self)
        start = time.perf_counter()
        try:
            return advance(self)
        finally:
            training.loader_waited(self, time.perf_counter() - start)

    iterator_class.__init__ = __init__
    iterator_class.__next__ = __next__


def _patch_zero_grad(guest: Any, torch: Any) -> None:
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        original = owner.zero_grad

        def zero_grad(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if not (guest.inert or guest.in_act):
                guest.ask_all("close", "zero_grad")
            return _original(self, *args, **kwargs)

        functools.update_wrapper(zero_grad, original)
        owner.zero_grad = zero_grad
