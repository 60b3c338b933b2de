"""An optimiser whose step raises now and then, and a program that fails in the end."""

from __future__ import annotations

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 2)


class Moody(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        Moody.calls += 1
        if Moody.calls == 3:
            raise ValueError("not today")
        return super().step(closure)


optimizer = Moody(model.parameters(), lr=0.1)
for number in range(12):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    try:
        optimizer.step()
    except ValueError:
        print("left out", flush=True)
    print(number, repr(loss.item()), flush=True)
raise RuntimeError("no more data")
