"""TF32, as a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flatout.host import Host, Interpreter
from flatout.plan import Plan
from flatout.technique import Effect, Part, Technique
from flatout.techniques import fitness
from flatout.workload import Discovery


@dataclass(frozen=True, kw_only=True)
class Tf32:
    """TF32: float32 matrix products on the tensor cores.

    What it does
        Lets float32 matrix products run on the tensor cores in TensorFloat-32: 10 bits of mantissa
        instead of 23 for what is multiplied, float32 for what is added up. Weights, activations and
        everything else stay float32. One call, ``torch.set_float32_matmul_precision("high")``, made
        right after torch's import and seen to stay.

    When it pays
        Float32 training on an Ampere GPU or later, where products take much of the step: often 2x and
        more. Nothing on older GPUs and on CPUs, and little beside BF16, which takes those products
        over.

    What it changes
        Effect class approximate: products lose 13 bits of mantissa. Convolutions already run so by
        torch's own default, which is left as the program has it.

    By hand
        Once, after ``import torch``::

            torch.set_float32_matmul_precision("high")

        Hugging Face: ``TrainingArguments(tf32=True)``.

    Sources
        PyTorch: torch.set_float32_matmul_precision, and the notes on numerical accuracy and on
        TensorFloat-32 in CUDA semantics. NVIDIA, A100 architecture white paper (2020), section TF32.
        Reading the older ``allow_tf32`` flags after setting the newer ``fp32_precision`` raises, so
        neither is touched.
    """

    name: ClassVar[str] = "tf32"
    title: ClassVar[str] = "float32 products on tensor cores"
    effect: ClassVar[Effect] = Effect.APPROXIMATE
    claimed: ClassVar[str] = "part of mixed precision's 2-3x over FP32"
    slot: ClassVar[str] = "float32 matmul precision"
    after: ClassVar[tuple[str, ...]] = ()
    excludes: ClassVar[Mapping[str, str]] = {}
    eclipsed_by: ClassVar[tuple[str, ...]] = ("bf16",)
    expected: ClassVar[float] = 2.0
    shortens: ClassVar[Part] = Part.PRODUCTS
    accepts: ClassVar[Mapping[str, type]] = {}

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        if not fitness.on_cuda(discovery):
            return f"TF32 is a format of NVIDIA tensor cores; the program trains on {discovery.device}"
        return (
            fitness.already(self.name, discovery)
            or fitness.older_than(host, (8, 0), "TF32")
            or fitness.double_precision(discovery, "TF32")
        )

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        return {}

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        precision = evidence.get("precision")
        if precision not in ("high", "medium", "tf32"):
            return f"the float32 matmul precision is {precision!r}, not 'high'"
        if not evidence.get("seen_at_steps"):
            return "the precision was not looked at in any step"
        return None

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        if "hf_trainer" in discovery.frameworks:
            return "TrainingArguments(..., tf32=True)"
        return 'torch.set_float32_matmul_precision("high")  # once, after import torch'


TECHNIQUE: Technique = Tf32()
