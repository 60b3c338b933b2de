"""DataLoader workers that themselves run a backward, to make a sample."""

from __future__ import annotations

import sys

import torch


class Samples(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        probe = torch.ones(8, requires_grad=True)
        (probe.sum() * index).backward()
        return probe.grad / 64


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.Dropout(0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(
        Samples(), batch_size=8, num_workers=2, multiprocessing_context=sys.argv[1]
    )
    for _ in range(2):
        for batch in loader:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(repr(loss.item()), flush=True)
