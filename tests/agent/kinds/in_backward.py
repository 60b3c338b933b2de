"""One optimiser a parameter, run inside the backward as soon as the gradient is there."""

from __future__ import annotations

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}


def step(parameter: torch.Tensor) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
for number in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    print(number, repr(loss.item()), flush=True)
