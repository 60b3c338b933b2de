"""Calls ``model.forward`` itself, and a second method: hooks on ``__call__`` never fire."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.relu(self.body.forward(inputs)))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model.forward(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
