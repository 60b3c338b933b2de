"""Data-parallel training on the CPU (gloo), for ``torchrun --nproc_per_node=2 ddp.py``.

With ``--bucket-mb 0.001`` every layer's gradients travel in a bucket of their own while backward goes on.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--bucket-mb", type=float, default=25.0)
parser.add_argument("--layers", type=int, default=1)
parser.add_argument("--slow-rank", type=int, default=-1)
parser.add_argument("--fail-when", default="", help="rank 1 raises once this file is there")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(args.seed)
hidden = [layer for _ in range(args.layers) for layer in (nn.Linear(32, 32), nn.GELU())][2:]
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.GELU(), *hidden, nn.Linear(32, 4)), bucket_cap_mb=args.bucket_mb
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(args.seed + rank)
for step in range(args.steps):
    inputs = torch.randn(8, 16)
    targets = torch.randint(0, 4, (8,))
    if rank == args.slow_rank:
        time.sleep(0.02)
    if rank == 1 and args.fail_when and Path(args.fail_when).exists():
        raise ValueError(f"rank 1 found {args.fail_when} at its step {step}")
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(step, repr(loss.item()), flush=True)
dist.destroy_process_group()
