"""Fails before it imports torch, as a script with a missing package does."""

from __future__ import annotations

import a_package_that_is_not_installed  # noqa: F401
