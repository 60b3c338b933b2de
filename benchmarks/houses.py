"""The end-to-end tests' house (tests/end_to_end/harness.py), with flatout run from this checkout."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from searching import START

TESTS = Path(__file__).resolve().parents[1] / "tests"
PROGRAMS = TESTS / "programs"

_spec = importlib.util.spec_from_file_location("harness", TESTS / "end_to_end" / "harness.py")
assert _spec is not None and _spec.loader is not None
harness = importlib.util.module_from_spec(_spec)
sys.modules["harness"] = harness
_spec.loader.exec_module(harness)


class CheckoutHouse(harness.House):
    """A house whose flatout is this checkout's, installed or not."""

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", START, *words]
