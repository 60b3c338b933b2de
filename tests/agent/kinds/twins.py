"""Two critics and their targets, four networks of one shape, each critic with an optimiser of its own."""

from __future__ import annotations

import copy

import torch

torch.manual_seed(0)
critics = [
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)) for _ in "ab"
]
targets = [copy.deepcopy(critic).requires_grad_(False) for critic in critics]
optimizers = [torch.optim.AdamW(critic.parameters(), lr=1e-2) for critic in critics]

for number in range(40):
    x = torch.randn(32, 8)
    with torch.no_grad():
        wanted = torch.stack([target(x) for target in targets]).amin(0) * 0.9 + x[:, :1]
    for critic, optimizer in zip(critics, optimizers, strict=True):
        optimizer.zero_grad()
        loss = (critic(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        print(number, repr(loss.item()), flush=True)
    with torch.no_grad():
        for critic, target in zip(critics, targets, strict=True):
            for mine, theirs in zip(critic.parameters(), target.parameters(), strict=True):
                theirs.lerp_(mine, 0.1)
