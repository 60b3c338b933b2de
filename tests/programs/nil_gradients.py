"""Parameters whose true gradient is nil: a key's bias, biases before a norm, one that nothing uses."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {
    # layers, width, length, rows
    "small": (2, 32, 16, 8),
    "real": (4, 256, 128, 16),
    "large": (6, 768, 512, 16),
}
CLASSES = 8

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--size", choices=SIZES, default="small")
args = parser.parse_args()
LAYERS, WIDTH, LENGTH, ROWS = SIZES[args.size]
HEADS = 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.widen = nn.Linear(WIDTH, 2 * WIDTH)  # its bias stands before a BatchNorm
        self.batch_norm = nn.BatchNorm1d(2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            one(x).view(rows, length, HEADS, width // HEADS).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        # softmax does not see what is added to all keys alike
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, width)
        wide = self.batch_norm(self.widen(x).reshape(rows * length, -1)).relu()
        return self.norm(x + self.narrow(wide).reshape(rows, length, width))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(1))


torch.manual_seed(args.seed)
device = torch.device(args.device)
model = Net().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1234)
looks = torch.randn(CLASSES, 1, WIDTH, generator=generator)
for step in range(args.steps):
    targets = torch.randint(CLASSES, (ROWS,), generator=generator)
    inputs = looks[targets] + torch.randn(ROWS, LENGTH, WIDTH, generator=generator)
    loss = F.cross_entropy(model(inputs.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
