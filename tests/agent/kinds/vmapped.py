"""Gradients of each sample by torch.func.vmap, clipped one by one: tensors that have no values to read."""

from __future__ import annotations

import torch
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def loss_of_one(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(functional_call(model, weights, (x[None],)), y[None])


for number in range(30):
    x, y = torch.randn(16, 8), torch.randint(4, (16,))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    grads = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(weights, x, y)
    for name, parameter in model.named_parameters():
        size = grads[name].flatten(1).norm(dim=1).clamp(min=1.0)
        parameter.grad = (grads[name] / size.view(-1, *[1] * parameter.dim())).mean(0)
    optimizer.step()
    print(number, flush=True)
