"""LBFGS: the forward and the backward run several times inside one step."""

from __future__ import annotations

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
inputs, targets = torch.randn(32, 8), torch.randn(32, 2)


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    return loss


for number in range(12):
    print(number, repr(optimizer.step(closure).item()), flush=True)
