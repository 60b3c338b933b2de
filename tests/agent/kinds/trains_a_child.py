"""A program that trains another model in a process of its own first, as some do for a tokenizer."""

from __future__ import annotations

import subprocess
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(3 if len(sys.argv) > 1 else 12):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(sys.argv[1:], number, repr(loss.item()), flush=True)
    if number == 3:
        subprocess.run([sys.executable, __file__, "child"], check=True)
