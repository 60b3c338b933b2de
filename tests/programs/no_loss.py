"""Training without a loss tensor, ``--how``.

``nonscalar`` starts the backward from an output with a gradient of its own; ``grad`` asks autograd.grad and
fills ``.grad`` itself; ``manual`` works the gradients out by hand; ``bare`` does so without an optimiser
object, so that nothing of torch's tells where a step ends.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=("nonscalar", "grad", "manual", "bare"), default="nonscalar")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = (
    nn.Linear(16, 4)
    if args.how in ("manual", "bare")
    else nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
)
parameters = list(model.parameters())
optimizer = None if args.how == "bare" else torch.optim.AdamW(parameters, lr=1e-3)
for step in range(args.steps):
    inputs, wanted = torch.randn(8, 16), torch.randn(8, 4)
    for parameter in parameters:
        parameter.grad = None
    if args.how == "nonscalar":
        outputs = model(inputs)
        error = (outputs - wanted).detach()
        outputs.backward(error / 8)
    elif args.how == "grad":
        error = model(inputs) - wanted
        for parameter, found in zip(
            parameters, torch.autograd.grad(error.square().mean(), parameters), strict=True
        ):
            parameter.grad = found
    else:
        with torch.no_grad():
            error = model(inputs) - wanted
            parameters[0].grad, parameters[1].grad = error.T @ inputs / 8, error.mean(0)
    if optimizer is not None:
        optimizer.step()
    else:
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(0.01 * parameter.grad)
    print(step, repr(error.detach().square().mean().item()), flush=True)
