"""A sequence length never seen before at every step: compiled with fixed shapes, it compiles each time."""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)
model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(args.steps):
    tokens = torch.randint(0, 100, (4, 16 + 2 * (step % 500)))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, repr(loss.item()), flush=True)
