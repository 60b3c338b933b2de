"""A test's own technique: its act is loaded from a folder outside the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.driven import Driven, program

pytestmark = pytest.mark.torch

ACT = """
from .base import Act as _Base


class Act(_Base):
    name = "placebo"

    def after_step(self, step):
        self.seen = step

    def evidence(self):
        return {"steps": self.seen, "asked": self.settings}
"""


def test_an_act_from_a_folder_outside(tmp_path: Path) -> None:
    (tmp_path / "acts").mkdir()
    (tmp_path / "acts" / "placebo.py").write_text(ACT)
    techniques = [{"name": "placebo", "settings": {"a": 1}}, {"name": "fused_optimizer"}]
    with Driven(
        tmp_path, program("plain.py"), techniques=techniques, acts_dir=str(tmp_path / "acts")
    ) as driven:
        driven.advance(4)
        driven.stop()
    seen = {event["technique"]: event["evidence"] for event in driven.of("active")}
    assert seen["placebo"] == {"steps": 4, "asked": {"a": 1}}
    assert seen["fused_optimizer"]["optimizers"], "flatout's own are found as ever"


def test_without_the_folder_there_is_no_such_act(tmp_path: Path) -> None:
    with Driven(tmp_path, program("plain.py"), techniques=[{"name": "placebo"}]) as driven:
        driven.run_to_end()
    assert "placebo" in driven.err
