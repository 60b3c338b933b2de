"""Houses, and which ways of isolation this machine allows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout.errors import IsolationError
from flatout.isolation import Way

from .house import House


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def way_or_skip(house: House, name: str) -> Way:
    try:
        return house.way(name)
    except IsolationError as error:
        pytest.skip(error.message)


@pytest.fixture(params=["overlay as root", "overlay as user", "landlock", "redirect"])
def way(house: House, request: pytest.FixtureRequest) -> Way:
    """Each way that works here, the user namespace tried by root, too."""
    name, _, shape = request.param.partition(" as ")
    found = way_or_skip(house, name)
    if shape == "root" and not found.whole:
        pytest.skip("an overlay without a user namespace needs root")
    if shape == "user" and found.whole:
        from dataclasses import replace

        if os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split()[2] == "1":
            pytest.skip("already in a user namespace that maps one user")
        found = replace(found, whole=False)
    return found
