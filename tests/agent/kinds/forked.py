"""The training runs in a child made by fork; the parent only waits."""

from __future__ import annotations

import multiprocessing

import torch


def train() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(number, repr(loss.item()), flush=True)


if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
