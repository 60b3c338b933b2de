"""Guard trials of real programs: the same weights everywhere, a truth in float64, updates, dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatout.codec import from_plain
from flatout.guard.records import looks
from flatout.guard.whole import Reference, judge_whole, text_of
from flatout.technique import Effect
from flatout.trial import GuardReport
from flatout.workload import Discovery

from .driven import PYTHON, Driven, late, program

KINDS = Path(__file__).parent / "kinds"
POINTS = {"start": [1, 2], "late": [4, 5]}
STEPS = 5
pytestmark = pytest.mark.torch


class Guarded:
    """One program: its untouched guard trials, and plans held against them."""

    def __init__(self, folder: Path, command: list[str], *, reference: bool = True) -> None:
        self.folder, self.command = folder, late(command)
        self.guard = folder / "guard"
        self.guard.mkdir()
        with self._driven("timed", late_path=str(self.guard / "late.pt")) as driven:
            driven.advance(9)
            driven.stop()
        found = driven.of("discovered")[0]
        self.known = {name: found[name] for name in ("step_unit", "anchor", "units")}
        self.discovery: Discovery = from_plain(Discovery, found)
        if reference:
            told = {role: self.trial(role) for role in ("baseline", "truth", "again")}
            self.reference = Reference(**told, precision="float64")

    def _driven(self, name: str, **spec: Any) -> Driven:
        (self.folder / name).mkdir()
        return Driven(self.folder / name, self.command, seed=5, **spec)

    def trial(
        self,
        role: str,
        name: str = "",
        steps: int = STEPS,
        rounding: str = "",
        precision: str = "float64",
        **spec: Any,
    ) -> list[dict[str, Any]]:
        off = role != "random"
        points = POINTS if off else {}
        guard = {"role": role, "folder": str(self.guard), "points": points, "updates": [1, 2]}
        guard.update(rounding=rounding, precision=precision, draw=0, fewer_bits=0)
        with self._driven(name or role, guard=guard, randomness_off=off, **self.known, **spec) as driven:
            driven.advance(steps)
            driven.stop()
        return driven.of("guarding")

    def plan(self, effect: Effect = Effect.APPROXIMATE, **spec: Any) -> GuardReport:
        told = self.told = self.trial("plan", **spec)
        names = [one["name"] for one in spec.get("techniques", ())]
        effects = dict.fromkeys(names, effect)
        return judge_whole(told, self.reference, effects, self.discovery)


def bf16() -> list[dict[str, Any]]:
    return [{"name": "bf16", "settings": {}}]


def test_a_plain_program(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, program("plain.py"))
    own = looks(guarded.reference.truth, "baseline")
    assert sorted(own) == [(1, "0.1"), (2, "0.1"), (4, "0.1"), (5, "0.1")]
    for look in own.values():
        assert {row.name for row in look.rows.values()} == {"0.weight", "0.bias", "2.weight", "2.bias"}
        # float32's own rounding, no more and no less: the truth is another arithmetic at the same weights
        assert all(100 < row.db < 200 for row in look.rows.values())
    assert all(look.equal for look in looks(guarded.reference.again, "again").values())
    late = guarded.reference.baseline[-1]["losses"], guarded.reference.truth[-1]["losses"]
    assert late[0] == pytest.approx(late[1], rel=1e-5)

    report = guarded.plan(techniques=bf16())
    assert report.passed is True, text_of(report)
    assert report.complete, report.unchecked
    assert [(point.point, point.compared) for point in report.points] == [
        ("start", 4),
        ("start", 4),
        ("late", 4),
        ("late", 4),
    ]
    assert all(20 < (point.overall_db or 0) < 70 for point in report.points)
    errs_as_the_plan(guarded, "float64")
    errs_as_the_plan(guarded, "float32")


def errs_as_the_plan(guarded: Guarded, precision: str) -> None:
    """The control of BF16, at the same weights and batches, parameter by parameter."""
    told = guarded.trial("control", f"control in {precision}", rounding="bf16", precision=precision)
    assert {event["what"] for event in told} == {"facts", "gradients", "model"}
    control, plan = looks(told, "control"), looks(guarded.told, "plan")
    assert sorted(control) == sorted(plan)
    for key, look in plan.items():
        assert look.against == control[key].against == "truth"
        for name, row in look.rows.items():
            own = control[key].rows[name]
            assert own.slope is not None and row.slope is not None
            assert own.db == pytest.approx(row.db, abs=3.0)
            assert own.slope - 1.0 == pytest.approx(row.slope - 1.0, abs=2e-3)


@pytest.mark.real
@pytest.mark.parametrize(
    "command",
    [
        program("no_optimizer.py"),
        program("gan.py"),
        [PYTHON, str(KINDS / "closures.py")],
        [PYTHON, str(KINDS / "in_backward.py")],
        [PYTHON, str(KINDS / "vmapped.py")],
        [PYTHON, str(KINDS / "twins.py")],
    ],
    ids=["no_optimizer", "gan", "lbfgs", "in_backward", "vmap", "twins"],
)
def test_programs_of_other_kinds(command: list[str], tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, command)
    own = looks(guarded.reference.truth, "baseline")
    assert {look.step for look in own.values()} == {1, 2, 4, 5}
    report = guarded.plan(techniques=bf16())
    assert report.passed is True, text_of(report)
    if "closures" in command[-1]:  # it has converged by then
        assert [point.passed for point in report.points] == [True, True, None, None]
    if not any(name in command[-1] for name in ("gan", "vmapped", "twins")):
        assert any("updates could not be checked" in one for one in report.unchecked)


@pytest.mark.real
def test_a_scaler_that_skips_the_first_steps(tmp_path: Path) -> None:
    """Nothing waits for gradients that never come."""
    guarded = Guarded(tmp_path, program("scaler_clip.py"))
    report = guarded.plan(techniques=bf16())
    assert report.passed is not False, text_of(report)


def test_dropout(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, program("dropout.py"), reference=False)
    told = guarded.trial("random", steps=3)
    seen = [event for event in told if event["what"] == "dropout"]
    assert len(seen) == 1
    assert seen[0]["apart"] > 0.01 * seen[0]["size"]
    assert seen[0]["least_apart"] > 0
