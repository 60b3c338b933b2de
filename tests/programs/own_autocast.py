"""Enters bfloat16 autocast itself: bf16 is already there."""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--dtype", default="bfloat16", help="float32: a region that hides bf16 from a patcher")
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
enabled = args.dtype != "float32"
for step in range(args.steps):
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
