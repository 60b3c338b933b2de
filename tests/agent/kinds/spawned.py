"""Two ranks, spawned by the program itself."""

from __future__ import annotations

import sys

import torch
import torch.multiprocessing


def train(rank: int, store: str) -> None:
    torch.manual_seed(rank)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(number, repr(loss.item()), flush=True)


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (sys.argv[1],), nprocs=2)
