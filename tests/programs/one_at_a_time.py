"""Memory for one process only, played: a second one that trains beside it runs out of memory.

A name in the abstract socket namespace stands for the memory; it is given back when its holder ends.
"""

from __future__ import annotations

import argparse
import socket

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--name", required=True)
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
memory = socket.socket(socket.AF_UNIX)
for step in range(args.steps):
    if step == 2:
        try:
            memory.bind(f"\0{args.name}")
        except OSError:
            raise RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes. "
                "Error code 12 (Cannot allocate memory)"
            ) from None
    loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
