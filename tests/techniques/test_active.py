"""Evidence that a technique ran, or the reason why it cannot be said; and the lines by hand."""

from __future__ import annotations

import pytest

from flatout.plan import Choice, Plan
from flatout.techniques import TECHNIQUES, technique_named

from .hosts import PROGRAM, program

GOOD = {
    "tf32": {"precision": "high", "seen_at_steps": {"high": 3}},
    "bf16": {"frameworks": [], "regions_opened": 3, "matmul_dtypes": {"bfloat16": 24, "float32": 1}},
    "sdpa": {"calls": 3, "rewritten": 12, "runs_of_rewritten_graphs": 3, "left": []},
    "compile": {"calls": 3, "graphs": 1, "last_call_compiled": True, "recompiles": 0},
    "fused_optimizer": {
        "optimizers": [{"class_name": "AdamW", "groups": 2, "fused_groups": 2}],
        "fused_calls": {"_fused_adamw_": 4},
    },
}

BAD = [
    ("tf32", {"precision": "highest"}, "'highest'"),
    ("tf32", {"seen_at_steps": {}}, "not looked at"),
    ("bf16", {"regions_opened": 0}, "no training call"),
    ("bf16", {"matmul_dtypes": {}}, "no matrix product was seen"),
    ("bf16", {"matmul_dtypes": {"float32": 24}}, "24 in float32"),
    ("sdpa", {"rewritten": 0, "left": [{"where": "a.py:1", "reason": "used twice"}]}, "used twice"),
    ("sdpa", {"calls": 0, "switched": ["LlamaForCausalLM"]}, "no training call"),
    ("sdpa", {"runs_of_rewritten_graphs": 0}, "no rewritten graph has run"),
    ("sdpa", {"mask_changed": "the mask bias was changed"}, "was changed"),
    ("compile", {"calls": 0}, "no training call"),
    ("compile", {"graphs": 0}, "no graph"),
    ("compile", {"last_call_compiled": False, "recompiles": 8}, "gave up after 8 recompiles"),
    ("fused_optimizer", {"optimizers": []}, "no optimiser"),
    (
        "fused_optimizer",
        {"optimizers": [{"class_name": "AdamW", "groups": 2, "fused_groups": 1}]},
        "1 of 2 parameter groups",
    ),
    ("fused_optimizer", {"fused_calls": {}}, "no fused kernel"),
]


@pytest.mark.parametrize("name", GOOD)
def test_good_evidence_convinces(name):
    assert technique_named(name).active(GOOD[name], PROGRAM) is None


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_no_evidence_never_convinces(technique):
    assert technique.active({}, PROGRAM)


@pytest.mark.parametrize(("name", "changes", "words"), BAD)
def test_a_hole_in_the_evidence_is_named(name, changes, words):
    assert words in (technique_named(name).active({**GOOD[name], **changes}, PROGRAM) or "")


def test_a_framework_of_its_own_is_evidence_enough_for_the_region():
    evidence = {"frameworks": ["accelerate"], "regions_opened": 0, "matmul_dtypes": {"bfloat16": 1}}
    assert technique_named("bf16").active(evidence, PROGRAM) is None


BY_HAND = [
    ("tf32", (), 'torch.set_float32_matmul_precision("high")'),
    ("tf32", ("hf_trainer",), "TrainingArguments(..., tf32=True)"),
    ("bf16", (), 'with torch.autocast("cuda", dtype=torch.bfloat16):'),
    ("bf16", ("hf_trainer", "accelerate"), "TrainingArguments(..., bf16=True)"),
    ("bf16", ("accelerate",), 'Accelerator(..., mixed_precision="bf16")'),
    ("bf16", ("lightning",), 'Trainer(..., precision="bf16-mixed")'),
    ("compile", (), "model.compile()"),
    ("compile", ("hf_trainer",), "torch_compile=True"),
    ("fused_optimizer", (), "torch.optim.AdamW(..., fused=True)"),
    ("fused_optimizer", ("hf_trainer",), 'optim="adamw_torch_fused"'),
    ("sdpa", (), "F.scaled_dot_product_attention("),
    ("sdpa", ("hf_trainer",), 'attn_implementation="sdpa"'),
]


@pytest.mark.parametrize(("name", "frameworks", "line"), BY_HAND)
def test_the_lines_by_hand(name, frameworks, line):
    text = technique_named(name).by_hand(Plan(choices=(Choice(name=name),)), program(frameworks=frameworks))
    assert line in text


def test_by_hand_says_what_autocast_does_to_recurrent_layers():
    plan = Plan(choices=(Choice(name="bf16"),))
    assert "autocast would" not in technique_named("bf16").by_hand(plan, program(frameworks=()))
    text = technique_named("bf16").by_hand(plan, program(recurrent=("LSTM",)))
    assert "LSTM: autocast would run it in float16" in text


def test_by_hand_says_dynamic_where_the_plan_does():
    plan = Plan(choices=(Choice(name="compile", settings={"dynamic": True}),))
    assert "model.compile(dynamic=True)" in technique_named("compile").by_hand(plan, PROGRAM)


def test_recompiles_offer_dynamic_shapes():
    technique = technique_named("compile")
    assert technique.alternatives(PROGRAM, recompiles=3) == ({"dynamic": True},)
    assert technique.alternatives(PROGRAM, recompiles=0) == ()
