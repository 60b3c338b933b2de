"""Writes a large file at every step, and never stops."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--gigabytes", type=int, default=3, help="written at every step")
args = parser.parse_args()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    with Path(f"dump-{step}.bin").open("wb") as file:
        file.write(b"weights")
        os.posix_fallocate(file.fileno(), 0, args.gigabytes << 30)  # takes the space at once
