"""A plain loop whose loss is odd in one way, ``--how``.

``nan`` from the first step on; ``constant``, with gradients of nothing but zeros; ``huge``, beyond what
FP16 holds.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=("nan", "constant", "huge"), default="nan")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    if args.how == "nan":
        loss = loss * math.nan
    elif args.how == "constant":
        loss = loss * 0.0 + 2.5
    else:
        loss = loss * 1e6
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
