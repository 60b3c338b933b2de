"""No optimiser object: the script updates its parameters by hand, state carried over the batches."""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.GRU(8, 16)
head = nn.Linear(16, 4)
parameters = [*model.parameters(), *head.parameters()]
hidden = torch.zeros(1, 4, 16)
for step in range(args.steps):
    inputs = torch.randn(6, 4, 8)
    targets = torch.randint(0, 4, (24,))
    for parameter in parameters:
        parameter.grad = None
    output, hidden = model(inputs, hidden.detach())
    loss = nn.functional.cross_entropy(head(output).flatten(0, 1), targets)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 0.25)
    for parameter in parameters:
        parameter.data.add_(parameter.grad, alpha=-0.5)
    print(step, repr(loss.item()), flush=True)
