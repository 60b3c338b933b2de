"""Asks before it trains."""

from __future__ import annotations

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
answer = input("Overwrite the old run? [y/n] ")
for _ in range(100_000):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
