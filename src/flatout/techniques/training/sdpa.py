"""SDPA for hand-written attention, as a declaration."""

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
class Sdpa:
    """SDPA: hand-written attention through torch's fused attention kernels.

    What it does
        Finds softmax(scale * q k^T, masked) v in the graph of the training call and puts
        ``scaled_dot_product_attention`` in its place, which picks a fused kernel (FlashAttention,
        memory-efficient, cuDNN) that never writes the matrix of scores to memory. A mask is evaluated:
        where it is a constant that keeps exactly the lower triangle it becomes ``is_causal=True``. Each
        replacement is run against what was written, with gradients, in float64, before it is used; what
        cannot be proved is left and reported by file and line. A Hugging Face model with eager
        attention is switched by its own ``set_attn_implementation``.

    When it pays
        Attention over some hundred positions and more; the longer, the more: 2.2x of a whole step at
        1,024 and 10x at 8,192 were measured, with a fraction of the memory. The compiler's own rewrites
        miss the usual causal form, so it pays together with compile too.

    What it changes
        Effect class redraw: the same mathematics in another order of sums, and dropout of the weights
        is drawn by another kernel (same rate, other numbers). Without dropout it is rounding alone.

    By hand
        In place of the product, mask, softmax, dropout and second product::

            y = F.scaled_dot_product_attention(
                q, k, v, dropout_p=p if self.training else 0.0, is_causal=True
            )

        q, k and v of shape (batch, heads, length, size). Hugging Face:
        ``from_pretrained(..., attn_implementation="sdpa")``.

    Sources
        PyTorch: torch.nn.functional.scaled_dot_product_attention. Dao et al., FlashAttention (2022) and
        FlashAttention-2 (2023); Rabe and Staats, Self-attention Does Not Need O(n^2) Memory (2021).
    """

    name: ClassVar[str] = "sdpa"
    title: ClassVar[str] = "fused attention kernels"
    effect: ClassVar[Effect] = Effect.REDRAW
    claimed: ClassVar[str] = "large for attention: memory and speed"
    slot: ClassVar[str] = "attention"
    after: ClassVar[tuple[str, ...]] = ("bf16",)
    """Autocast is entered outside the call whose graph is rewritten."""
    excludes: ClassVar[Mapping[str, str]] = {}
    eclipsed_by: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[float] = 1.5
    shortens: ClassVar[Part] = Part.STEP
    accepts: ClassVar[Mapping[str, type]] = {}

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        if discovery.attention == "sdpa":
            return fitness.already(self.name, discovery) or "already there: scaled_dot_product_attention"
        if discovery.attention != "hand-written":
            return "no attention was seen in a training step (no softmax between two matrix products)"
        return fitness.already(self.name, discovery) or fitness.no_unit(discovery)

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        return {}

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        if evidence.get("mask_changed"):
            return str(evidence["mask_changed"])
        if not evidence.get("calls"):
            return "no training call went through it"
        if evidence.get("switched"):
            return None
        if not evidence.get("rewritten"):
            left = evidence.get("left")
            reasons = (
                sorted({str(item.get("reason")) for item in left if isinstance(item, dict)})
                if isinstance(left, list)
                else []
            )
            return "no attention was rewritten" + (f": {'; '.join(reasons[:3])}" if reasons else "")
        if not evidence.get("runs_of_rewritten_graphs"):
            return "no rewritten graph has run"
        return None

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        if "hf_trainer" in discovery.frameworks:
            return 'from_pretrained(..., attn_implementation="sdpa")'
        return (
            "y = F.scaled_dot_product_attention(q, k, v, "
            "dropout_p=p if self.training else 0.0, is_causal=True)"
            "  # is_causal only where the mask is the lower triangle; else attn_mask=mask"
        )


TECHNIQUE: Technique = Sdpa()
