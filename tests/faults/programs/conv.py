"""A small residual network with BatchNorm, SGD with momentum, gradients clipped in every step."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {
    # blocks, channels, pixels, rows
    "small": (2, 8, 12, 16),
    "real": (6, 32, 32, 32),
    "large": (8, 256, 56, 64),
}
CLASSES = 10

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--size", choices=SIZES, default="small")
args = parser.parse_args()
BLOCKS, CHANNELS, PIXELS, ROWS = SIZES[args.size]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)  # its bias stands before a norm
        self.norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.conv(x)).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1, stride=2)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


torch.manual_seed(args.seed)
device = torch.device(args.device)
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
generator = torch.Generator().manual_seed(1234)
labels = torch.randint(CLASSES, (16 * ROWS,), generator=generator)
looks = torch.randn(CLASSES, 3, PIXELS, PIXELS, generator=generator)
images = looks[labels] + torch.randn(len(labels), 3, PIXELS, PIXELS, generator=generator)
for step in range(args.steps):
    place = step % 16 * ROWS
    inputs, targets = images[place : place + ROWS].to(device), labels[place : place + ROWS].to(device)
    loss = F.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
