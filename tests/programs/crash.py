"""Trains a little, then fails with an error of its own."""

from __future__ import annotations

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    if step == 2:
        raise ValueError("the vocabulary has 50257 entries and the data 50304")
