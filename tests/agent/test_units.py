"""Techniques around the units of real programs: found again, called, left alone where they should be."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest

from flatout.agent import units
from flatout.agent.guarding import weights

from .driven import PYTHON, Driven, program

pytestmark = pytest.mark.torch

KINDS = Path(__file__).parent / "kinds"


def discover(folder: Path, command: list[str], steps: int = 3) -> dict[str, Any]:
    folder.mkdir()
    with Driven(folder, command) as driven:
        driven.advance(steps)
        driven.stop()
    found = driven.of("discovered")[0]
    return {name: found[name] for name in ("step_unit", "anchor", "units")}


@pytest.mark.parametrize("name", ["gan.py", "no_optimizer.py", "direct_forward.py", "own_compile.py"])
def test_units_are_found_again_before_the_first_training_call(name: str, tmp_path: Path) -> None:
    known = discover(tmp_path / "a", program(name))
    with Driven(tmp_path, program(name), techniques=[{"name": "bf16", "settings": {}}], **known) as driven:
        driven.advance(4)
        assert driven.stop() == 0
    assert driven.of("applied")[0]["technique"] == "bf16"
    evidence = driven.of("active")[-1]["evidence"]
    # one region before each backward, and each was closed by it
    backwards = len(driven.losses())
    assert evidence["closed_by"] == {"backward": backwards}
    assert "bfloat16" in evidence["matmul_dtypes"]


def test_without_a_baselines_word_the_outermost_training_call_is_taken(tmp_path: Path) -> None:
    techniques = [{"name": "bf16", "settings": {}}]
    with Driven(tmp_path, program("plain.py"), techniques=techniques) as driven:
        driven.advance(4)
        assert driven.stop() == 0
    assert driven.of("active")[-1]["evidence"]["closed_by"] == {"backward": len(driven.losses())}


def test_a_model_with_techniques_pickles_copies_and_keeps_its_keys(tmp_path: Path) -> None:
    command = [PYTHON, str(KINDS / "saves_model.py")]
    known = discover(tmp_path / "a", command)
    with Driven(tmp_path, command, techniques=[{"name": "bf16", "settings": {}}], **known) as driven:
        assert driven.run_to_end() == 0, driven.err
    evidence = driven.of("active")[-1]["evidence"]
    # twelve training calls; the evaluation calls and those of the copies went the plain way
    assert evidence["regions_opened"] == 12
    assert (tmp_path / "model.pt").exists()


def test_one_model_after_another_is_found_and_let_go_of(tmp_path: Path) -> None:
    command = [PYTHON, str(KINDS / "folds.py")]
    known = discover(tmp_path / "a", command)
    techniques = [{"name": name, "settings": {}} for name in ("bf16", "fused_optimizer")]
    with Driven(tmp_path, command, mode="run", techniques=techniques, **known) as driven:
        assert driven.wait() == 0, driven.err
    assert driven.out.splitlines() == [*(f"{fold} torch.bfloat16 True" for fold in range(3)), "left 0"]


def test_a_unit_that_is_not_there_is_refused_with_the_reason(tmp_path: Path) -> None:
    known = discover(tmp_path / "a", program("plain.py"))
    known["units"][0] = {**known["units"][0], "fingerprint": "__main__.Elsewhere|0123456789abcdef|0"}
    techniques = [{"name": "bf16", "settings": {}}]
    with Driven(tmp_path, program("plain.py"), techniques=techniques, **known) as driven:
        driven.control.granted = 5
        assert driven.wait() == 23
    assert "without a training call of Sequential" in driven.of("refused")[0]["reason"]
    assert "flatout: bf16 cannot act in this program" in driven.err


def test_a_real_run_degrades_only_when_told(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\nm = torch.nn.Linear(4, 4).double()\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "for i in range(5):\n"
        "    m(torch.ones(2, 4).double()).sum().backward(); o.step(); o.zero_grad()\nprint('done')\n"
    )
    command = [PYTHON, str(tmp_path / "own.py")]
    spec: dict[str, Any] = {"mode": "run", "techniques": [{"name": "bf16", "settings": {}}]}
    for name, degrade, code in (("strict", False, 23), ("degraded", True, 0)):
        folder = tmp_path / name
        folder.mkdir()
        with Driven(folder, command, degrade=degrade, **spec) as driven:
            assert driven.wait() == code
        assert "float64" in driven.of("refused")[0]["reason"]
        assert ("done" in driven.out) == degrade


def test_going_on_without_a_technique_takes_it_out_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import gc, inspect, torch\nm = torch.nn.Linear(4, 4)\n"
        "o = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "for i in range(6):\n"
        "    m(torch.ones(2, 4)).sum().backward(); o.step(); o.zero_grad()\n"
        "(call,) = [x for x in gc.get_objects() if type(x).__name__ == 'UnitCall']\n"
        "inner = inspect.getclosurevars(call.wrapped).nonlocals['call']\n"
        "print(call.wrapped.__module__.rpartition('.')[2], inner is call.plain)\n"
    )
    command = [PYTHON, str(tmp_path / "plain.py")]
    known = discover(tmp_path / "a", command)
    techniques = [{"name": name, "settings": {}} for name in ("bf16", "sdpa")]
    with Driven(tmp_path, command, mode="run", degrade=True, techniques=techniques, **known) as driven:
        assert driven.wait() == 0, driven.err
    assert [event["technique"] for event in driven.of("refused")] == ["sdpa"]
    assert driven.out == "bf16 True\n"


def test_an_agent_that_fails_in_a_real_run_leaves_no_autocast_on(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import gc, torch\nm = torch.nn.Linear(4, 4)\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "for i in range(5):\n"
        "    loss = m(torch.ones(2, 4)).sum()\n"
        "    if i == 3:\n"
        "        (guest,) = [x for x in gc.get_objects() if type(x).__name__ == 'Guest']\n"
        "        guest.fail('a test', ValueError('made to fail'))\n"
        "        print('open', torch.is_autocast_enabled('cpu'))\n"
        "    loss.backward(); o.step(); o.zero_grad()\n"
    )
    command = [PYTHON, str(tmp_path / "own.py")]
    known = {"step_unit": "optimizer", "anchor": 0}
    techniques = [{"name": "bf16", "settings": {}}]
    with Driven(tmp_path, command, mode="run", techniques=techniques, **known) as driven:
        assert driven.wait() == 0, driven.err
    assert driven.out == "open False\n"
    assert "its agent failed at a test" in driven.err


def test_a_failure_of_the_agent_itself_is_loud(tmp_path: Path) -> None:
    techniques = [{"name": "no_such_technique", "settings": {}}]
    with Driven(tmp_path, program("plain.py"), techniques=techniques) as driven:
        assert driven.wait() == 20
    assert "flatout: its agent failed at import of torch" in driven.err
    assert list(driven.trial_dir.glob("error-*.json"))


def test_twins_stand_in_the_same_order_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever order they have in memory: by their optimisers, else by their values."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    critics = [torch.nn.Sequential(torch.nn.Linear(3, 4)) for _ in range(3)]
    targets = [copy.deepcopy(one).requires_grad_(False) for one in critics]
    with torch.no_grad():
        for number, target in enumerate(targets):
            target[0].bias.fill_(float(number))
    made = [torch.optim.SGD(one.parameters(), lr=0.1) for one in critics]
    odd = [torch.nn.Linear(3, 4), torch.nn.Linear(2, 2), torch.nn.LazyLinear(2), torch.nn.LazyLinear(2)]
    wanted: list[list[Any]] = []
    for alive in itertools.permutations([*critics, *targets[:2]], 5):
        monkeypatch.setattr(units, "modules_alive", lambda _, alive=alive: [*alive, *odd])
        found = weights.entries(torch, made)
        assert len({one.name for one in found}) == len({one.key for one in found}) == len(found)
        rows = [(one.key, one.name, id(one.tensor)) for one in found if "Lazy" not in one.key]
        wanted.append(rows)
        assert rows == wanted[0]
