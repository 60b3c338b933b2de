"""Ways in which people write attention, and look-alikes that are something else.

Each form is a module whose forward takes x of shape (batch, length, width). ``FORMS`` maps a name to
(module factory, what the rewrite must make of it); ``LOOK_ALIKES`` to (factory, a word of the reason).
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 16
HEADS = 2
LENGTH = 8


class Base(nn.Module):
    """Projections and heads; ``attend(q, k, v)`` of shapes (B, H, T, D) is what differs."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)
        self.scale = (WIDTH // HEADS) ** -0.5
        mask = torch.tril(torch.ones(LENGTH, LENGTH))
        self.register_buffer("bias", mask.view(1, 1, LENGTH, LENGTH))
        self.register_buffer("tril", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(WIDTH, dim=2)
        )
        y = self.attend(q, k, v)
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, WIDTH))

    def attend(self, q, k, v):
        raise NotImplementedError


class NanoGpt(Base):
    def attend(self, q, k, v):
        length = q.size(2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        return self.drop(att) @ v


class InPlace(Base):
    def attend(self, q, k, v):
        length = q.size(2)
        att = torch.matmul(q, k.transpose(2, 3))
        att /= math.sqrt(k.size(-1))
        att.masked_fill_(self.bias[:, :, :length, :length].logical_not(), float("-inf"))
        return torch.matmul(att.softmax(-1), v)


class WhereBuilt(Base):
    def attend(self, q, k, v):
        length = q.size(-2)
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=q.device))
        scores = torch.where(mask, q @ k.mT * self.scale, torch.finfo(q.dtype).min)
        return torch.softmax(scores, dim=3) @ v


class TriuAdded(Base):
    def attend(self, q, k, v):
        length = q.size(-2)
        mask = torch.triu(torch.full((length, length), float("-inf"), device=q.device), diagonal=1)
        scores = torch.matmul(q, k.permute(0, 1, 3, 2)) / k.size(-1) ** 0.5 + mask
        return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(q), v)


class TriuBoolean(Base):
    def attend(self, q, k, v):
        length = q.size(-2)
        mask = torch.triu(torch.ones(length, length, device=q.device), diagonal=1).bool()
        scores = (q * self.scale) @ k.transpose(-1, -2)
        return F.softmax(scores.masked_fill(mask, -1e9), dim=-1, dtype=torch.float32).to(q.dtype) @ v


class Einsum(Base):
    def attend(self, q, k, v):
        length = q.size(-2)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
        scores = scores.masked_fill(~self.bias.bool()[:, :, :length, :length], float("-inf"))
        return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(dim=-1), v)


class EinsumLengthFirst(Base):
    """Queries of shape (B, T, H, D), as in many JAX ports."""

    def attend(self, q, k, v):
        length = q.size(-2)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.size(-1))
        rows = torch.arange(length, device=q.device)
        scores = scores.masked_fill(rows[None, :] > rows[:, None], float("-inf"))
        return torch.einsum("bhqk,bkhd->bqhd", self.drop(scores.softmax(dim=-1)), v).transpose(1, 2)


class Bmm(Base):
    def attend(self, q, k, v):
        batch, heads, length, size = q.shape
        q, k, v = (x.reshape(batch * heads, length, size) for x in (q, k, v))
        scores = torch.bmm(q, k.transpose(1, 2)) * self.scale
        scores = scores.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        return torch.bmm(F.softmax(scores, dim=-1), v).view(batch, heads, length, size)


class Baddbmm(Base):
    def attend(self, q, k, v):
        batch, heads, length, size = q.shape
        q, k, v = (x.reshape(batch * heads, length, size) for x in (q, k, v))
        empty = torch.empty(batch * heads, length, length, dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=self.scale)
        return torch.bmm(F.softmax(scores, dim=-1), v).view(batch, heads, length, size)


class NoMask(Base):
    def attend(self, q, k, v):
        return nn.functional.softmax((q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1)), dim=-1) @ v


class NoScale(Base):
    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def attend(self, q, k, v):
        return self.softmax(q @ k.transpose(-2, -1)) @ v


class TwoDotProduct(Base):
    """A scale by a constant tensor, and keys stored transposed."""

    def attend(self, q, k, v):
        length = q.size(-2)
        k = k.permute(0, 1, 3, 2).contiguous()
        scores = torch.matmul(q, k) / torch.sqrt(torch.tensor(float(q.size(-1))))
        scores = scores.masked_fill(self.tril[:length, :length] < 0.5, -math.inf)
        return self.drop(F.softmax(scores, -1)).matmul(v)


class Padding(Base):
    """A mask that depends on the input."""

    def forward(self, x):
        self.keep = (x[:, :, 0] > -1.0).index_fill(1, torch.tensor(0), True)[:, None, None, :]
        return super().forward(x)

    def attend(self, q, k, v):
        scores = (q @ k.transpose(-2, -1)) * self.scale
        return F.softmax(scores.masked_fill(self.keep == 0, float("-inf")), dim=-1) @ v


class CausalAndPadding(Padding):
    def attend(self, q, k, v):
        length = q.size(-2)
        scores = (q @ k.transpose(-2, -1)) * self.scale
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, -1e9)
        return F.softmax(scores.masked_fill(~self.keep, -1e9), dim=-1) @ v


class AddedDistance(Base):
    """ALiBi: a constant bias that is no mask."""

    def attend(self, q, k, v):
        rows = torch.arange(q.size(-2), device=q.device)
        distance = -(rows[:, None] - rows[None, :]).abs().to(q.dtype) * 0.5
        return F.softmax((q @ k.transpose(-2, -1)) * self.scale + distance, dim=-1) @ v


class Band(Base):
    """A sliding window: constant, and not the whole triangle."""

    def attend(self, q, k, v):
        rows = torch.arange(q.size(-2), device=q.device)
        away = rows[:, None] - rows[None, :]
        scores = (q @ k.transpose(-2, -1)) * self.scale
        return F.softmax(scores.masked_fill((away < 0) | (away > 3), float("-inf")), dim=-1) @ v


class FrozenParameter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.tril(torch.ones(LENGTH, LENGTH)), requires_grad=False)

    def attend(self, q, k, v):
        length = q.size(-2)
        scores = (q @ k.transpose(-2, -1)) * self.scale
        return F.softmax(scores.masked_fill(self.mask[:length, :length] == 0, float("-inf")), -1) @ v


class OneHead(nn.Module):
    """One head of width (B, T, C), as in the lectures that many start from."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(LENGTH, LENGTH)))
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        _, length, width = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * width**-0.5
        wei = wei.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        wei = self.drop(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


CAUSAL, MASKED, PLAIN = "is_causal=True", "attn_mask", "no mask"
FORMS = {
    "nanogpt": (NanoGpt, CAUSAL),
    "in_place": (InPlace, CAUSAL),
    "where_built": (WhereBuilt, CAUSAL),
    "triu_added": (TriuAdded, CAUSAL),
    "triu_boolean": (TriuBoolean, CAUSAL),
    "einsum": (Einsum, CAUSAL),
    "einsum_length_first": (EinsumLengthFirst, CAUSAL),
    "bmm": (Bmm, CAUSAL),
    "baddbmm": (Baddbmm, PLAIN),
    "no_mask": (NoMask, PLAIN),
    "no_scale": (NoScale, PLAIN),
    "keys_transposed": (TwoDotProduct, CAUSAL),
    "one_head": (OneHead, CAUSAL),
    "frozen_parameter": (FrozenParameter, CAUSAL),
    "padding": (Padding, MASKED),
    "causal_and_padding": (CausalAndPadding, MASKED),
    "added_distance": (AddedDistance, MASKED),
    "band": (Band, MASKED),
}


class StrictlyLower(Base):
    """Each position sees only those before it: another function, with one row that sees nothing."""

    def attend(self, q, k, v):
        length = q.size(-2)
        mask = torch.tril(torch.ones(length, length, device=q.device), diagonal=-1)
        mask[0, 0] = 1
        scores = (q @ k.transpose(-2, -1)) * self.scale
        return F.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1) @ v


class WeightsReturned(Base):
    def attend(self, q, k, v):
        att = F.softmax((q @ k.transpose(-2, -1)) * self.scale, dim=-1)
        return att @ v + att.mean()


class ScoresUsedTwice(Base):
    def attend(self, q, k, v):
        scores = (q @ k.transpose(-2, -1)) * self.scale
        return F.softmax(scores, dim=-1) @ v + scores.mean()


class OtherDimension(Base):
    def attend(self, q, k, v):
        return F.softmax((q @ k.transpose(-2, -1)) * self.scale, dim=-2) @ v


class ScaleAfterSoftmax(Base):
    def attend(self, q, k, v):
        return (F.softmax(q @ k.transpose(-2, -1), dim=-1) * self.scale) @ v


class LearnedTemperature(Base):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def attend(self, q, k, v):
        return F.softmax((q @ k.transpose(-2, -1)) * self.temperature, dim=-1) @ v


class WeakFill(Base):
    """A fill of -1 lowers masked scores and removes none."""

    def attend(self, q, k, v):
        length = q.size(-2)
        scores = (q @ k.transpose(-2, -1)) * self.scale
        return F.softmax(scores.masked_fill(self.bias[:, :, :length, :length] == 0, -1.0), dim=-1) @ v


class Talking(Base):
    """Weights mixed over the heads after softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.eye(HEADS))

    def attend(self, q, k, v):
        weights = F.softmax((q @ k.transpose(-2, -1)) * self.scale, dim=-1)
        return torch.einsum("bhqk,hg->bgqk", weights, self.mix) @ v


class TrainedBias(Base):
    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Parameter(torch.zeros(LENGTH, LENGTH))

    def attend(self, q, k, v):
        length = q.size(-2)
        scores = (q @ k.transpose(-2, -1)) * self.scale + self.relative[:length, :length]
        return F.softmax(scores, dim=-1) @ v


class ScoresDropped(Base):
    """Dropout on the scores, not on the weights."""

    def attend(self, q, k, v):
        return F.softmax(F.dropout((q @ k.transpose(-2, -1)) * self.scale, 0.1), dim=-1) @ v


LOOK_ALIKES = {
    "weights_returned": (WeightsReturned, "used 2 times"),
    "scores_used_twice": (ScoresUsedTwice, "used elsewhere"),
    "other_dimension": (OtherDimension, "dimension"),
    "scale_after_softmax": (ScaleAfterSoftmax, "followed by mul"),
    "learned_temperature": (LearnedTemperature, "not a constant"),
    "weak_fill": (WeakFill, "-1.0"),
    "talking_heads": (Talking, "einsum"),
    "trained_bias": (TrainedBias, "trained"),
    "scores_dropped": (ScoresDropped, "dropout"),
}
