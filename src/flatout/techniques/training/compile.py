"""torch.compile, as a declaration."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from flatout.host import Host, Interpreter
from flatout.plan import Plan
from flatout.technique import Effect, Part, Technique
from flatout.techniques import fitness
from flatout.workload import Discovery

FIRST_TORCH_OF_PYTHON = {(3, 12): (2, 4), (3, 13): (2, 6), (3, 14): (2, 10)}
"""torch.compile follows a new Python later than torch itself does."""


@dataclass(frozen=True, kw_only=True)
class Compile:
    """torch.compile: fewer, fused kernels, made for this model.

    What it does
        Compiles what the model's training call runs, in place: keys of ``state_dict`` and ``isinstance``
        stay, and calls for evaluation or sampling run as before (other shapes there would compile
        without end). Default mode, without CUDA graphs.

    When it pays
        Many small elementwise kernels between products, on a GPU: 1.2 to 2x. The first steps take
        seconds to minutes, which the report weighs against the gain. Little where the step waits for
        data or is all large products; nothing where lengths change at every step and no dynamic shape
        settles it: recompiles are counted, and the technique is refused when they do not end.

    What it changes
        Effect class redraw: sums in another order, and dropout drawn by the compiled code (same rate,
        other numbers). Without randomness in the forward it is rounding alone.

    By hand
        Before training, after the model is on its device::

            model.compile()

        and not ``model = torch.compile(model)``, which prefixes each key of a checkpoint with
        ``_orig_mod.``. Where lengths change, ``model.compile(dynamic=True)``. Hugging Face:
        ``TrainingArguments(torch_compile=True)``. Accelerate: ``Accelerator(dynamo_backend="inductor")``.

    Sources
        PyTorch: torch.compile and its troubleshooting page; Ansel et al., PyTorch 2 (ASPLOS 2024).
        Keys: pytorch#101107. Growing lengths: pytorch#140229, #105279.
    """

    name: ClassVar[str] = "compile"
    title: ClassVar[str] = "torch.compile of the training call"
    effect: ClassVar[Effect] = Effect.REDRAW
    claimed: ClassVar[str] = "1.2-2x: fusion, fewer launches"
    slot: ClassVar[str] = "compiler"
    after: ClassVar[tuple[str, ...]] = ("bf16", "sdpa", "tf32")
    """What is compiled is the call as precision and attention have left it."""
    excludes: ClassVar[Mapping[str, str]] = {}
    eclipsed_by: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[float] = 1.4
    shortens: ClassVar[Part] = Part.STEP
    accepts: ClassVar[Mapping[str, type]] = {"dynamic": bool}

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        return (
            fitness.already(self.name, discovery)
            or fitness.no_unit(discovery)
            or self._python(discovery, interpreter)
            or (self._gpu(host, interpreter) if fitness.on_cuda(discovery) else self._cpu())
        )

    def _python(self, discovery: Discovery, interpreter: Interpreter) -> str | None:
        python = fitness.numbers(interpreter.version)[:2]
        least = FIRST_TORCH_OF_PYTHON.get((python[0], python[1])) if len(python) == 2 else None
        if least is None:
            return None
        need = f"torch.compile on Python {python[0]}.{python[1]}"
        return fitness.torch_older_than(discovery, interpreter, least, need)

    def _gpu(self, host: Host, interpreter: Interpreter) -> str | None:
        reason = fitness.older_than(host, (7, 0), "Triton, the compiler for GPUs,")
        if reason:
            return reason
        folders = interpreter.site_packages
        if "triton" not in interpreter.packages and not any(Path(p, "triton").is_dir() for p in folders):
            return "Triton, the compiler for GPUs, is not installed beside the program's torch"
        if not _found("CC", ("gcc", "cc", "clang")):
            return "Triton needs a C compiler, and there is no gcc, cc or clang on PATH"
        return None

    def _cpu(self) -> str | None:
        if not _found("CXX", ("g++", "c++", "clang++")):
            return "compiling for a CPU needs a C++ compiler, and there is no g++ or clang++ on PATH"
        return None

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        return {}

    def alternatives(self, discovery: Discovery, *, recompiles: int) -> tuple[dict[str, object], ...]:
        """Other settings worth a trial where the first settings kept compiling again."""
        return ({"dynamic": True},) if recompiles else ()

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        if not evidence.get("calls"):
            return "no training call went through the compiled call"
        if not evidence.get("graphs"):
            return "torch.compile found no graph to compile"
        if not evidence.get("last_call_compiled"):
            return (
                "the last training call ran without a compiled graph: torch.compile gave up after "
                f"{evidence.get('recompiles', 0)} recompiles"
            )
        return None

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        settings = next((c.settings for c in plan.choices if c.name == self.name), {})
        inside = "dynamic=True" if settings.get("dynamic") else ""
        if "hf_trainer" in discovery.frameworks:
            return "TrainingArguments(..., torch_compile=True)"
        name = discovery.units[0].class_name if discovery.units else "model"
        return f"model.compile({inside})  # the {name}, once, after it is on its device"


def _found(variable: str, names: tuple[str, ...]) -> bool:
    """Whether a compiler is there: named by an environment variable, or one of the usual names."""
    own = os.environ.get(variable, "").split()
    return any(shutil.which(name) is not None for name in (*own[:1], *names))


TECHNIQUE: Technique = Compile()
