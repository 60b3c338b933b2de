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
    arguments: tuple[str, ...] = ()
    """Of the program."""
    right: str
    """A regular expression that the first reason for refusing it matches where that is the true one."""
    effect: Effect = Effect.APPROXIMATE
    """What it claims to do to the numbers. The fewer bits claimed, the harder to catch."""
    emulated: str = ""
    """What it stands for, where the fault itself needs a GPU."""
    more: bool = False
    """Beyond the kinds that the quick tests plant."""
    lost_when_real: str = ""
    """Why it is too small to be told at real size, where it is: the guard's known limit."""
    cuda: bool = False
    """Needs a GPU: the fault itself, not its emulation."""
    title: str = "planted"
    claimed: str = ""
    slot: str = "planted"
    accepts: Mapping[str, type] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)
    eclipsed_by: tuple[str, ...] = ()
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


WRONG_SCALE = r"gradients are {} times the true ones in (\d+) of \1 parameters"

FAULTS = (
    # gradients
    Fault(name="gradient_scaled", program="gpt", right=WRONG_SCALE.format(r"1\.1")),
    Fault(name="branch_detached", program="gpt", right=r"no gradient reaches blocks\.1\.mlp"),
    Fault(name="frozen_layer", program="gpt", right=r"no gradient reaches blocks\.0\."),
    Fault(
        name="loss_normalisation",
        program="gpt",
        right=r"input that reaches the model, inside the plan, 3 is other data",  # the number of tokens
    ),
    Fault(name="label_shift", program="gpt", right=r"inside the plan, 2 is other data"),
    Fault(
        name="stale_input",
        program="gpt",
        right=r"inside the plan, 1 is other data .* in step 2",
        emulated="a CUDA graph replayed without its new batch",
    ),
    Fault(
        name="stale_graph",
        program="gpt",
        arguments=("--micro-batches", "1"),
        cuda=True,
        right=r"start \(step 2\): (the )?gradient",
    ),
    Fault(name="samples_dropped", program="gpt", right=r"untouched \d+x\d+: other samples, in step 1"),
    Fault(name="weights_untied", program="gpt", right=r"no longer tied: .*tokens\.weight"),
    Fault(
        name="modulated_backward",
        program="modulated",
        right=r"gradient of blocks\.\d\.table",
        emulated="pytorch#193061, wrong gradients of shared modulated LayerNorms under torch.compile",
    ),
    Fault(name="fp16_gradients", program="shrinking", right=r"late \(step \d\): .* underflows"),
    # randomness and modes
    Fault(name="dropout_lost", program="gpt", right=r"dropout is lost or frozen"),
    Fault(
        name="dropout_frozen",
        program="gpt",
        right=r"dropout is lost or frozen",
        emulated="a CUDA graph that replays its random numbers",
    ),
    Fault(name="left_in_eval", program="gpt", right=r"in eval mode and not in training mode"),
    Fault(name="statistics_stale", program="conv", right=r"buffer blocks\.0\.norm\.running_mean does not"),
    # data
    Fault(name="batches_repeated", program="gpt", right=r"other data than the untouched program's batch"),
    # updates
    Fault(name="learning_rate", program="gpt", right=r"learning rate of group 1 is 0\.0011"),
    Fault(name="bf16_weights", program="gpt", right=r"trained weights are bfloat16"),
    # and more of the same kinds
    Fault(name="scale_left", program="gpt", right=WRONG_SCALE.format(r"1\.02e\+03"), more=True),
    Fault(name="accumulation_summed", program="gpt", right=WRONG_SCALE.format("2"), more=True),
    Fault(name="accumulation_lost", program="gpt", right=r"gradient .* true one along it", more=True),
    Fault(name="mask_lost", program="gpt", right=r"gradient .* true one along it", more=True),
    Fault(
        name="samples_dropped_later",
        program="gpt",
        right=r"untouched \d+x\d+: other samples, in step 4",
        more=True,
    ),
    Fault(name="sequence_cut", program="gpt", right=r"untouched \d+x\d+: other samples", more=True),
    Fault(name="clipping_lost", program="conv", right=r"gradients are [\d.]+ times the true", more=True),
    Fault(name="dropout_rate", program="gpt", right=r"dropout has another rate", more=True),
    Fault(
        name="attention_dropout_lost",
        program="gpt",
        right=r"dropout has another rate",
        more=True,
        lost_when_real="the dropped weights of many places average out: outputs vary by 7 % less, and two "
        "honest ways to draw by up to 13 %",
    ),
    Fault(name="norm_in_eval", program="conv", right=r"eval mode .*norm", more=True),
    Fault(name="batches_skipped", program="gpt", right=r"other data than the untouched", more=True),
    Fault(name="hidden_learning_rate", program="gpt", right=r"update of step 1.*1\.1 times", more=True),
    Fault(
        name="forgotten_parameter",
        program="gpt",
        right=r"no gradient reaches blocks\.0\.mlp\.0\.weight$",
        more=True,
    ),
    Fault(name="bf16_stored_weights", program="gpt", right=r"update of step 1: .* not move", more=True),
    Fault(name="momentum_lost", program="conv", right=r"update of step 2", more=True),
    Fault(name="decay_everywhere", program="gpt", right=r"weight decay of group 2 is 0\.1", more=True),
    Fault(name="double_step", program="gpt", right=r"update of step 1.* 2 times as large", more=True),
    Fault(name="steps_skipped", program="gpt", right=r"update of step 2: .* do not move", more=True),
)
