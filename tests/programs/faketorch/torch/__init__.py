"""Stands in for a torch that is too old for flatout's agent: put this folder's parent on PYTHONPATH."""

from __future__ import annotations

from .version import __version__ as __version__
