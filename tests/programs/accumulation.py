"""Gradient accumulation: four backward calls to one optimiser step."""

from __future__ import annotations

import argparse

import torch
from torch import nn

MICRO_BATCHES = 4

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(args.steps):
    for _ in range(MICRO_BATCHES):
        inputs = torch.randn(4, 16)
        targets = torch.randint(0, 4, (4,))
        loss = nn.functional.cross_entropy(model(inputs), targets) / MICRO_BATCHES
        loss.backward()
        print(step, repr(loss.item()), flush=True)
    optimizer.step()
    optimizer.zero_grad()
