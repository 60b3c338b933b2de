"""Trains one model after another, as in a cross-validation, and lets go of each."""

from __future__ import annotations

import gc
import weakref

import torch


def fold(number: int) -> tuple[weakref.ref[torch.nn.Module], weakref.ref[torch.optim.Optimizer]]:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = set()
    model[0].register_forward_hook(lambda _module, _args, out: seen.add(str(out.dtype)))
    for _ in range(4):
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(number, *seen, optimizer.param_groups[0].get("fused"), flush=True)
    return weakref.ref(model), weakref.ref(optimizer)


left = [fold(number) for number in range(3)]
gc.collect()
print("left", sum(reference() is not None for pair in left for reference in pair))
