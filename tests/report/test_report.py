"""The report says what the ledger holds, the same every time."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from flatout.agent.gradients import NOISELESS_DB
from flatout.ledger import Ledger
from flatout.planfile import read_plan, write_plan
from flatout.renderers.json import render_json
from flatout.report import Standing, build_report, plan_file
from flatout.runners.mock import DISCOVERY, MockProgram, MockRunner, MockSession, MockTechnique
from flatout.search.options import SearchOptions
from flatout.trial import Profile, Work
from search.played import PLANTED, play


def test_it_is_rebuilt_from_the_ledger_alone_and_agrees_to_the_digit(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    report = play(here, MockProgram(techniques=PLANTED))
    there = tmp_path / "there"
    there.mkdir()
    for path in here.glob("ledger.sqlite*"):
        shutil.copy(path, there / path.name)
    shutil.rmtree(here)
    with Ledger(there / "ledger.sqlite", writable=False) as ledger:
        assert build_report(ledger, report.search_id) == report


def test_its_plain_form_has_the_first_class_keys_and_is_strict_json(tmp_path):
    program = MockProgram(techniques={"it": MockTechnique(nan_loss_from=3), **PLANTED})
    report = play(tmp_path, program)
    plain = json.loads(render_json(report))
    for key in (
        "conclusion", "plan", "verdicts", "trials", "techniques", "limits", "already", "thrown_away",
        "isolation", "host", "discovery", "next_command", "compile",
    ):  # fmt: skip
        assert key in plain
    assert plain["techniques"][0]["standing"] == "refused"
    assert plain["plan"]["choices"][0]["name"] == "bf16"
    assert len(plain["verdicts"][0]["samples_a"]) >= 5


def test_limits_come_from_the_baselines_profile(tmp_path):
    profile = Profile(
        wall_seconds=0.05,
        device_busy_seconds=0.03,
        operators=(("aten::addmm", 4000, 0.025), ("aten::add", 1000, 0.005)),
    )
    report = play(tmp_path, MockProgram(techniques=PLANTED, profile=profile))
    assert report.limits[0].cause == "launches"
    assert report.limits[0].techniques == ("compile", "fused_optimizer")


ROW = Work(
    operator="aten::mm", calls=4, seconds=0.02, inputs=(("float", (512, 512)), ("float", (512, 512)))
)
PROFILED = Profile(
    wall_seconds=0.03,
    device_busy_seconds=0.02,
    work=(ROW,),
    gaps={"python": 0.01},
    span_seconds=0.03,
    peaks={"float32": 1e11, "bytes": 1e10},
)


def test_what_is_left_is_the_plans_where_there_is_one(tmp_path):
    report = play(tmp_path, MockProgram(techniques=PLANTED, profile=PROFILED))
    assert report.left.plan == report.plan.key
    assert report.left.step_seconds == report.plan_step_seconds
    assert sum(part.seconds for part in report.left.parts) == pytest.approx(report.plan_step_seconds)
    assert report.left.parts[0].cause == "floor"


def test_what_is_left_is_the_untouched_programs_where_there_is_no_plan(tmp_path):
    report = play(tmp_path, MockProgram(techniques={"it": MockTechnique()}, profile=PROFILED))
    assert report.left.plan == "baseline"
    assert report.left.step_seconds == report.baseline_step_seconds
    assert "floor" in [part.cause for part in report.left.parts]


def test_a_plan_that_was_not_profiled_is_said_to_be(tmp_path):
    report = play(tmp_path, MockProgram(techniques=PLANTED))
    assert [part.cause for part in report.left.parts] == ["unknown"]
    assert report.left.reason == "the plan's step was not profiled: the profiler is not to be had there"


def test_a_starved_program(tmp_path):
    report = play(tmp_path, MockProgram(techniques={"it": MockTechnique()}, loader_wait_seconds=0.04))
    assert report.limits[0].cause == "loader"


def test_its_own_compile_that_recompiles_is_told(tmp_path):
    class Recompiling(MockSession):
        def _outcome(self, *arguments, **more):  # type: ignore[no-untyped-def]
            return replace(super()._outcome(*arguments, **more), recompiles=self._steps)

    class Runner(MockRunner):
        def start(self, request, tell=lambda _: None):  # type: ignore[no-untyped-def]
            self.requests.append(request)
            self.live.append(Recompiling(self, request))
            return self.live[-1]

    discovery = replace(DISCOVERY, already={"compile": "torch.compile"})
    program = MockProgram(
        techniques={"compile": MockTechnique(), "it": MockTechnique()}, discovery=discovery, total_steps=12
    )
    report = play(tmp_path, program, runner=Runner(program))
    assert report.compile.recompiles == 12
    assert "recompiled 12 times in 12 steps" in report.conclusion
    assert "dynamic=True" in report.conclusion


def interrupted(tmp_path, requests: int, options: SearchOptions | None = None):
    program = MockProgram(techniques=PLANTED)
    runner = MockRunner(program)

    def interrupt(_what: str, _session: MockSession) -> None:
        if len(runner.requests) > requests:
            raise KeyboardInterrupt

    runner.before = interrupt
    return play(tmp_path, program, runner=runner, options=options)


def test_interrupted_before_anything(tmp_path):
    report = interrupted(tmp_path, 0)
    assert report.state == "interrupted"
    assert report.conclusion.startswith("Interrupted: nothing has been measured yet.")
    assert report.next_command.startswith("flatout train --out ")
    assert report.techniques == ()


def test_what_to_type_to_go_on_names_the_options_that_must_agree(tmp_path):
    options = SearchOptions(budget_seconds=150.0, only=("bf16", "sdpa"), seed=3)
    report = interrupted(tmp_path, 2, options)
    assert report.next_command.startswith("flatout train --budget 150s --only bf16,sdpa --seed 3 --out ")
    assert report.conclusion == (
        "Interrupted: nothing has been proved yet. The same command goes on from here."
    )


def interrupted_after_a_gain(tmp_path):
    """Ctrl-C some calls after the climb has kept something."""
    program = MockProgram(techniques=PLANTED)
    runner = MockRunner(program)
    calls = 0

    def interrupt(_what: str, _session: MockSession) -> None:
        nonlocal calls
        with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
            calls += bool(ledger.events(1, "accepted"))
        if calls > 5:
            raise KeyboardInterrupt

    runner.before = interrupt
    return play(tmp_path, program, runner=runner)


def test_interrupted_with_a_proved_plan(tmp_path):
    report = interrupted_after_a_gain(tmp_path)
    assert report.state == "interrupted"
    assert "bf16" in report.plan.names
    assert report.ratio > 2.0
    assert report.left is None
    if len(report.plan.names) > 1:
        assert "by its steps" in report.conclusion
    assert report.conclusion.endswith("The same command goes on from here.")


def test_a_killed_search_is_unfinished(tmp_path):
    report = interrupted_after_a_gain(tmp_path)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_state(1, "running")
        killed = build_report(ledger, 1)
    assert killed.state == "unfinished"
    assert killed.conclusion.startswith("Unfinished: ")
    assert killed.plan == report.plan


def test_plan_file(tmp_path):
    report = play(tmp_path, MockProgram(techniques=PLANTED))
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        plan = plan_file(ledger, 1)
    assert plan.plan == report.plan
    assert plan.proof.ratio == report.ratio
    assert plan.script == str(tmp_path / "train.py")
    assert plan.script_sha256
    assert plan.by_hand["bf16"] == "bf16()"
    assert plan.shares["bf16"] == pytest.approx(2.5, rel=0.03)
    assert plan.cache_dir == str(tmp_path / "cache")
    write_plan(tmp_path / "plan.toml", plan)
    assert read_plan(tmp_path / "plan.toml") == plan


def test_plan_file_of_nothing_to_change(tmp_path):
    play(tmp_path, MockProgram(techniques={"it": MockTechnique()}))
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        plan = plan_file(ledger, 1)
    assert not plan.plan
    assert plan.proof is None


def test_nothing_is_said_of_a_technique_that_was_left_out(tmp_path):
    report = play(tmp_path, MockProgram(techniques=PLANTED), options=SearchOptions(only=("sdpa",)))
    assert [row.standing for row in report.techniques if row.name != "sdpa"] == [Standing.NOT_TRIED] * 4
    assert "bf16" not in report.conclusion


@pytest.mark.parametrize(
    ("techniques", "said"),
    [
        (
            {"a": MockTechnique(factor=0.5, fails="ProgramCrashed")},
            "nothing that was tried can be used here",
        ),
        (
            {"a": MockTechnique(factor=0.5, fails="ProgramCrashed"), "b": MockTechnique()},
            "b does not make a step faster",
        ),
        (
            {"a": MockTechnique(factor=0.5, refuses="no"), "b": MockTechnique(), "c": MockTechnique()},
            "none of 2 techniques makes a step faster",
        ),
    ],
)
def test_no_speed_is_claimed_of_what_was_never_timed(tmp_path, techniques, said):
    conclusion = play(tmp_path, MockProgram(techniques=techniques)).conclusion
    assert conclusion.startswith(f"Nothing to change: {said}")
    assert conclusion.rstrip(".").endswith("refused: a" if techniques["a"].refuses else "failed: a")


def test_thrown_away_is_collected_over_all_trials(tmp_path):
    class Writing(MockSession):
        def stop(self):  # type: ignore[no-untyped-def]
            wrote = (("/w/a.pt", 10 * len(self._runner.requests)), (f"/w/{self._request.key}", 1))
            return replace(super().stop(), thrown_away=wrote, thrown_away_count=2, thrown_away_bytes=11)

    class Runner(MockRunner):
        def start(self, request, tell=lambda _: None):  # type: ignore[no-untyped-def]
            self.requests.append(request)
            self.live.append(Writing(self, request))
            return self.live[-1]

    program = MockProgram(techniques={"it": MockTechnique()})
    runner = Runner(program)
    report = play(tmp_path, program, runner=runner)
    assert report.thrown_away[0] == ("/w/a.pt", 10 * len(runner.requests))
    assert {path for path, _ in report.thrown_away} >= {"/w/a.pt", "/w/baseline", "/w/again", "/w/climb:it"}
    assert report.isolation == "none: played"
    assert report.thrown_away_count == len(report.thrown_away)
    assert report.thrown_away_bytes == sum(size for _, size in report.thrown_away)


def test_a_loss_that_is_no_number_without_flatout_too(tmp_path):
    report = play(tmp_path, MockProgram(techniques={"it": MockTechnique()}, nan_loss_from=4))
    assert "own loss is not a number from step 4 on" in report.conclusion


def test_gradients_that_are_not_finite_are_not_called_irreproducible(tmp_path):
    report = play(tmp_path, MockProgram(techniques={"it": MockTechnique()}, again_db=-NOISELESS_DB))
    assert report.noise is not None
    assert "not finite" in report.noise.note and "reproducible" not in report.noise.note


@pytest.mark.parametrize(("use", "noted"), [(37, True), (0, False), (None, False)])
def test_others_on_the_gpu_are_told(tmp_path, use, noted):
    report = play(tmp_path, MockProgram(techniques=PLANTED))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add_event(report.search_id, "held", {"use_percent": use}, at=9.0)
        notes = build_report(ledger, report.search_id).notes
    assert any("others use the GPU" in note for note in notes) == noted
