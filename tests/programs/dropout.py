"""Dropout, a learning-rate schedule, and an evaluation with other shapes every few steps."""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
for step in range(args.steps):
    model.train()
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    print(step, repr(loss.item()), flush=True)
    if step % 5 == 4:
        model.eval()
        with torch.no_grad():
            model(torch.randn(1 + step % 7, 16))
