"""GradScaler with unscale and clip, as in half-precision recipes. Some steps are skipped by the scaler.

``--off``: as scripts have it that take mixed precision as an option.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--off", action="store_true")
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
# A scale near float32's limit overflows at first: the scaler skips those steps and backs off.
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000, enabled=not args.off)
for step in range(args.steps):
    inputs = torch.randn(8, 16)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, repr(loss.item()), flush=True)
