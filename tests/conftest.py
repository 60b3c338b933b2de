"""What holds for every test."""

from __future__ import annotations

import os

import pytest

_COMPILERS_OWN = [
    name for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR") if name not in os.environ
]


@pytest.fixture(autouse=True)
def _compiler_keeps_its_folders_to_itself() -> None:
    """torch's compiler, run in one test's process, sets variables that programs started by a later test
    would inherit."""
    for name in _COMPILERS_OWN:
        os.environ.pop(name, None)
