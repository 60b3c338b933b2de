"""Trains for three steps."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(2, 4)).pow(2).sum()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
