"""Trains a little, then waits for ever."""

from __future__ import annotations

import argparse
import threading

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--after", type=int, default=3, help="steps before it hangs")
args = parser.parse_args()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(args.after):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
threading.Event().wait()
