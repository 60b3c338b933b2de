"""A fast step behind a slow loader: ``--kind`` says who prefetches while the program computes.

``workers`` and ``iterable`` are a DataLoader's workers, ``persistent`` those that outlive an epoch,
``thread`` is a thread of the program's own and ``process`` a process of its own, each with a queue.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("--kind", default="workers")
parser.add_argument("--seconds", type=float, default=0.02)
parser.add_argument("--workers", type=int, default=1)
parser.add_argument("--depth", type=int, default=8)
parser.add_argument("--length", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def made(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    time.sleep(args.seconds)
    drawn = torch.Generator().manual_seed(number)
    return torch.randn(8, 16, generator=drawn), torch.randint(0, 4, (8,), generator=drawn)


class Numbered(Dataset):
    def __len__(self) -> int:
        return args.length

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return made(number)


class Streamed(IterableDataset):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(args.length):
            yield made(number)


def fill(full: Any) -> None:
    for number in range(args.length):
        full.put([part.numpy() for part in made(number)])


def queued(full: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        inputs, targets = full.get()
        yield torch.from_numpy(inputs), torch.from_numpy(targets)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if args.kind == "thread":
        full: Any = queue.Queue(args.depth)
        threading.Thread(target=fill, args=(full,), daemon=True).start()
        yield from queued(full)
    elif args.kind == "process":
        full = multiprocessing.get_context("fork").Queue(args.depth)
        multiprocessing.get_context("fork").Process(target=fill, args=(full,), daemon=True).start()
        yield from queued(full)
    else:
        loader = DataLoader(
            Streamed() if args.kind == "iterable" else Numbered(),
            batch_size=None,
            num_workers=args.workers,
            prefetch_factor=args.depth,
            persistent_workers=args.kind == "persistent",
        )
        while True:
            yield from loader


if __name__ == "__main__":
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (inputs, targets) in enumerate(batches()):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, repr(loss.item()), flush=True)
