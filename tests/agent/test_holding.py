"""Holding, stopping, profiling, seeding, and what the agent costs."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from .driven import PYTHON, Driven, program

pytestmark = pytest.mark.torch


def test_it_holds_at_the_granted_step_and_tells_what_it_saw(tmp_path: Path) -> None:
    with Driven(tmp_path, program("plain.py")) as driven:
        driven.advance(4)
        time.sleep(0.3)
        assert driven.control.steps_of(0) == 4
        block = driven.advance(6)
        assert (block["first_step"], block["steps"]) == (5, 6)
        assert block["step_seconds"][0] is None
        assert all(seconds > 0 for seconds in block["step_seconds"][1:])
        assert [step for step, _ in block["losses"]] == [5, 6, 7, 8, 9, 10]
        # the time of a step is the program's: the pause before it is nowhere in it
        assert block["wall_seconds"] < 0.3
        assert driven.stop() == 0
    assert driven.of("end") == [{"event": "end", "reason": "stopped by flatout", "steps": 10}]
    assert len(driven.out.splitlines()) == 9  # the tenth loss is printed after the step that held


def test_the_agent_costs_little_of_a_step(tmp_path: Path) -> None:
    with Driven(tmp_path, program("plain.py")) as driven:
        driven.advance(8)
        costs = [driven.advance(20)["agent_seconds"] / 20 for _ in range(10)]
        driven.stop()
    assert statistics.median(costs) < 0.2e-3


def test_one_step_is_profiled_on_command(tmp_path: Path) -> None:
    with Driven(tmp_path, program("hand_attention.py")) as driven:
        driven.advance(4)
        profile = driven.profile()
        driven.advance(2)
        assert len(driven.of("profile")) == 1
        driven.stop()
    names = {name for name, _, _ in profile["operators"]}
    assert {"aten::bmm", "aten::_softmax"} <= names
    assert 0 < profile["device_busy_seconds"] <= profile["wall_seconds"]
    assert profile["kernel_count"] >= len(profile["kernels"]) > 0


def test_a_seed_reaches_the_three_generators_and_none_is_touched_without(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(
        "import random, numpy\nfirst = random.random(), numpy.random.rand()\n"
        "import torch\nprint(first, torch.rand(1).item())\n"
    )
    outs = []
    for place, seed in enumerate((7, 7, 8, None, None)):
        folder = tmp_path / str(place)
        folder.mkdir()
        with Driven(folder, [PYTHON, str(tmp_path / "draws.py")], seed=seed) as driven:
            assert driven.wait() == 0
        outs.append(driven.out)
    assert outs[0] == outs[1]
    assert len(set(outs)) == 4


def test_a_real_run_is_never_held_and_watches_for_a_loss_that_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(
        "import torch\nm = torch.nn.Linear(2, 2)\nfrozen = torch.nn.Parameter(torch.ones(2))\n"
        "o = torch.optim.SGD([*m.parameters(), frozen], lr=0.1)\n"
        "for i in range(2000):\n"
        "    x = torch.randn(4, 2) * (float('nan') if i > 400 else 1)\n"
        "    loss = (m(x) + 0 * frozen).square().mean()\n"
        "    o.zero_grad(); loss.backward(); o.step()\n"
        "import gc\n"
        "(block,) = [x for x in gc.get_objects() if type(x).__name__ == 'Block']\n"
        "print('kept', len(block.ends), len(block.waits), len(block.losses), len(block.read_losses))\n"
    )
    known = {"step_unit": "optimizer", "anchor": 0}
    with Driven(tmp_path, [PYTHON, str(tmp_path / "breaks.py")], mode="run", **known) as driven:
        assert driven.wait() == 0
    assert driven.out == "kept 0 0 0 0\n"  # nothing grows with the length of the job
    watched = {event["what"]: event for event in driven.of("watch")}
    assert set(watched) == {"nan_loss", "frozen_parameter"}
    assert watched["nan_loss"]["step"] > 400
    assert "(2,)" in watched["frozen_parameter"]["detail"]
    assert driven.of("block") == []


def test_a_program_that_never_trains_says_hello_only(tmp_path: Path) -> None:
    with Driven(tmp_path, [PYTHON, "-c", "import torch; print(torch.ones(2).sum())"]) as driven:
        assert driven.wait() == 0
    assert list(driven.trial_dir.glob("rank-*")) == []
    (hello,) = driven.trial_dir.glob("hello-*.json")
    assert '"ended": true' in hello.read_text()
