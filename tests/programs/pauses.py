"""A plain loop that sets no seed of its own; its model pauses in each forward, for a planted technique to
leave out. Its loss falls within some hundred steps."""

from __future__ import annotations

import time

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pause = 0.03
        self.net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.pause)
        return self.net(x)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
truth = torch.linspace(-1.0, 1.0, 16)
for _ in range(100_000):
    x = torch.randn(64, 16)
    loss = nn.functional.mse_loss(model(x).squeeze(1), torch.sin(x @ truth))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
