"""An optimiser subclass whose ``step`` calls ``super().step()``: step hooks fire twice a step."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn


class WarmAdam(torch.optim.Adam):
    """Adam with a linear warm-up over its first steps."""

    taken = 0

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        self.taken += 1
        for group in self.param_groups:
            group["lr"] = 1e-3 * min(1.0, self.taken / 20)
        return super().step(closure)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 4))
optimizer = WarmAdam(model.parameters())
for step in range(args.steps):
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
