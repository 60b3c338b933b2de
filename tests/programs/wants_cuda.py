"""Wants a GPU where there is none."""

from __future__ import annotations

import torch
from torch import nn

model = nn.Linear(4, 1).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100_000):
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    optimizer.step()
