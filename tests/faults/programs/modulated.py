"""Chained LayerNorms modulated by slices of one shared table, as diffusion transformers have them."""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {
    # layers, width, tokens, rows
    "small": (2, 32, 16, 4),
    "real": (4, 256, 256, 4),
    "large": (2, 1024, 32768, 1),
}

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--size", choices=SIZES, default="small")
parser.add_argument(
    "--check",
    action="store_true",
    help="no training: the relative error of the tables' gradients under torch.compile, as JSON",
)
args = parser.parse_args()
LAYERS, WIDTH, LENGTH, ROWS = SIZES[args.size]


class Modulated(nn.Module):
    """A norm without weights of its own; scale and shift come from outside."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,)) * (1 + scale) + shift


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 4, WIDTH) / WIDTH**0.5)
        self.first, self.second = Modulated(), Modulated()
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale1, shift1, scale2, shift2 = self.table.chunk(4, dim=1)
        x = x + self.first(x, scale1, shift1)
        x = x + self.second(x, scale2, shift2)
        return x + self.mlp(x)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(x))


torch.manual_seed(args.seed)
device = torch.device(args.device)
model = Denoiser().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator(device).manual_seed(1234)
mixing = torch.randn(WIDTH, WIDTH, generator=generator, device=device) / WIDTH**0.5


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """(noisy, clean)."""
    clean = torch.randn(ROWS, LENGTH, WIDTH, generator=generator, device=device) @ mixing
    return clean + 0.3 * torch.randn(clean.shape, generator=generator, device=device), clean


def worst_error() -> float:
    """Of the tables' gradients under torch.compile against those without, relative, over three batches."""
    worst = 0.0
    compiled = torch.compile(model)
    for _ in range(3):
        noisy, clean = batch()
        gradients = []
        for call in (model, compiled):
            model.zero_grad()
            F.mse_loss(call(noisy), clean).backward()
            gradients.append([block.table.grad.clone() for block in model.blocks])
        for plain, ours in zip(*gradients, strict=True):
            worst = max(worst, float((plain - ours).norm() / plain.norm()))
    return worst


if args.check:
    print(json.dumps({"torch": torch.__version__, "worst_relative_error": worst_error()}))
    raise SystemExit
for step in range(args.steps):
    noisy, clean = batch()
    loss = F.mse_loss(model(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
