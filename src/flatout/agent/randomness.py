"""No dropout, for the gradient probe alone: with it, two right answers would differ."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)

INDUCTOR_CONFIG = "torch._inductor.config"
"""Watched for: the compiler draws random numbers as eager does, once this is imported."""


def switch_off(torch: Any) -> None:
    """Every dropout of torch's lets its input through."""
    functional = torch.nn.functional
    for name in _DROPOUTS:
        original = getattr(functional, name, None)
        if original is not None:
            setattr(functional, name, _without(original))
    torch.dropout = _without_positional(torch.dropout)
    attention = functional.scaled_dot_product_attention

    @functools.wraps(attention)
    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    functional.scaled_dot_product_attention = scaled_dot_product_attention
    for kind in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
        kind.forward = _without_recurrent_dropout(kind.forward)


def _without(original: Any) -> Any:
    @functools.wraps(original)
    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        return original(input, p, False, inplace)

    return dropout


def _without_positional(original: Any) -> Any:
    def dropout(input: Any, p: float, train: bool) -> Any:  # noqa: A002
        return original(input, p, False)

    return dropout


def _without_recurrent_dropout(original: Any) -> Any:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.dropout:
            self.dropout = 0.0
        return original(self, *args, **kwargs)

    return forward
