"""Seeds for a program that a search runs many times. With no seed nothing at all is touched.

Each generator is seeded once, right after its library's import, so that a program which seeds itself
still wins. Ranks get different seeds, as they would have had without us.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def seed_module(name: str, module: Any, seed: int) -> None:
    """Seed ``random``, ``numpy`` or ``torch``."""
    if name == "random":
        module.seed(seed)
    elif name == "numpy":
        module.random.seed(seed % 2**32)
    elif name == "torch":
        module.manual_seed(seed)
