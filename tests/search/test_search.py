"""Whole searches over played programs: what is claimed, what is refused and why, and what it costs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from flatout import errors
from flatout.fingerprint import file_sha256
from flatout.ledger import Ledger
from flatout.plan import Plan
from flatout.report import Report, Standing, TechniqueRow, plan_file
from flatout.runners.mock import DISCOVERY, MockProgram, MockRunner, MockSession, MockTechnique
from flatout.search import final
from flatout.search.options import SearchOptions
from flatout.search.progress import Phase, Progress
from flatout.search.prove import prove
from flatout.technique import Effect
from flatout.trial import Call, State

from .played import GPU_HOST, PLANTED, play, workload


def row(report: Report, name: str) -> TechniqueRow:
    return next(technique for technique in report.techniques if technique.name == name)


def one(technique: MockTechnique, **program: object) -> MockProgram:
    return MockProgram(techniques={"it": technique}, **program)  # type: ignore[arg-type]


def test_planted_gains_are_found_and_proved(tmp_path):
    report = play(tmp_path, MockProgram(techniques=PLANTED))
    assert report.state == "finished"
    assert set(report.plan.names) == {"bf16", "sdpa", "compile", "fused_optimizer"}
    truth = 1 / (0.4 * 0.8 * 0.7 * 0.95)
    assert report.low < truth < report.high
    assert report.high / report.low < 1.1
    assert row(report, "tf32").standing is Standing.NO_GAIN
    assert "bf16" in row(report, "tf32").reason
    assert "faster" in report.conclusion
    assert "99% confidence" in report.conclusion
    assert report.next_command.startswith("flatout run --plan ")
    for name, factor in (("bf16", 0.4), ("sdpa", 0.8), ("compile", 0.7), ("fused_optimizer", 0.95)):
        assert row(report, name).share == pytest.approx(1 / factor, rel=0.03)
        assert row(report, name).by_hand == f"{name}()"
    assert report.compile.break_even_steps == pytest.approx(20 / (0.05 - 0.05 / truth), rel=0.2)


def test_plan_order_is_the_catalogues(tmp_path):
    report = play(tmp_path, MockProgram(techniques=PLANTED))
    assert list(report.plan.names) == [name for name in PLANTED if name in report.plan.names]


def test_what_a_better_one_eclipses_is_tried_last(tmp_path):
    own = replace(PLANTED["tf32"], slot="", eclipsed_by=("bf16",))
    small = {name: replace(PLANTED[name], start_seconds=0.0) for name in ("sdpa", "fused_optimizer")}
    program = MockProgram(
        techniques={"tf32": own, **small, "bf16": PLANTED["bf16"], "compile": PLANTED["compile"]},
        interactions={frozenset(("bf16", "tf32")): 1.0 / 0.6},
    )
    report = play(tmp_path, program)
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        order = [event.data["order"] for event in ledger.events(1, "order")]
    assert order[0][0] == "bf16" and order[0][-1] == "tf32"
    assert set(report.plan.names) == {"bf16", "sdpa", "compile", "fused_optimizer"}
    (tmp_path / "slow").mkdir()
    slow = replace(program, techniques={**program.techniques, "bf16": MockTechnique(factor=0.9)})
    play(tmp_path / "slow", slow)
    with Ledger(tmp_path / "slow" / "ledger.sqlite", writable=False) as ledger:
        assert ledger.events(1, "order")[0].data["order"][0] == "tf32"


@pytest.mark.parametrize("seed", range(40))
def test_placebos_claim_nothing(tmp_path, seed):
    placebos = {f"placebo{i}": MockTechnique(gradients_db=None) for i in range(5)}
    program = MockProgram(
        techniques=placebos, noise=0.02, correlation=0.7, drift=0.05, spike_chance=0.03, process_noise=0.003
    )
    report = play(tmp_path, program, seed=seed)
    assert not report.plan
    assert report.conclusion.startswith("Nothing to change")
    assert report.ratio is None


@pytest.mark.parametrize("seed", range(5))
def test_a_gain_of_three_percent_is_found(tmp_path, seed):
    report = play(tmp_path, one(MockTechnique(factor=1 / 1.03)), seed=seed)
    assert report.plan.names == ("it",)
    assert report.ratio == pytest.approx(1.03, rel=0.01)


def test_a_gain_that_does_not_matter_is_not_taken(tmp_path):
    report = play(tmp_path, one(MockTechnique(factor=1 / 1.004), noise=0.001, process_noise=0.0, drift=0.0))
    assert not report.plan
    assert row(report, "it").standing is Standing.NO_GAIN


def test_a_loss_is_not_taken(tmp_path):
    program = MockProgram(techniques={"slow": MockTechnique(factor=1.3), "same": MockTechnique()})
    report = play(tmp_path, program)
    assert not report.plan
    assert "slower" in row(report, "slow").reason


def test_a_machine_too_noisy_says_that_it_cannot_tell(tmp_path):
    program = one(MockTechnique(factor=0.97), noise=0.8, correlation=0.9, spike_chance=0.3)
    report = play(tmp_path, program)
    assert not report.plan
    assert "cannot tell" in row(report, "it").reason
    assert "too noisy" in report.conclusion


REFUSALS = [
    (MockTechnique(factor=0.5, refuses="sparse gradients"), Standing.REFUSED, "sparse gradients"),
    (
        MockTechnique(factor=0.5, inactive="no kernel of its kind"),
        Standing.REFUSED,
        "no kernel of its kind",
    ),
    (MockTechnique(factor=0.5, fails="OutOfMemory"), Standing.FAILED, "ended the program"),
    (MockTechnique(factor=0.5, fails="ProgramCrashed"), Standing.FAILED, "ended the program"),
    (MockTechnique(factor=0.5, gradients_db=12.0), Standing.REFUSED, "gradients agree to 12 dB"),
    (MockTechnique(factor=0.5, missing=("head.weight",)), Standing.REFUSED, "head.weight"),
    (MockTechnique(factor=0.5, nan_loss_from=5), Standing.REFUSED, "loss becomes nan at step 5"),
    (
        MockTechnique(factor=0.5, loss_shift_per_step=0.02),
        Standing.REFUSED,
        "above the untouched program's",
    ),
    (MockTechnique(factor=0.5, unfit="needs a GPU"), Standing.UNFIT, "needs a GPU"),
    (MockTechnique(factor=0.5, recompiles_per_step=0.5), Standing.REFUSED, "recompiles"),
]


@pytest.mark.parametrize(("technique", "standing", "reason"), REFUSALS)
@pytest.mark.parametrize("company", [False, True], ids=["alone", "among others"])
def test_what_is_wrong_is_refused_for_its_reason(tmp_path, technique, standing, reason, company):
    others = {"good": MockTechnique(factor=0.8), "same": MockTechnique()} if company else {}
    report = play(tmp_path, MockProgram(techniques={"it": technique, **others}))
    assert report.plan.names == (("good",) if company else ())
    assert row(report, "it").standing is standing
    assert reason in row(report, "it").reason
    if standing is not Standing.UNFIT:
        assert "it" in [key.split(":")[-1].split("~")[0] for key in (trial.key for trial in report.trials)]


def test_unfit_is_a_skipped_trial_with_its_reason(tmp_path):
    report = play(tmp_path, one(MockTechnique(unfit="needs a GPU")))
    trial = next(trial for trial in report.trials if trial.key == "skip:it")
    assert trial.state is State.SKIPPED
    assert "needs a GPU" in trial.reason
    assert report.conclusion.startswith("Nothing to change: no technique applies")


def test_what_is_there_already_is_named(tmp_path):
    program = one(MockTechnique(), discovery=replace(DISCOVERY, already={"it": "autocast bfloat16"}))
    report = play(tmp_path, program)
    assert row(report, "it").standing is Standing.ALREADY
    assert "it (autocast bfloat16)" in report.conclusion
    assert report.already == {"it": "autocast bfloat16"}


def test_exact_techniques_must_be_exact(tmp_path):
    exact = MockTechnique(factor=0.5, effect=Effect.EXACT, gradients_db=None)
    inexact = MockTechnique(factor=0.5, effect=Effect.EXACT, gradients_db=120.0)
    report = play(tmp_path, MockProgram(techniques={"exact": exact, "inexact": inexact}))
    assert report.plan.names == ("exact",)
    assert "must give equal ones" in row(report, "inexact").reason


def test_other_draws_are_judged_with_the_randomness_off(tmp_path):
    redraws = MockTechnique(factor=0.7, effect=Effect.REDRAW, gradients_db=90.0, redraws_db=1.0)
    broken = MockTechnique(factor=0.6, effect=Effect.REDRAW, gradients_db=5.0, redraws_db=1.0)
    discovery = replace(DISCOVERY, random=True)
    report = play(tmp_path, MockProgram(techniques={"good": redraws, "bad": broken}, discovery=discovery))
    assert report.plan.names == ("good",)
    assert "randomness off" in row(report, "good").guard_note
    assert "randomness off" in row(report, "bad").reason
    assert {"still:baseline", "still:good", "still:bad"} <= {trial.key for trial in report.trials}


def test_without_dropout_other_gradients_are_simply_wrong(tmp_path):
    wrong = MockTechnique(factor=0.7, effect=Effect.REDRAW, gradients_db=90.0, redraws_db=1.0)
    report = play(tmp_path, one(wrong))
    assert not report.plan
    assert not any(trial.key.startswith("still:") for trial in report.trials)


def test_a_program_that_is_not_reproducible_is_not_judged_by_gradients(tmp_path):
    technique = MockTechnique(factor=0.7, gradients_db=80.0)
    report = play(tmp_path, one(technique, again_db=8.0))
    assert report.plan.names == ("it",)
    assert "cannot be judged" in report.guard_note
    assert "cannot judge all" in report.conclusion
    assert report.noise.gradients_db == 8.0
    assert report.noise.losses_equal is False


def test_recompiling_without_end_is_tried_with_dynamic_shapes(tmp_path):
    technique = MockTechnique(factor=0.9, recompiles_per_step=0.5, variant_factor=0.7)
    for company in ({}, {"other": MockTechnique()}):
        folder = tmp_path / str(len(company))
        folder.mkdir()
        report = play(folder, MockProgram(techniques={"compile": technique, **company}))
        assert report.plan.key == "compile(dynamic=True)"
        assert "recompiles" in report.conclusion
        assert report.compile.recompiles >= 8


def test_recompiling_without_end_and_without_a_way_out(tmp_path):
    report = play(tmp_path, MockProgram(techniques={"compile": MockTechnique(recompiles_per_step=0.5)}))
    assert not report.plan
    assert report.compile.refused
    assert "compile refused" in report.conclusion


def test_a_candidate_rejected_early_is_tried_again_when_the_plan_has_grown(tmp_path):
    # worth nothing before `other` is there
    program = MockProgram(
        techniques={"it": MockTechnique(), "other": MockTechnique(factor=0.9)},
        interactions={frozenset({"it", "other"}): 0.8},
    )
    options = SearchOptions()
    report = play(tmp_path, program, options=options)
    assert set(report.plan.names) == {"it", "other"}


def test_what_took_anothers_place_last_has_a_share_of_its_own(tmp_path):
    program = MockProgram(
        techniques={
            "rival": MockTechnique(factor=0.6, slot="one"),
            "it": MockTechnique(factor=0.65, slot="one"),
            "other": MockTechnique(factor=0.8),
        },
        interactions={frozenset({"it", "other"}): 0.8},
    )
    report = play(tmp_path, program, options=SearchOptions(budget_seconds=3600.0))
    assert set(report.plan.names) == {"it", "other"}
    assert row(report, "it").share == pytest.approx(1.0 / (0.65 * 0.8), rel=0.02)


def test_a_script_edited_meanwhile_is_not_what_the_plan_was_proved_for(tmp_path):
    program = one(MockTechnique(factor=0.7))
    runner = MockRunner(program)
    script = workload(tmp_path).cwd + "/train.py"
    before = file_sha256(Path(script))
    runner.before = lambda _what, _session: Path(script).write_text("print('edited')\n") and None
    report = play(tmp_path, program, runner=runner)
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        planfile = plan_file(ledger, report.search_id)
    assert planfile.script == script
    assert planfile.script_sha256 == before != file_sha256(Path(script))


def test_a_last_proof_that_cannot_tell_is_said(tmp_path, monkeypatch):
    def unsure(*args):
        return replace(prove(*args), call=Call.UNKNOWN, reason="noise hides gains under about 40%")

    monkeypatch.setattr(final, "prove", unsure)
    report = play(tmp_path, one(MockTechnique(factor=0.7)))
    assert report.plan.names == ("it",)
    assert "not proved once more" in report.conclusion
    assert any("noise hides gains" in note for note in report.notes)


def test_what_does_not_fit_side_by_side_takes_turns(tmp_path):
    discovery = replace(DISCOVERY, device="cuda")
    program = one(
        MockTechnique(factor=0.7), peak_bytes=100 << 30, device_bytes=140 << 30, discovery=discovery
    )
    report = play(tmp_path, program, host=GPU_HOST)
    assert report.plan.names == ("it",)
    assert {verdict.method for verdict in report.verdicts} == {"alternating fresh processes"}
    assert any("do not fit" in note for note in report.notes)
    assert report.low < 1 / 0.7 < report.high


@pytest.mark.parametrize(("technique", "standing", "reason"), REFUSALS)
def test_what_is_wrong_is_refused_also_where_processes_take_turns(tmp_path, technique, standing, reason):
    discovery = replace(DISCOVERY, device="cuda")
    program = one(technique, peak_bytes=100 << 30, device_bytes=140 << 30, discovery=discovery)
    report = play(tmp_path, program, host=GPU_HOST)
    assert not report.plan
    assert row(report, "it").standing is standing
    assert reason in row(report, "it").reason


def test_other_draws_are_no_fault_where_processes_take_turns(tmp_path):
    discovery = replace(DISCOVERY, device="cuda", random=True)
    technique = MockTechnique(factor=0.5, effect=Effect.REDRAW, gradients_db=80.0, redraws_db=1.0)
    program = one(technique, peak_bytes=100 << 30, device_bytes=140 << 30, discovery=discovery)
    report = play(tmp_path, program, host=GPU_HOST)
    assert report.plan.names == ("it",)
    assert "randomness off" in row(report, "it").guard_note


@pytest.mark.parametrize(("memory", "plan"), [(1.6, ("small", "large")), (2.6, ("small",))])
def test_what_is_screened_and_fits_alone_is_not_out_of_memory(tmp_path, memory, plan):
    program = MockProgram(
        techniques={
            "small": MockTechnique(factor=0.7),
            "large": MockTechnique(factor=0.5, memory_factor=memory),
        },
        device_bytes=int(2.3 * (1 << 30)),
    )
    report = play(tmp_path, program, options=SearchOptions(budget_seconds=3600.0))
    assert report.plan.names == plan
    large = row(report, "large")
    assert (large.screened is None) == (large.standing is Standing.FAILED) == ("large" not in plan)


def test_nothing_else_lives_while_processes_alternate(tmp_path):
    """The untouched program, idle since a better plan was found, takes memory too."""
    program = MockProgram(
        techniques={
            "small": MockTechnique(factor=0.5),
            "large": MockTechnique(factor=0.7, memory_factor=1.6),
        },
        device_bytes=int(2.5 * (1 << 30)),
    )
    report = play(tmp_path, program, options=SearchOptions(budget_seconds=3600.0))
    assert report.plan.names == ("small", "large")


def test_what_does_not_fit_alone_leaves_the_others_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setattr("flatout.search.train._to_screen", lambda bench, climb, choices: set())
    program = MockProgram(
        techniques={
            "huge": MockTechnique(factor=0.5, memory_factor=2.6, expected=2.0),
            "small": MockTechnique(factor=0.7),
        },
        device_bytes=int(2.3 * (1 << 30)),
    )
    report = play(tmp_path, program, options=SearchOptions(budget_seconds=3600.0))
    assert report.plan.names == ("small",)
    assert row(report, "huge").standing is Standing.FAILED
    assert {verdict.method for verdict in report.verdicts} == {"resident pair"}


def test_what_turns_out_not_to_fit_side_by_side_takes_turns(tmp_path):
    # on a CPU the need is not known beforehand: the second process dies
    program = one(MockTechnique(factor=0.7), peak_bytes=40 << 30, device_bytes=60 << 30)
    report = play(tmp_path, program)
    assert report.plan.names == ("it",)
    assert any("do not fit" in note for note in report.notes)
    assert any(trial.error == "OutOfMemory" for trial in report.trials)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("growth", [0.0005, 0.002, 0.02])
def test_steps_that_get_longer_are_compared_at_the_same_place(tmp_path, growth, seed):
    # the untouched process is always further on: a candidate compared as it stands would seem faster
    program = MockProgram(
        techniques={"same": MockTechnique(), "good": MockTechnique(factor=0.8)}, growth=growth
    )
    report = play(tmp_path, program, seed=seed, options=SearchOptions(budget_seconds=1200.0))
    assert report.plan.names == ("good",)
    assert report.ratio == pytest.approx(1 / 0.8, rel=0.01)


@pytest.mark.parametrize("steps", [12, 25, 60, 200])
def test_short_programs_are_measured_over_several_runs(tmp_path, steps):
    report = play(tmp_path, one(MockTechnique(factor=0.5), total_steps=steps))
    assert report.plan.names == ("it",)
    assert report.ratio == pytest.approx(2.0, rel=0.15)


def test_a_short_program_through_a_whole_search(tmp_path):
    report = play(tmp_path, MockProgram(techniques=PLANTED, total_steps=14), options=SearchOptions(
        budget_seconds=7200.0
    ))  # fmt: skip
    assert set(report.plan.names) == {"bf16", "sdpa", "compile", "fused_optimizer"}


@pytest.mark.parametrize("steps", [1, 4])
def test_too_few_steps(tmp_path, steps):
    with pytest.raises(errors.TooFewSteps, match=f"after {steps} training steps") as caught:
        play(tmp_path, one(MockTechnique(), total_steps=steps))
    assert caught.value.hint


@pytest.mark.parametrize("late", [True, False])
def test_a_second_run_that_the_budget_cuts_off_is_not_the_programs_failure(tmp_path, late):
    """Its first step may come later than the budget allows; where time was left it hangs."""
    options = SearchOptions(budget_seconds=60.0)
    program = one(MockTechnique())
    runner = MockRunner(program)

    def cut_off(what: str, session: MockSession) -> None:
        if what == "advance" and session._request.key.startswith("again"):
            runner.pass_time(60.0 if late else 1.0)
            session._end(State.FAILED, "it ran on for 6 s without one training step", "Hung")

    runner.before = cut_off
    if late:
        report = play(tmp_path, program, options=options, runner=runner)
        assert report.plan == Plan()
        assert any("no time for a second unchanged run" in note for note in report.notes)
    else:
        with pytest.raises(errors.Hung) as caught:
            play(tmp_path, program, options=options, runner=runner)
        assert "a second run of the untouched program failed" in caught.value.message


@pytest.mark.parametrize("late", [True, False])
def test_a_candidate_that_the_budget_cuts_off_has_not_failed(tmp_path, late):
    program = one(MockTechnique(factor=0.5))
    runner = MockRunner(program)

    def cut_off(what: str, session: MockSession) -> None:
        if what == "advance" and session._request.plan:
            runner.pass_time(1000.0 if late else 1.0)
            session._end(State.FAILED, "it ran on for 6 s without one training step", "Hung")

    runner.before = cut_off
    report = play(tmp_path, program, options=SearchOptions(budget_seconds=600.0), runner=runner)
    found = row(report, "it")
    assert found.standing is (Standing.NOT_TRIED if late else Standing.FAILED)
    assert ("budget ended" if late else "without one training step") in found.reason
    assert report.conclusion.startswith("Nothing proved: the budget ended" if late else "Nothing to change")


BASELINE_FAILURES = [
    "ProgramCrashed",
    "NeverStepped",
    "NeedsInput",
    "WroteTooMuch",
    "Hung",
    "OutOfMemory",
    "DetachedProgram",
    "AgentDidNotEnter",
    "TorchUnsupported",
]


@pytest.mark.parametrize("name", BASELINE_FAILURES)
def test_the_untouched_programs_own_failure_ends_the_search_by_its_name(tmp_path, name):
    program = one(MockTechnique(), fails=name, fails_at=0, child_error="ValueError: no data")
    with pytest.raises(getattr(errors, name)) as caught:
        play(tmp_path, program)
    assert caught.value.child_error == "ValueError: no data"
    assert caught.value.hint
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        from flatout.report import build_report

        report = build_report(ledger, 1)
    assert report.state == "failed"
    assert report.error == name
    assert report.child_error == "ValueError: no data"
    assert report.conclusion == caught.value.message
    assert [trial.state for trial in report.trials] == [State.FAILED]


def test_a_crash_after_some_steps_is_still_the_programs_own(tmp_path):
    with pytest.raises(errors.ProgramCrashed):
        play(tmp_path, one(MockTechnique(), fails="ProgramCrashed", fails_at=10))


def test_only_and_without(tmp_path):
    program = MockProgram(techniques=PLANTED)
    report = play(tmp_path, program, options=SearchOptions(only=("sdpa", "compile"), without=("compile",)))
    assert report.plan.names == ("sdpa",)
    assert row(report, "bf16").standing is Standing.NOT_TRIED


def test_an_unknown_technique_is_a_usage_error(tmp_path):
    with pytest.raises(errors.UsageError, match="bf17") as caught:
        play(tmp_path, MockProgram(techniques=PLANTED), options=SearchOptions(only=("bf17",)))
    assert "bf16" in caught.value.hint


@pytest.mark.parametrize("budget", [15, 30, 60, 90, 120, 200])
def test_the_budget_is_kept(tmp_path, budget):
    report = play(tmp_path, MockProgram(techniques=PLANTED), options=SearchOptions(budget_seconds=budget))
    assert report.elapsed_seconds <= max(budget, 25) + 5
    if report.plan:
        assert report.ratio is not None
    else:
        assert "budget" in report.conclusion
    if budget >= 90:
        assert "bf16" in report.plan.names


def test_a_larger_budget_never_ends_worse(tmp_path):
    ratios = []
    for budget in (60, 120, 240):
        folder = tmp_path / str(budget)
        folder.mkdir()
        options = SearchOptions(budget_seconds=budget)
        ratios.append(play(folder, MockProgram(techniques=PLANTED), options=options).ratio or 1.0)
    assert ratios[0] <= ratios[1] * 1.02
    assert ratios[1] <= ratios[2] * 1.02


def test_a_gpt_on_one_gpu_within_seven_minutes(tmp_path):
    techniques = {
        "tf32": MockTechnique(factor=0.45, effect=Effect.APPROXIMATE, gradients_db=45.0),
        "bf16": MockTechnique(factor=0.37, effect=Effect.APPROXIMATE, gradients_db=25.0),
        "sdpa": MockTechnique(factor=0.75),
        "compile": MockTechnique(factor=0.5, start_seconds=50.0),
        "fused_optimizer": MockTechnique(factor=0.93),
    }
    program = MockProgram(
        step_seconds=0.285,
        start_seconds=12.0,
        techniques=techniques,
        interactions={frozenset({"tf32", "bf16"}): 1 / 0.45},
        noise=0.003,
        drift=0.005,
        spike_chance=0.002,
        discovery=replace(DISCOVERY, device="cuda"),
        peak_bytes=20 << 30,
    )
    report = play(tmp_path, program, host=GPU_HOST, options=SearchOptions(budget_seconds=420.0))
    assert set(report.plan.names) == {"bf16", "sdpa", "compile", "fused_optimizer"}
    assert report.elapsed_seconds < 420


@pytest.mark.parametrize("step", [5.0, 30.0, 180.0])
def test_slow_steps_end_in_a_reasoned_verdict_soon(tmp_path, step):
    program = MockProgram(step_seconds=step, techniques=PLANTED, drift=0.0, warmup_factor=1.2)
    report = play(tmp_path, program)
    assert report.elapsed_seconds < max(600, 13 * step)
    if step == 180.0:
        assert not report.plan
        assert "budget" in report.conclusion
        assert "needs about" in row(report, "bf16").reason
    if step == 5.0:
        assert "bf16" in report.plan.names


def test_fast_steps(tmp_path):
    program = MockProgram(step_seconds=0.001, techniques={"good": MockTechnique(factor=0.9)}, drift=0.0)
    assert play(tmp_path, program).plan.names == ("good",)


def test_what_runs_alone_but_not_beside_its_like_takes_turns(tmp_path):
    class Alone(MockSession):
        """Binds a port: a second one fails."""

        def _step_may_fail(self) -> None:
            super()._step_may_fail()
            if len(self._runner.live) > 1 and self is self._runner.live[-1]:
                self._end(State.FAILED, "address already in use", "ProgramCrashed")

    class Runner(MockRunner):
        def start(self, request, tell=lambda _: None):  # type: ignore[no-untyped-def]
            self.requests.append(request)
            self.live.append(Alone(self, request))
            return self.live[-1]

    program = MockProgram(techniques={"good": MockTechnique(factor=0.6)})
    report = play(tmp_path, program, runner=Runner(program))
    assert report.plan.names == ("good",)
    assert any("address already in use" in note for note in report.notes)


def test_progress_is_told(tmp_path):
    told: list[Progress] = []
    play(tmp_path, MockProgram(techniques=PLANTED), tell=told.append)
    assert [phase for phase in Phase if phase in {one.phase for one in told}] == [
        phase for phase in Phase if phase is not Phase.QUALITY
    ]
    assert all(a.elapsed_seconds <= b.elapsed_seconds for a, b in itertools.pairwise(told))
    assert told[-1].phase is Phase.DONE
    assert told[-1].done == told[-1].total == len(PLANTED)
    assert told[-1].best_ratio == pytest.approx(4.7, rel=0.05)
    assert 10 < sum(one.milestone for one in told) < 30


@pytest.mark.parametrize("after", [0, 1, 2, 5, 9, 20, 40, 80, 120, 160])
def test_ctrl_c_keeps_the_best_proved_so_far_and_leaves_no_process(tmp_path, after):
    program = MockProgram(techniques=PLANTED)
    runner = MockRunner(program)
    calls = 0

    def interrupt(_what: str, _session: MockSession) -> None:
        nonlocal calls
        calls += 1
        if calls == after + 1:
            raise KeyboardInterrupt

    runner.before = interrupt
    report = play(tmp_path, program, runner=runner)
    assert not runner.live
    if calls <= after:
        assert report.state == "finished"
        return
    assert report.state == "interrupted"
    assert report.conclusion.startswith("Interrupted")
    if report.plan:
        assert report.ratio is not None
    resumed = play(tmp_path, program)
    assert resumed.search_id == report.search_id
    assert resumed.state == "finished"
    assert set(resumed.plan.names) == {"bf16", "sdpa", "compile", "fused_optimizer"}


def test_a_finished_search_is_not_resumed(tmp_path):
    program = MockProgram(techniques=PLANTED)
    assert play(tmp_path, program).search_id == 1
    assert play(tmp_path, program).search_id == 2


def test_fresh_starts_anew(tmp_path):
    program = MockProgram(techniques=PLANTED)
    runner = MockRunner(program)

    def interrupt(_what: str, _session: MockSession) -> None:
        if len(runner.requests) == 4:
            raise KeyboardInterrupt

    runner.before = interrupt
    play(tmp_path, program, runner=runner)
    assert play(tmp_path, program, options=SearchOptions(fresh=True)).search_id == 2


def test_an_edited_script_is_not_resumed(tmp_path):
    program = MockProgram(techniques=PLANTED)
    runner = MockRunner(program)

    def interrupt(_what: str, _session: MockSession) -> None:
        if len(runner.requests) == 4:
            raise KeyboardInterrupt

    runner.before = interrupt
    play(tmp_path, program, runner=runner)
    (tmp_path / "model.py").write_text("changed = True\n", encoding="utf-8")
    assert play(tmp_path, program).search_id == 2


def test_searches_are_deterministic(tmp_path):
    plans = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        report = play(folder, MockProgram(techniques=PLANTED), seed=3)
        plans.append((report.plan, report.ratio, [verdict.call for verdict in report.verdicts]))
    assert plans[0] == plans[1]
    assert Call.BETTER in plans[0][2]


def test_every_session_has_the_same_seed_and_knows_the_discovery(tmp_path):
    runner = MockRunner(MockProgram(techniques=PLANTED))
    play(tmp_path, runner.program, runner=runner, options=SearchOptions(seed=7))
    assert {request.seed for request in runner.requests} == {7}
    assert runner.requests[0].discovery is None
    assert runner.requests[0].reference_role == "save"
    assert all(request.discovery == DISCOVERY for request in runner.requests[1:])
    assert {request.reference_role for request in runner.requests[1:]} == {"compare"}
    assert not runner.live


@pytest.mark.parametrize("seed", range(6))
def test_fifteen_placebos_on_a_machine_whose_processes_differ(tmp_path, seed):
    # two unchanged processes differ by more than their blocks explain: both are then taken to the same step
    program = MockProgram(
        techniques={f"placebo{i}": MockTechnique(gradients_db=None) for i in range(15)},
        noise=0.02,
        correlation=0.7,
        process_noise=0.006,
    )
    assert not play(tmp_path, program, seed=seed, options=SearchOptions(budget_seconds=1800.0)).plan
