"""The planted faults: what each breaks, on which program, and what the guard must say of it.

A fault is a technique to flatout: a declaration here, and an act in ``acts/NAME.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flatout.host import Host, Interpreter
from flatout.plan import Plan
from flatout.technique import Effect, Part
from flatout.workload import Discovery

ACTS = Path(__file__).parent / "acts"
PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault, in the clothes of a technique."""

    name: str
    program: str
    """``programs/PROGRAM.py``."""
    right: str
    """A regular expression that the right reason for refusing it matches."""
    effect: Effect = Effect.APPROXIMATE
    """What it claims to do to the numbers. The fewer bits claimed, the harder to catch."""
    emulated: str = ""
    """What it stands for, where the fault itself needs a GPU."""
    cuda: bool = False
    """Needs a GPU: the fault itself, not its emulation."""
    title: str = "planted"
    claimed: str = ""
    slot: str = "planted"
    accepts: Mapping[str, type] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)
    expected: float = 2.0
    shortens: Part = Part.STEP

    def unfit(self, discovery: Discovery, host: Host, interpreter: Interpreter) -> str | None:
        return None

    def settings(self, discovery: Discovery, host: Host) -> dict[str, object]:
        return {}

    def active(self, evidence: dict[str, object], discovery: Discovery) -> str | None:
        return None if evidence.get("planted") else "it was not planted"

    def by_hand(self, plan: Plan, discovery: Discovery) -> str:
        return ""


FAULTS = (
    # gradients
    Fault(name="gradient_scaled", program="gpt", right=r"gradient.*1\.1"),
    Fault(name="scale_left", program="gpt", right=r"gradient.*(1024|1\.02e\+?0?3)"),
    Fault(name="branch_detached", program="gpt", right=r"gradient.*blocks\.1\.mlp"),
    Fault(name="frozen_layer", program="gpt", right=r"gradient.*blocks\.0\."),
    Fault(name="loss_normalisation", program="gpt", right=r"gradient"),
    Fault(name="accumulation_summed", program="gpt", right=r"gradient.*\b2\b"),
    Fault(name="accumulation_lost", program="gpt", right=r"gradient"),
    Fault(name="label_shift", program="gpt", right=r"gradient|loss|target"),
    Fault(name="mask_lost", program="gpt", right=r"gradient|loss"),
    Fault(
        name="stale_input",
        program="gpt",
        right=r"step 2",
        emulated="a CUDA graph replayed without its new batch",
    ),
    Fault(name="samples_dropped", program="gpt", right=r"gradient|sample"),
    Fault(name="sequence_cut", program="gpt", right=r"gradient|sample"),
    Fault(name="weights_untied", program="gpt", right=r"tied|tokens\.weight|head\.weight"),
    Fault(
        name="modulated_backward",
        program="modulated",
        right=r"gradient.*table",
        emulated="pytorch#193061, wrong gradients of shared modulated LayerNorms under torch.compile",
    ),
    Fault(name="fp16_gradients", program="shrinking", right=r"gradient.*late|late.*gradient"),
    Fault(name="clipping_lost", program="conv", right=r"gradient"),
    # randomness and modes
    Fault(name="dropout_lost", program="gpt", right=r"dropout"),
    Fault(name="dropout_rate", program="gpt", right=r"dropout"),
    Fault(
        name="dropout_frozen",
        program="gpt",
        right=r"dropout",
        emulated="a CUDA graph that replays its random numbers",
    ),
    Fault(name="left_in_eval", program="gpt", right=r"eval|training mode"),
    Fault(name="norm_in_eval", program="conv", right=r"eval|training mode"),
    Fault(name="statistics_stale", program="conv", right=r"running_|buffer"),
    # data
    Fault(name="batches_repeated", program="gpt", right=r"batch|data|sample|input"),
    Fault(name="batches_skipped", program="gpt", right=r"batch|data|sample|input"),
    # updates
    Fault(name="learning_rate", program="gpt", right=r"learning rate"),
    Fault(name="hidden_learning_rate", program="gpt", right=r"update"),
    Fault(name="forgotten_parameter", program="gpt", right=r"blocks\.0\.mlp\.0\.weight"),
    Fault(name="bf16_weights", program="gpt", right=r"bfloat16|BF16"),
    Fault(name="bf16_stored_weights", program="gpt", right=r"update|mov"),
    Fault(name="momentum_lost", program="conv", right=r"update"),
    Fault(name="decay_everywhere", program="gpt", right=r"weight.decay|update"),
    Fault(name="double_step", program="gpt", right=r"update"),
    Fault(name="steps_skipped", program="gpt", right=r"update|skipped"),
)
