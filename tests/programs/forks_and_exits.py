"""Forks, lets its first process leave, and trains on in a session of its own, as a daemon does."""

from __future__ import annotations

import os
import sys

if os.fork() > 0:
    sys.exit(0)
os.setsid()
if os.fork() > 0:
    os._exit(0)

import torch  # noqa: E402
from torch import nn  # noqa: E402

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
