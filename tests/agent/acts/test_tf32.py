"""The tf32 act: the precision is set, kept, and given up where the program insists."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flatout.agent.acts import tf32  # noqa: E402
from flatout.agent.refused import Refused  # noqa: E402

from .fakes import make_acts  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def act():
    before = torch.get_float32_matmul_precision()
    _, (act,) = make_acts(tf32.Act)
    yield act
    torch.set_float32_matmul_precision(before)


def test_it_is_set_at_once_and_seen_at_the_steps(act):
    assert torch.get_float32_matmul_precision() == "high"
    for step in range(1, 200):
        act.after_step(step)
    evidence = act.evidence()
    assert evidence["precision"] == "high" and evidence["before"] == "highest"
    assert evidence["seen_at_steps"] == {"high": 5 + 3} and not evidence["resets"]


def test_the_legacy_flags_stay_readable(act):
    assert torch.backends.cuda.matmul.allow_tf32 is True


def test_a_program_that_sets_it_once_is_set_right(act):
    torch.set_float32_matmul_precision("highest")
    act.after_step(1)
    assert torch.get_float32_matmul_precision() == "high"
    assert act.evidence()["resets"] == ["step 1: highest"]


def test_a_program_that_keeps_setting_it_is_refused(act):
    with pytest.raises(Refused, match="3 times by step 3"):
        for step in range(1, 4):
            torch.set_float32_matmul_precision("highest")
            act.after_step(step)


def test_medium_is_left(act):
    torch.set_float32_matmul_precision("medium")
    act.after_step(1)
    assert torch.get_float32_matmul_precision() == "medium" and not act.evidence()["resets"]
