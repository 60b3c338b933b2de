"""BF16 mixed precision, as a declaration."""

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
class Bf16:
    """BF16: the forward and the loss under autocast, weights and updates in float32.

    What it does
        Runs the training forward, and the loss after it, under ``torch.autocast`` in bfloat16, from the
        first call of the model to ``backward``. Matrix products and convolutions take bfloat16;
        softmax, norms and losses stay float32. Parameters, their gradients and the optimiser stay
        float32: nothing is cast for good. In an Accelerate, Hugging Face Trainer or Lightning program
        the framework's own setting is used instead.

    When it pays
        GPUs from Ampere on, with products of some size: 2 to 3x over float32, less over TF32. Half the
        memory for activations. On a CPU only where it has AMX or AVX-512 BF16; elsewhere it loses.

    What it changes
        Effect class approximate: 8 bits of mantissa in products. A region of the program's own around
        its model that turns autocast off, or sets it to float32, is overridden; those inside the model
        (rotary embeddings, some losses) are there on purpose and stay. Recurrent layers on a GPU are cast
        to bfloat16 (float32 before cuDNN 9.13): autocast itself runs them in float16, where small
        gradients become nil.

    By hand
        Around the model's call and the loss, not around ``backward``::

            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_function(model(x), y)
            loss.backward()

        ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN`` on a GPU need more: see above.

        Hugging Face: ``TrainingArguments(bf16=True)``. Accelerate: ``Accelerator(mixed_precision="bf16")``
        or ``accelerate launch --mixed_precision bf16``. Lightning: ``Trainer(precision="bf16-mixed")``.

    Sources
        PyTorch: automatic mixed precision package, autocast op reference. Micikevicius et al., Mixed
        Precision Training (2018); Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training (2019).
        Autocast's cache of casts loses gradients across no_grad and steps (pytorch#112583): it is
        cleared with each region. Pure bfloat16 weights converge worse (torchtune#2254): never made.
        Autocast's float16 for recurrent layers: aten/src/ATen/cudnn/AutocastRNN.cpp (measured on an
        H200 with torch 2.11: gradients of an LSTM at 1e-5 of usual size are nil for 39 to 63 % under
        autocast, for none when cast to bfloat16).
    """

    name: ClassVar[str] = "bf16"
    title: ClassVar[str] = "mixed precision in bfloat16"
    effect: ClassVar[Effect] = Effect.APPROXIMATE
    claimed: ClassVar[str] = "2-3x over FP32"
    slot: ClassVar[str] = "autocast"
    after: ClassVar[tuple[str, ...]] = ("tf32",)
    """The mode of float32 products first, then the region that overrides it."""
    excludes: ClassVar[Mapping[str, str]] = {}
    eclipsed_by: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[float] = 2.5
    shortens: ClassVar[Part] = Part.KERNELS
    accepts: ClassVar[Mapping[str, type]] = {}

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        reason = fitness.already(self.name, discovery) or fitness.already("fp16", discovery)
        if reason:
            return reason
        if discovery.grad_scaler:
            return "the program scales its losses with a GradScaler: it is written for float16"
        if discovery.device not in ("cuda", "cpu"):
            return f"the program trains on {discovery.device}, and this is for cuda and cpu"
        if fitness.on_cuda(discovery):
            reason = fitness.older_than(host, (8, 0), "BF16 on tensor cores")
        return (
            reason
            or fitness.double_precision(discovery, "autocast")
            or (None if discovery.frameworks else fitness.no_unit(discovery))
        )

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        return {}

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        dtypes = evidence.get("matmul_dtypes")
        frameworks = evidence.get("frameworks")
        if not frameworks and not evidence.get("regions_opened"):
            return "no training call went through the autocast region"
        if not isinstance(dtypes, dict) or not dtypes:
            return "no matrix product was seen in a training call, so none is known to be bfloat16"
        if not dtypes.get("bfloat16"):
            seen = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(dtypes.items()))
            return f"no matrix product ran in bfloat16 (seen: {seen})"
        return None

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        if "hf_trainer" in discovery.frameworks:
            return "TrainingArguments(..., bf16=True)"
        if "lightning" in discovery.frameworks:
            return 'Trainer(..., precision="bf16-mixed")'
        if "accelerate" in discovery.frameworks:
            return 'Accelerator(..., mixed_precision="bf16")'
        lines = (
            f'with torch.autocast("{discovery.device}", dtype=torch.bfloat16):  '
            "# around the model's call and the loss, not around backward()\n"
            "    ..."
        )
        if discovery.recurrent and discovery.device == "cuda":
            lines += (
                f"\n# {', '.join(discovery.recurrent)}: autocast would run it in float16; call it under "
                "autocast(enabled=False), it and what it is given cast to bfloat16"
            )
        return lines


TECHNIQUE: Technique = Bf16()
