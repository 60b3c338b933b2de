"""Compiles its model itself (a cheap backend): compile is already there."""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--in-place", action="store_true", help="model.compile() and not torch.compile(model)")
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if args.in_place:
    model.compile(backend="aot_eager")
    compiled = model
else:
    compiled = torch.compile(model, backend="aot_eager")
for step in range(args.steps):
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(compiled(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
