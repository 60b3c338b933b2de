"""Needs more memory than it may have: a limit on its address space stands in for a small machine."""

from __future__ import annotations

import argparse
import os
import resource
import signal
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--killed", action="store_true", help="end by SIGKILL, as the kernel's killer does it")
args = parser.parse_args()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), used + (512 << 20)))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(100_000):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    if args.killed and len(kept) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    kept.append(torch.ones(32 << 20))
