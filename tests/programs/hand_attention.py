"""A small causal language model whose attention is written by hand, with a registered mask buffer."""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn

VOCABULARY, LENGTH, WIDTH, HEADS = 64, 32, 32, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, HEADS, width // HEADS)
        query, key, value = (t.view(heads).transpose(1, 2) for t in self.qkv(x).split(width, dim=2))
        scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(width // HEADS))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = nn.functional.softmax(scores, dim=-1) @ value
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(tokens)
        for norm, attention in zip(self.norms, self.attention):  # noqa: B905  (Python 3.9 has no strict)
            x = x + attention(norm(x))
        logits = self.head(x)
        return logits, nn.functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    tokens = torch.randint(0, VOCABULARY, (4, LENGTH + 1))
    _, loss = model(tokens[:, :-1], tokens[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), flush=True)
