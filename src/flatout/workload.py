"""What to speed up, as data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training command exactly as its owner types it."""

    command: tuple[str, ...]
    cwd: str
    environment: dict[str, str] = field(default_factory=dict)
    """The environment it is started with; redacted wherever it is stored or shown."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A module that the program calls as a whole in training: where compile and autocast act."""

    name: str
    """Dotted name below the root module, or the class name for a root."""
    class_name: str
    parameters: int
    called: str
    """``call`` through ``__call__``, ``forward`` where the program calls ``.forward()`` itself."""
    fingerprint: str = ""
    """Class, parameter shapes and order of first call: how the agent finds it again in another process."""
    training: bool = True
    """Its ``training`` flag in the calls that lead to a backward."""


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """What the agent found out about a program by watching its first steps."""

    step_unit: str
    """``optimizer`` (outermost optimiser step) or ``backward`` (no optimiser object seen)."""
    anchor: int | None
    """Index, by order of first step, of the optimiser whose step ends a step; None for ``backward``."""
    backwards_per_step: float
    device: str
    """``cuda`` or ``cpu``."""
    units: tuple[Unit, ...] = ()
    optimizers: tuple[dict[str, object], ...] = ()
    """Each: class_name, fused, foreach, parameters, sparse (bool), exact_class (bool: not a subclass)."""
    frameworks: tuple[str, ...] = ()
    """Of ``hf_trainer``, ``accelerate``, ``lightning``."""
    already: dict[str, str] = field(default_factory=dict)
    """Technique name -> what was seen of it in the untouched program, such as ``autocast bfloat16``."""
    loaders: tuple[dict[str, object], ...] = ()
    """Each DataLoader that training iterated: num_workers, pin_memory, batch_size, prefetch_factor."""
    world_size: int = 1
    random: bool = False
    """The forward draws random numbers (dropout and the like)."""
    torch_version: str = ""
    grad_scaler: bool = False
    trainable_parameters: int = 0
    attention: str = "none"
    """``sdpa`` when the first loss's graph or the profiled step showed a fused attention operator,
    ``hand-written`` when that graph has a softmax between two batched products, else ``none``."""
    parameter_dtypes: tuple[str, ...] = ()
    """Of the trained parameters, such as ``float32``; empty where not told."""
    recurrent: tuple[str, ...] = ()
    """Classes of torch's recurrent layers in the units, such as ``LSTM``."""
