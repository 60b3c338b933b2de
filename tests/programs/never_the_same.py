"""Not the same twice under any seed: ``--how urandom`` draws from the system, ``threads`` from a race."""

from __future__ import annotations

import argparse
import os
import threading
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=("urandom", "threads"), default="urandom")
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def from_the_system() -> torch.Tensor:
    drawn = torch.frombuffer(bytearray(os.urandom(8 * 16)), dtype=torch.uint8)
    return (drawn.float() / 127.5 - 1.0).reshape(8, 16)


def from_a_race() -> torch.Tensor:
    """Two threads draw from one generator, and the clock says which of them is first."""
    rows: list[torch.Tensor] = []

    def draw() -> None:
        for _ in range(4):
            row = torch.randn(16)
            rows.append(row if time.perf_counter_ns() % 2 else -row)

    threads = [threading.Thread(target=draw) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return torch.stack(rows)


torch.manual_seed(args.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    inputs = from_the_system() if args.how == "urandom" else from_a_race()
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
