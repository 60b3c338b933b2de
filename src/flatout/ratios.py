"""Ratios of speeds as text, one way everywhere: ``1.034x`` near one, ``2.31x`` from 1.2 on, ``120x``."""

from __future__ import annotations


def times(ratio: float) -> str:
    """A ratio: ``2.31x``."""
    return f"{_number(ratio, _digits(ratio))}x"


def bounded(ratio: float, low: float, high: float) -> str:
    """With its bounds in as many digits: ``2.31x [2.28, 2.35]``."""
    digits = _digits(ratio)
    return f"{_number(ratio, digits)}x [{_number(low, digits)}, {_number(high, digits)}]"


def _digits(ratio: float) -> int:
    return 3 if ratio < 1.2 else 2 if ratio < 99.5 else 0


def _number(ratio: float, digits: int) -> str:
    return f"{ratio:.{digits}f}"
