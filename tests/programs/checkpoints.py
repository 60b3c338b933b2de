"""Writes checkpoints in every way that escapes a patch of Python's ``open``, and resumes from its own.

Through torch.save, safetensors, a C++ writer, and a child process; into the working folder, HOME, the
temporary folder and ``--folder``; it also overwrites and deletes what it finds there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--folder", type=Path, required=True, help="an absolute folder outside the working one")
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
first = 0
if Path("checkpoint.pt").exists():
    saved = torch.load("checkpoint.pt")
    model.load_state_dict(saved["model"])
    first = saved["step"] + 1
    print("resumed at step", first, flush=True)
for step in range(first, first + args.steps):
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
    if step % 50 == 2:
        torch.save({"model": model.state_dict(), "step": step}, "checkpoint.pt")
        for place in (Path.home(), Path(tempfile.gettempdir()), args.folder):
            save_file(model.state_dict(), place / "guest.safetensors")
            writer = torch._C.PyTorchFileWriter(str(place / "guest.native.pt"))
            writer.write_record("step", str(step).encode(), len(str(step)))
            writer.write_end_of_file()
        child = ["sh", "-c", "cat > guest.child; mkdir -p made/by/child; rm -f precious.txt"]
        subprocess.run(child, input=os.urandom(64), check=True)
        (args.folder / "precious.txt").write_text("overwritten")
