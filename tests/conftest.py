"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _environment_is_given_back() -> Iterator[None]:
    """torch's compiler, run inside a test, sets variables that programs started by a later test would
    inherit (TORCHINDUCTOR_CACHE_DIR)."""
    before = dict(os.environ)
    yield
    # pytest's own PYTEST_CURRENT_TEST comes and goes around this
    for name in set(os.environ) - set(before) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    for name, value in before.items():
        if name != "PYTEST_CURRENT_TEST" and os.environ.get(name) != value:
            os.environ[name] = value
