"""A loss that shrinks by many orders of magnitude: its gradients fit into FP16 at the start, not late."""

from __future__ import annotations

import argparse

import torch
from torch import nn

SIZES = {
    # numbers in, numbers out, rows
    "small": (8, 256, 64),
    "real": (64, 512, 256),
    "large": (512, 4096, 2048),
}

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--size", choices=SIZES, default="small")
args = parser.parse_args()
INPUTS, OUTPUTS, ROWS = SIZES[args.size]

torch.manual_seed(args.seed)
device = torch.device(args.device)
model = nn.Linear(INPUTS, OUTPUTS).to(device)
# A fifth of the way to each batch's best answer a step, whatever the size.
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * OUTPUTS)
# Drawn where the model is: a large batch takes a processor longer than a GPU takes for its step.
generator = torch.Generator(device).manual_seed(1234)
truth = torch.randn(OUTPUTS, INPUTS, generator=generator, device=device) / INPUTS**0.5
for step in range(args.steps):
    inputs = torch.randn(ROWS, INPUTS, generator=generator, device=device)
    targets = inputs @ truth.T
    # no step makes it smaller than its noise: there is always something left to learn
    targets += 1e-4 * torch.randn(targets.shape, generator=generator, device=device)
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
