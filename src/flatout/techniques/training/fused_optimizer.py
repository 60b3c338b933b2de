"""The fused optimiser, as a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flatout.host import Host, Interpreter
from flatout.plan import Plan
from flatout.technique import Effect, Part, Technique
from flatout.techniques import fitness
from flatout.workload import Discovery

CLASSES = ("Adam", "AdamW", "SGD", "Adagrad")


@dataclass(frozen=True, kw_only=True)
class FusedOptimizer:
    """Fused optimiser: one kernel updates all parameters of a group.

    What it does
        Sets ``fused=True`` in the program's own Adam, AdamW, SGD or Adagrad, before its first step and
        again after each ``load_state_dict``, which would undo it. What is saved stays as it would be:
        the groups in ``state_dict`` say what the program said.

    When it pays
        Many parameters and a short step. A few per cent of a large model's step, more of a small one's;
        much on a CPU, where the unfused loop goes through the parameters one by one.

    What it changes
        Effect class rounding: the same update, its operations in another order.

    By hand
        Where the optimiser is made::

            torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

        Hugging Face: ``TrainingArguments(optim="adamw_torch_fused")``, the default in newer versions.
        Pass it again after loading a checkpoint that was saved without it.

    Sources
        PyTorch: torch.optim.AdamW, parameter fused; the implementation table of torch.optim. The default
        is foreach, not fused (pytorch#95241). Sparse gradients, as of embedding bags, make it raise.
    """

    name: ClassVar[str] = "fused_optimizer"
    title: ClassVar[str] = "one kernel for the whole update"
    effect: ClassVar[Effect] = Effect.ROUNDING
    claimed: ClassVar[str] = "5-15 % fewer kernels"
    slot: ClassVar[str] = "optimiser step"
    after: ClassVar[tuple[str, ...]] = ("compile",)
    """The optimiser comes last: by then the parameters are those that it will update."""
    excludes: ClassVar[Mapping[str, str]] = {}
    eclipsed_by: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[float] = 1.03
    shortens: ClassVar[Part] = Part.OPTIMIZER
    accepts: ClassVar[Mapping[str, type]] = {}

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        reason = fitness.already(self.name, discovery)
        if reason:
            return reason
        if not discovery.optimizers:
            return "the program has no optimiser object: it updates its parameters itself"
        for optimizer in discovery.optimizers:
            name = str(optimizer.get("class_name"))
            if optimizer.get("fused"):
                continue
            if not optimizer.get("exact_class", True):
                return (
                    f"{name} is not torch.optim's own class: a subclass or another package's optimiser, "
                    "whose step a fused kernel may not be"
                )
            if name not in CLASSES:
                return f"torch has no fused {name}; it has one for {', '.join(CLASSES)}"
            if optimizer.get("sparse"):
                return f"{name} was given sparse gradients, which no fused optimiser takes"
        return None

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        return {}

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        optimizers = evidence.get("optimizers")
        if not isinstance(optimizers, list) or not optimizers:
            return "no optimiser was reached"
        for optimizer in optimizers:
            groups, fused = optimizer.get("groups"), optimizer.get("fused_groups")
            if groups != fused:
                return f"{optimizer.get('class_name')}: {fused} of {groups} parameter groups are fused"
        if not evidence.get("fused_calls"):
            return "no fused kernel was called in the first steps"
        return None

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        if "hf_trainer" in discovery.frameworks:
            return 'TrainingArguments(..., optim="adamw_torch_fused")'
        names = [str(o.get("class_name")) for o in discovery.optimizers if not o.get("fused")]
        return "\n".join(f"torch.optim.{name}(..., fused=True)" for name in dict.fromkeys(names))


TECHNIQUE: Technique = FusedOptimizer()
