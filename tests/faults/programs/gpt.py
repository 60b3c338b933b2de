"""A small GPT: tied embeddings, hand-written causal attention, dropout, accumulation over unequal counts.

The loss of a step is the mean over all of its counted tokens, whatever micro-batch they are in.
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {
    # layers, width, heads, vocabulary, length, rows of a micro-batch
    "small": (2, 32, 2, 64, 16, 4),
    "medium": (2, 64, 4, 128, 64, 16),
    "real": (4, 256, 4, 4096, 128, 8),
    "large": (12, 768, 12, 50304, 1024, 8),
}

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--device", default="cpu")
parser.add_argument("--size", choices=SIZES, default="small")
parser.add_argument("--micro-batches", type=int, default=2)
args = parser.parse_args()
LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, ROWS = SIZES[args.size]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / (width // HEADS) ** 0.5
        scores = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        mixed = self.dropout(scores.softmax(-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(
        self, tokens: torch.Tensor, targets: torch.Tensor, counted: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, loss); ``counted``: tokens with a target in all micro-batches of the step."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        flat = logits.reshape(-1, logits.shape[-1])
        loss = F.cross_entropy(flat, targets.reshape(-1), ignore_index=-1, reduction="sum")
        return logits, loss / counted


def batches():
    """Endless (tokens, targets): a noisy walk over the vocabulary, rows of unequal length."""
    generator = torch.Generator().manual_seed(1234)
    rows = 64 * ROWS
    walk = torch.randint(1, 4, (rows, LENGTH + 1), generator=generator).cumsum(1)
    walk = (walk + torch.randint(VOCABULARY, (rows, 1), generator=generator)) % VOCABULARY
    tokens, targets = walk[:, :-1], walk[:, 1:].clone()
    lengths = torch.randint(LENGTH // 4, LENGTH + 1, (rows, 1), generator=generator)
    targets[torch.arange(LENGTH)[None, :] >= lengths] = -1
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens, targets), batch_size=ROWS)
    while True:
        yield from loader


torch.manual_seed(args.seed)
device = torch.device(args.device)
model = GPT().to(device)
decayed = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
    lr=1e-3,
    betas=(0.9, 0.95),
)
source = batches()
for step in range(args.steps):
    micro_batches = list(itertools.islice(source, args.micro_batches))
    counted = torch.stack([(targets != -1).sum() for _, targets in micro_batches]).sum().to(device)
    total = 0.0
    for tokens, targets in micro_batches:
        _, loss = model(tokens.to(device), targets.to(device), counted)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    print(step, repr(float(total)), flush=True)
