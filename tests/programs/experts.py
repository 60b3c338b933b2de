"""A mixture of experts: each token goes to one of many, and some get none in a step, so no gradient."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {
    # layers, experts, width, tokens
    "small": (2, 8, 32, 24),
    # many with few tokens: one that goes to another expert shows
    "crowded": (4, 32, 48, 1024),
    "real": (3, 16, 256, 512),
    "large": (6, 32, 768, 8192),
}

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--size", choices=SIZES, default="small")
args = parser.parse_args()
LAYERS, EXPERTS, WIDTH, TOKENS = SIZES[args.size]


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(x)
        # as mixtures are trained: the choice itself is made in float32
        with torch.autocast(x.device.type, enabled=False):
            chances = F.linear(seen.float(), self.router.weight.float()).softmax(-1)
        weight, choice = chances.max(-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            places = (choice == number).nonzero().squeeze(-1)
            if len(places):
                out = expert(seen[places]) * weight[places, None]
                mixed = mixed.index_add(0, places, out.to(mixed.dtype))
        return x + mixed


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Experts() for _ in range(LAYERS)))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x))


torch.manual_seed(args.seed)
device = torch.device(args.device)
model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1234)
mixing = torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
kinds = 2.0 * torch.randn(EXPERTS, WIDTH, generator=generator)
# experts are wanted unequally: the rare ones in few steps only
odds = 0.5 ** torch.arange(EXPERTS)
if args.size == "crowded":
    odds = odds.clamp(min=0.003)
for step in range(args.steps):
    kind = torch.multinomial(odds, TOKENS, replacement=True, generator=generator)
    inputs = kinds[kind] + torch.randn(TOKENS, WIDTH, generator=generator)
    targets = (inputs @ mixing).relu()
    loss = F.mse_loss(model(inputs.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
