"""BF16 in the frameworks' own words. Each framework's import leaves patches, so each runs in a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.frameworks]

PROLOGUE = """
import sys, torch
from flatout.agent.acts import bf16
from flatout.agent.context import Context
from flatout.agent.protocol import Spec
from flatout.agent.refused import Refused
context = Context(Spec(trial_dir=""), lambda event: None)
context.torch = torch
act = bf16.Act({}, context)
context.acts["bf16"] = act
act.on_torch(torch)
def unit(module):
    return type("Unit", (), {"module": module})()
"""


def run(framework, body, tmp_path):
    pytest.importorskip(framework)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROLOGUE + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip().endswith("ok")


def test_accelerate(tmp_path):
    body = """
    import accelerate.accelerator
    act.on_import("accelerate.accelerator", accelerate.accelerator)
    accelerator = accelerate.Accelerator(cpu=True)
    assert accelerator.mixed_precision == "bf16"
    model = accelerator.prepare(torch.nn.Linear(4, 4))
    call = act.wrap(unit(model), model._call_impl)
    out = call(torch.ones(2, 4))
    assert out.dtype == torch.float32, "Accelerate converts what the model returns"
    assert not torch.is_autocast_enabled("cpu"), "no region of ours beside the framework's"
    evidence = act.evidence()
    assert evidence["frameworks"] == ["accelerate"] and evidence["regions_opened"] == 0
    assert evidence["matmul_dtypes"] == {"bfloat16": 1}, evidence
    print("ok")
    """
    run("accelerate", body, tmp_path)


def test_accelerate_with_fp16_is_refused(tmp_path):
    body = """
    import accelerate.accelerator
    act.on_import("accelerate.accelerator", accelerate.accelerator)
    try:
        accelerate.Accelerator(cpu=True, mixed_precision="fp16")
    except Refused as refused:
        assert "mixed_precision='fp16'" in str(refused)
        print("ok")
    """
    run("accelerate", body, tmp_path)


def test_hugging_face_trainer(tmp_path):
    body = """
    import transformers.training_args
    act.on_import("transformers.training_args", transformers.training_args)
    import accelerate.accelerator
    act.on_import("accelerate.accelerator", accelerate.accelerator)
    from transformers import Trainer, TrainingArguments
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)
        def forward(self, x, labels):
            self.dtype = self.inner(x).dtype
            return {"loss": (self.inner(x).float() - labels).square().mean()}
    net = Net()
    arguments = TrainingArguments(output_dir="out", max_steps=2, use_cpu=True, report_to=[],
                                  save_strategy="no", disable_tqdm=True)
    assert arguments.bf16 is True
    data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(8)]
    net._compiled_call_impl = act.wrap(unit(net), net._call_impl)
    Trainer(model=net, args=arguments, train_dataset=data).train()
    assert net.dtype == torch.bfloat16
    evidence = act.evidence()
    assert "hf_trainer" in evidence["frameworks"] and evidence["regions_opened"] == 0
    assert evidence["matmul_dtypes"].get("bfloat16"), evidence
    print("ok")
    """
    run("transformers", body, tmp_path)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(package, tmp_path):
    body = f"""
    import {package} as pl
    import {package}.trainer.trainer as trainer
    act.on_import("{package}.trainer.trainer", trainer)
    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 1)
        def training_step(self, batch, index):
            out = self.inner(batch)
            self.dtype_seen = out.dtype
            return out.float().square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    net = Net()
    net.inner._compiled_call_impl = act.wrap(unit(net.inner), net.inner._call_impl)
    t = pl.Trainer(max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                   enable_progress_bar=False, enable_model_summary=False)
    assert t.precision == "bf16-mixed", t.precision
    t.fit(net, torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
    assert net.dtype_seen == torch.bfloat16
    evidence = act.evidence()
    assert evidence["frameworks"] == ["lightning"] and evidence["regions_opened"] == 0
    assert evidence["matmul_dtypes"] == {{"bfloat16": 2}}, evidence
    print("ok")
    """
    run(package.partition(".")[0], body, tmp_path)


def test_fabric(tmp_path):
    body = """
    import lightning.fabric.fabric as fabric
    act.on_import("lightning.fabric.fabric", fabric)
    f = fabric.Fabric(accelerator="cpu", devices=1)
    assert f._precision.precision == "bf16-mixed"
    print("ok")
    """
    run("lightning", body, tmp_path)
