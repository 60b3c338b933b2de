"""Every kind of training program is found out as it is: steps, models, optimisers, what is already there.

One process each, untouched, under the agent and the isolation that a search uses.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from flatout.workload import Discovery

from .harness import PROGRAMS, House


def program(name: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / f"{name}.py"), *words)


def classes(discovery: Discovery) -> list[str]:
    return [unit.class_name for unit in discovery.units]


@pytest.mark.torch
class TestPlainTorch:
    def test_plain(self, house: House) -> None:
        found, _ = house.discover(*program("plain"))
        assert (found.step_unit, found.anchor, found.backwards_per_step) == ("optimizer", 0, 1)
        assert (found.device, found.world_size) == ("cpu", 1)
        assert classes(found) == ["Sequential"]
        assert found.units[0].called == "call"
        assert found.trainable_parameters == 16 * 32 + 32 + 32 * 4 + 4
        assert not found.random and not found.grad_scaler and not found.already
        assert found.frameworks == ()
        (optimizer,) = found.optimizers
        assert optimizer["class_name"] == "AdamW" and not optimizer["fused"] and optimizer["exact_class"]

    def test_accumulation(self, house: House) -> None:
        found, _ = house.discover(*program("accumulation"))
        assert (found.step_unit, found.anchor, found.backwards_per_step) == ("optimizer", 0, 4)

    def test_two_optimizers_make_one_step(self, house: House) -> None:
        found, _ = house.discover(*program("gan"))
        assert (found.step_unit, found.anchor, found.backwards_per_step) == ("optimizer", 1, 3)
        assert classes(found) == ["Sequential", "Sequential"]
        assert [optimizer["class_name"] for optimizer in found.optimizers] == ["Adam", "Adam"]

    def test_scaler_that_skips_steps(self, house: House) -> None:
        found, _ = house.discover(*program("scaler_clip"))
        assert (found.step_unit, found.anchor) == ("optimizer", 0)
        assert found.grad_scaler

    def test_own_autocast_is_already_there(self, house: House) -> None:
        found, _ = house.discover(*program("own_autocast"))
        assert "bfloat16" in found.already["bf16"]
        assert "fused_optimizer" in found.already

    def test_autocast_with_float32_is_not_bf16(self, house: House) -> None:
        found, _ = house.discover(*program("own_autocast", "--dtype", "float32"))
        assert "bf16" not in found.already

    @pytest.mark.parametrize("how", [(), ("--in-place",)], ids=["wrapped", "in place"])
    def test_own_compile_is_already_there(self, house: House, how: tuple[str, ...]) -> None:
        found, _ = house.discover(*program("own_compile", *how))
        assert "compile" in found.already

    def test_direct_forward(self, house: House) -> None:
        found, _ = house.discover(*program("direct_forward"))
        assert [(unit.class_name, unit.called) for unit in found.units] == [("Net", "forward")]

    def test_no_optimizer_object_counts_backward_calls(self, house: House) -> None:
        found, _ = house.discover(*program("no_optimizer"))
        assert (found.step_unit, found.anchor, found.backwards_per_step) == ("backward", None, 1)
        assert sorted(classes(found)) == ["GRU", "Linear"]

    def test_step_that_calls_super_counts_once(self, house: House) -> None:
        found, _ = house.discover(*program("super_step"))
        assert (found.step_unit, found.anchor, found.backwards_per_step) == ("optimizer", 0, 1)
        (optimizer,) = found.optimizers
        assert optimizer["class_name"] == "WarmAdam" and not optimizer["exact_class"]

    def test_hand_written_attention(self, house: House) -> None:
        found, _ = house.discover(*program("hand_attention"))
        assert found.attention == "hand-written"
        assert classes(found) == ["Model"]

    def test_dropout_is_random(self, house: House) -> None:
        found, _ = house.discover(*program("dropout"))
        assert found.random
        assert found.units[0].training

    def test_silent_program(self, house: House) -> None:
        found, printed = house.discover(*program("silent"))
        assert found.step_unit == "optimizer"
        assert printed == ""


@pytest.mark.torch
class TestWaysOfStarting:
    def test_module(self, house: House) -> None:
        found, _ = house.discover(sys.executable, "-m", "tinytrain", PYTHONPATH=str(PROGRAMS))
        assert classes(found) == ["Sequential"]

    def test_console_script(self, house: House) -> None:
        script = house.work / "tinytrain"
        script.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(PROGRAMS)!r})\n"
            "from tinytrain.loop import main\nsys.exit(main())\n"
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        found, _ = house.discover("./tinytrain")
        assert classes(found) == ["Sequential"]

    def test_torchrun(self, house: House) -> None:
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        ddp = str(PROGRAMS / "ddp.py")
        found, _ = house.discover(torchrun, "--standalone", "--nproc_per_node=2", ddp)
        assert found.world_size == 2
        assert (found.step_unit, found.anchor) == ("optimizer", 0)
        assert house.leftover() == []

    @pytest.mark.root
    def test_wrapper_that_sets_pythonpath(self, house: House) -> None:
        self.needs_overlay(house)
        found, _ = house.discover(str(PROGRAMS / "run.sh"))
        assert classes(found) == ["Sequential"]

    @pytest.mark.root
    def test_wrapper_that_isolates_python(self, house: House) -> None:
        self.needs_overlay(house)
        found, _ = house.discover(str(PROGRAMS / "isolated.sh"))
        assert classes(found) == ["Sequential"]

    @staticmethod
    def needs_overlay(house: House) -> None:
        isolation = house.strongest_isolation()
        if isolation != "overlay":
            pytest.skip(f"the way in needs a mount namespace; here the strongest isolation is {isolation}")


@pytest.mark.torch
@pytest.mark.frameworks
class TestFrameworks:
    def test_hf_trainer(self, house: House) -> None:
        pytest.importorskip("transformers")
        found, _ = house.discover(*program("hf_trainer", "--accumulate", "2"))
        assert "hf_trainer" in found.frameworks
        assert (found.step_unit, found.anchor, found.backwards_per_step) == ("optimizer", 0, 2)
        assert classes(found) == ["LlamaForCausalLM"]

    def test_accelerate(self, house: House) -> None:
        pytest.importorskip("accelerate")
        found, _ = house.discover(*program("accelerate_loop"))
        assert "accelerate" in found.frameworks and "hf_trainer" not in found.frameworks
        assert (found.anchor, found.backwards_per_step) == (0, 2)

    def test_accelerate_launch(self, house: House) -> None:
        pytest.importorskip("accelerate")
        launch = (
            str(Path(sys.executable).with_name("accelerate")),
            "launch",
            "--cpu",
            "--num_processes",
            "1",
        )
        found, _ = house.discover(*launch, str(PROGRAMS / "accelerate_loop.py"))
        assert "accelerate" in found.frameworks

    def test_lightning(self, house: House) -> None:
        pytest.importorskip("lightning")
        found, _ = house.discover(*program("lightning_loop"))
        assert "lightning" in found.frameworks
        assert (found.step_unit, found.anchor, found.backwards_per_step) == ("optimizer", 0, 1)
