"""Trains, and saves then resumes its own checkpoint in a plain model: the keys must be the script's own.

A plain ``load_state_dict`` is strict: a key that begins with ``_orig_mod.`` makes it raise.
"""

from __future__ import annotations

import argparse
import io

import torch
from torch import nn


def fresh() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)
model = fresh()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
    if step % 10 == 3:
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file)
        assert type(model) is nn.Sequential, type(model)
        fresh().load_state_dict(saved["model"])
        print("resume ok", sorted(saved["model"]), flush=True)
