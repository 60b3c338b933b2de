"""A small GPT, trained the plain way: what a first version of a training script looks like.

Nothing here is tuned: 32-bit floats throughout, attention written out by hand, the optimiser as torch
builds it by default, every operator run on its own. ``flatout train`` is tried on it by scripts/demo:

    python examples/naive_gpt/train.py --steps 200
    flatout train -- python examples/naive_gpt/train.py

Data are made on the fly (sums written out as text, "27+35=62"), so no file and no network is needed.
Needs torch and nothing else.
"""

import argparse
import math
import random
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

ALPHABET = "0123456789+= "


class Sums(Dataset):
    """Endless additions in one long text; an item is a window of it and the same window one further on."""

    def __init__(self, items: int, context: int, seed: int) -> None:
        draw = random.Random(seed)
        text = ""
        pieces = []
        length = 0
        while length < items + context + 1:
            a, b = draw.randrange(100), draw.randrange(100)
            text = f"{a}+{b}={a + b} "
            pieces.append(text)
            length += len(text)
        self.tokens = torch.tensor([ALPHABET.index(letter) for letter in "".join(pieces)])
        self.items = items
        self.context = context

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.tokens[index : index + self.context + 1]
        return window[:-1], window[1:]


class Attention(nn.Module):
    """Causal self-attention, step by step as a textbook writes it."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(context, context)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.query_key_value(x).split(width, dim=2)
        q = q.view(batch, length, self.heads, -1).transpose(1, 2)
        k = k.view(batch, length, self.heads, -1).transpose(1, 2)
        v = v.view(batch, length, self.heads, -1).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        y = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out(y)


class Gelu(nn.Module):
    """The tanh form of GELU, written out: eight operators where one would do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, context)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), Gelu(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(len(ALPHABET), width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, context) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET), bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on additions.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, help="windows a step (GPU 16, CPU 2)")
    parser.add_argument("--context", type=int, help="characters a window (GPU 1024, CPU 512)")
    parser.add_argument("--layers", type=int, help="GPU 12, CPU 2")
    parser.add_argument("--width", type=int, help="GPU 768, CPU 64")
    parser.add_argument("--heads", type=int, help="GPU 12, CPU 4")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--checkpoint", type=Path, default=Path(__file__).parent / "out" / "checkpoint.pt")
    args = parser.parse_args()
    on_gpu = args.device.startswith("cuda")
    batch_size = args.batch_size or (16 if on_gpu else 2)
    context = args.context or (1024 if on_gpu else 512)

    torch.manual_seed(args.seed)
    model = Gpt(
        layers=args.layers or (12 if on_gpu else 2),
        width=args.width or (768 if on_gpu else 64),
        heads=args.heads or (12 if on_gpu else 4),
        context=context,
    ).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    sums = Sums(100_000, context, args.seed)
    data = DataLoader(sums, batch_size=batch_size, shuffle=True, drop_last=True)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"{parameters:.1f} M parameters, {batch_size} x {context} characters a step, on {args.device}")

    step = 0
    started = time.perf_counter()
    while step < args.steps:
        for batch in data:
            inputs, targets = (part.to(args.device) for part in batch)
            logits = model(inputs)
            loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                milliseconds = 1e3 * (time.perf_counter() - started) / 50
                print(f"step {step}: loss {loss.item():.4f}, {milliseconds:.1f} ms a step", flush=True)
                started = time.perf_counter()
            if step % args.save_every == 0:
                save(args.checkpoint, step, model, optimizer)
            if step >= args.steps:
                break
    save(args.checkpoint, step, model, optimizer)


if __name__ == "__main__":
    main()
