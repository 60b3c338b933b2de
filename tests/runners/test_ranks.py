"""Event lines of several ranks, made into nouns."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from flatout.runners.ranks import Ranks


def write(folder: Path, rank: int, *events: dict[str, Any], rest: str = "") -> None:
    text = "".join(json.dumps(event) + "\n" for event in events)
    with (folder / f"rank-{rank}.jsonl").open("a") as file:
        file.write(text + rest)


def block(first: int, *seconds: float | None, **more: Any) -> dict[str, Any]:
    return {
        "event": "block",
        "first_step": first,
        "steps": len(seconds),
        "step_seconds": list(seconds),
        "losses": [[first + n, 1.0] for n in range(len(seconds))],
        "loader_wait_seconds": 0.1,
        "agent_seconds": 0.01,
        "wall_seconds": 1.0,
        "peak_bytes": 5,
        **more,
    }


def test_the_slowest_rank_counts_and_a_step_that_means_nothing_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, block(1, None, 1.0, 2.0, losses=[[1, "nan"], [2, 0.5], [3, "inf"]]))
    write(tmp_path, 1, block(1, None, 3.0, None, loader_wait_seconds=0.7))
    ranks = Ranks(tmp_path)
    assert ranks.read() and not ranks.read()
    found = ranks.block(1, 3)
    assert found.step_seconds == (3.0,)
    assert found.loader_wait_seconds == 0.7
    assert [step for step, _ in found.losses] == [1, 2, 3]
    assert math.isnan(found.losses[0][1]) and math.isinf(found.losses[2][1])
    assert ranks.steps == 3 and ranks.world_size == 2


def test_only_the_steps_asked_for(tmp_path: Path) -> None:
    write(tmp_path, 0, block(1, None, 1.0), block(3, None, 2.0, 3.0))
    ranks = Ranks(tmp_path)
    ranks.read()
    assert ranks.block(3, 4).step_seconds == (2.0,)
    assert ranks.block(3, 5).losses == ((3, 1.0), (4, 1.0), (5, 1.0))
    assert ranks.total("peak_bytes") == 10 and ranks.most("peak_bytes") == 5


def test_a_line_cut_off_is_read_when_it_is_whole(tmp_path: Path) -> None:
    write(tmp_path, 0, block(1, 1.0), rest='{"event": "end", "rea')
    ranks = Ranks(tmp_path)
    ranks.read()
    assert ranks.first("end") is None
    write(tmp_path, 0, rest='son": "done"}\n')
    ranks.read()
    assert ranks.first("end") == {"event": "end", "reason": "done"}


def test_a_second_process_of_a_rank_is_not_measured_with_it(tmp_path: Path) -> None:
    write(tmp_path, 0, block(1, 1.0))
    (tmp_path / "rank-0-1234.jsonl").write_text(json.dumps(block(1, 9.0)) + "\n")
    ranks = Ranks(tmp_path)
    ranks.read()
    assert list(ranks.logs) == [0] and ranks.block(1, 1).step_seconds == (1.0,)


def test_discovery_gradients_profile_and_evidence(tmp_path: Path) -> None:
    write(
        tmp_path,
        0,
        {
            "event": "discovered",
            "step_unit": "backward",
            "anchor": None,
            "backwards_per_step": 1.0,
            "device": "cpu",
            "units": [{"name": "a", "class": "Net", "parameters": 3, "called": "call"}],
            "optimizers": [],
            "frameworks": ["accelerate"],
            "already": {"bf16": "autocast"},
            "loaders": [],
            "world_size": 1,
            "of_a_later_version": 1,
        },
        {
            "event": "guard",
            "compared": 4,
            "equal": False,
            "worst_db": "inf",
            "overall_db": 60.0,
            "missing": ["b"],
        },
        {
            "event": "profile",
            "wall_seconds": 1.0,
            "device_busy_seconds": 0.5,
            "kernels": [["mm", 2, 0.4]],
            "operators": [["aten::mm", 2, 0.1]],
            "kernel_count": 2,
        },
        {"event": "active", "technique": "bf16", "active": True, "evidence": {"seen": 1}},
        {"event": "active", "technique": "bf16", "active": True, "evidence": {"seen": 2}},
    )
    ranks = Ranks(tmp_path)
    ranks.read()
    discovery, gradients, profile = ranks.discovery(), ranks.gradients(), ranks.profile()
    assert discovery is not None and discovery.units[0].class_name == "Net"
    assert discovery.anchor is None and discovery.frameworks == ("accelerate",)
    assert gradients is not None and gradients.worst_db == math.inf and gradients.missing == ("b",)
    assert profile is not None and profile.kernels == (("mm", 2, 0.4),)
    assert ranks.evidence() == {"bf16": {"seen": 2}}


def test_of_several_ranks_the_gradients_that_agree_least(tmp_path: Path) -> None:
    write(tmp_path, 0, {"event": "guard", "compared": 4, "equal": True})
    write(tmp_path, 1, {"event": "guard", "compared": 4, "equal": False, "overall_db": 20.0})
    ranks = Ranks(tmp_path)
    ranks.read()
    gradients = ranks.gradients()
    assert gradients is not None and gradients.overall_db == 20.0


def test_nothing_told_is_none(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    assert not ranks.read()
    assert ranks.discovery() is None and ranks.gradients() is None and ranks.profile() is None
    assert ranks.steps == 0 and ranks.block(1, 0).steps == 0
