"""Kinds of training programs, run as they are, with the agent in them and with nothing applied.

What each must show: the program prints the same to the bit as without us, and its steps, losses and
units are found.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from .driven import PYTHON, Driven, program, untouched

pytestmark = pytest.mark.torch

KINDS = Path(__file__).parent / "kinds"


def kind(name: str, *arguments: str) -> list[str]:
    return [PYTHON, str(KINDS / f"{name}.py"), *arguments]


def found_by(folder: Path, command: list[str], steps: int = 5) -> tuple[dict[str, Any], Driven]:
    """Let a program take some steps; what was discovered, and the ended program."""
    with Driven(folder, command) as driven:
        driven.advance(steps)
        assert driven.stop() == 0
        return driven.of("discovered")[0], driven


CASES = {
    "plain.py": ("optimizer", 0, 1.0, ["Sequential"]),
    "accumulation.py": ("optimizer", 0, 4.0, ["Sequential"]),
    "gan.py": ("optimizer", 1, 3.0, ["Sequential", "Sequential"]),
    "super_step.py": ("optimizer", 0, 1.0, ["Sequential"]),
    "scaler_clip.py": ("optimizer", 0, 1.0, ["Sequential"]),
    "scaler_clip.py --off": ("optimizer", 0, 1.0, ["Sequential"]),
    "no_optimizer.py": ("backward", None, 1.0, ["GRU", "Linear"]),
    "direct_forward.py": ("optimizer", 0, 1.0, ["Net"]),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_steps_losses_and_units_are_found_and_nothing_changes(name: str, tmp_path: Path) -> None:
    command = program(*name.split(), "--steps", "9")
    with Driven(tmp_path, command) as driven:
        assert driven.run_to_end() == 0
    found = driven.of("discovered")[0]
    unit, anchor, backwards, units = CASES[name]
    assert (found["step_unit"], found["anchor"], found["backwards_per_step"]) == (unit, anchor, backwards)
    assert [one["name"] for one in found["units"]] == units
    assert found["recurrent"] == [one for one in units if one == "GRU"]
    assert driven.out == untouched(tmp_path, command)
    assert driven.of("end")[0]["reason"] == "the program ended by itself after 9 steps"
    printed = [float(line.split()[-1]) for line in driven.out.splitlines()]
    assert [value for _, value in driven.losses()] == printed
    assert [step for step, _ in driven.losses()] == [
        1 + place // round(backwards) for place in range(len(printed))
    ]


@pytest.mark.parametrize(("name", "used"), [("scaler_clip.py", True), ("scaler_clip.py --off", False)])
def test_a_scaler_that_is_off_is_none(name: str, used: bool, tmp_path: Path) -> None:
    with Driven(tmp_path, program(*name.split(), "--steps", "9")) as driven:
        assert driven.run_to_end() == 0
    assert driven.of("discovered")[0]["grad_scaler"] is used


@pytest.mark.parametrize(
    ("name", "unit", "backwards"),
    [("in_backward", "backward", 1.0), ("closures", "optimizer", 4.0), ("forked", "optimizer", 1.0)],
)
def test_unusual_optimisers(name: str, unit: str, backwards: float, tmp_path: Path) -> None:
    with Driven(tmp_path, kind(name)) as driven:
        assert driven.run_to_end() == 0
    found = driven.of("discovered")[0]
    assert (found["step_unit"], found["backwards_per_step"]) == (unit, backwards)
    assert driven.of("end")[0]["steps"] == 12
    assert driven.out == untouched(tmp_path, kind(name))


def test_an_optimiser_that_raises_and_a_program_that_fails(tmp_path: Path) -> None:
    with Driven(tmp_path, kind("raising")) as driven:
        assert driven.run_to_end() == 1
    end = driven.of("end")[0]
    assert (end["steps"], end["error"], end["error_text"]) == (11, "RuntimeError", "no more data")
    assert "RuntimeError: no more data" in driven.err
    assert "flatout" not in driven.err.replace("flatout/", "")


def test_what_the_program_does_by_itself_is_seen(tmp_path: Path) -> None:
    found, _ = found_by(tmp_path, program("own_autocast.py"))
    assert found["already"]["bf16"] == "autocast bfloat16"
    assert found["already"]["fused_optimizer"] == "fused AdamW"


def test_its_own_compile_is_seen_and_not_compiled_again(tmp_path: Path) -> None:
    found, driven = found_by(tmp_path, program("own_compile.py"))
    assert found["already"]["compile"] == "torch.compile of Sequential"
    assert driven.of("block")[0]["recompiles"] == 0
    assert found["units"][0]["name"] == "Sequential"


def test_hand_written_attention_and_randomness_are_seen(tmp_path: Path) -> None:
    found, _ = found_by(tmp_path / "a", program("hand_attention.py"))
    assert (found["attention"], found["random"]) == ("hand-written", False)
    found, _ = found_by(tmp_path / "b", program("dropout.py"))
    assert (found["attention"], found["random"]) == ("none", True)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_loader_workers_stay_untouched(start: str, tmp_path: Path) -> None:
    with Driven(tmp_path, kind("loader_workers", start)) as driven:
        assert driven.run_to_end() == 0
    assert [path.name for path in driven.trial_dir.glob("rank-*")] == ["rank-0.jsonl"]
    found = driven.of("discovered")[0]
    assert found["loaders"][0]["num_workers"] == 2
    assert found["random"]
    assert driven.of("end")[0]["steps"] == 8
    assert sum(block["loader_wait_seconds"] for block in driven.of("block")) > 0


def test_a_second_training_process_is_noted_and_not_mixed(tmp_path: Path) -> None:
    with Driven(tmp_path, kind("trains_a_child")) as driven:
        driven.advance(3)
        driven.control.granted = 1 << 60
        assert driven.wait() == 0
    others = list(driven.trial_dir.glob("rank-0-*.jsonl"))
    assert len(others) == 1
    assert '"note"' in others[0].read_text()
    assert driven.of("end")[0]["steps"] == 12


def test_ranks_under_torchrun_hold_at_the_same_step(tmp_path: Path) -> None:
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    with Driven(tmp_path, [*torchrun, *program("ddp.py")[1:]]) as driven:
        driven.advance(4)
        driven.advance(3, rank=1)
        driven.advance(2)
        assert driven.stop() == 0
    assert driven.of("end", 0) == driven.of("end", 1)
    assert driven.of("end", 0)[0]["steps"] == 9
    assert driven.of("discovered", 1)[0]["world_size"] == 2
    # the launcher imports torch too, and is no rank
    assert len(list(driven.trial_dir.glob("hello-*.json"))) == 3
    assert len(list(driven.trial_dir.glob("rank-*.jsonl"))) == 2


def test_ranks_spawned_by_the_program_itself(tmp_path: Path) -> None:
    with Driven(tmp_path, kind("spawned", str(tmp_path / "store"))) as driven:
        assert driven.run_to_end() == 0
    assert driven.of("end", 0)[0]["steps"] == driven.of("end", 1)[0]["steps"] == 12


def test_a_module_started_with_dash_m(tmp_path: Path) -> None:
    command = [PYTHON, "-m", "tinytrain", "--steps", "6"]
    driven = Driven(tmp_path, command)
    driven.environment["PYTHONPATH"] += f":{Path(__file__).parents[1] / 'programs'}"
    with driven:
        assert driven.run_to_end() == 0
    assert driven.of("end")[0]["steps"] == 6


@pytest.mark.frameworks
@pytest.mark.skipif(sys.executable != PYTHON, reason="the other interpreter has no frameworks")
@pytest.mark.parametrize(
    ("name", "frameworks", "units"),
    [
        ("hf_trainer.py", ["accelerate", "hf_trainer"], ["LlamaForCausalLM"]),
        ("accelerate_loop.py", ["accelerate"], ["Sequential"]),
        ("lightning_loop.py", ["lightning"], ["Sequential"]),
    ],
)
def test_frameworks(name: str, frameworks: list[str], units: list[str], tmp_path: Path) -> None:
    found, driven = found_by(tmp_path, program(name))
    assert found["frameworks"] == frameworks
    assert [one["class_name"] for one in found["units"]] == units
    assert found["loaders"]
    assert driven.of("end")[0]["reason"] == "stopped by flatout"
