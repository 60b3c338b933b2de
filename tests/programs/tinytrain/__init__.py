"""A package that trains: ``python -m tinytrain``, or its console script."""

from __future__ import annotations
