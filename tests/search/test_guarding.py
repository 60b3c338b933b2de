"""When the guard's own trials are run in a search, and what comes of them; over played programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.ledger import Ledger
from flatout.plan import Plan
from flatout.runners import GuardTrial, Request, SessionEnded
from flatout.runners.mock import DISCOVERY, MockProgram, MockRunner, MockSession, MockTechnique
from flatout.search import final, guarding, judge
from flatout.search.bench import Bench
from flatout.search.options import SearchOptions
from flatout.search.standing import Standing
from flatout.technique import Effect
from flatout.trial import Block, GuardReport, Outcome, State
from guard.told import facts, gradients, model, row, update

from .played import GPU_HOST, HOST, play

Events = list[dict[str, Any]]


class GuardedSession(MockSession):
    """A played process that tells what its part in the guard would see."""

    def advance(self, steps: int) -> Block:
        runner = self._runner
        assert isinstance(runner, GuardedRunner)
        if runner.dies(self._request):
            died = "it failed on its own before its first step: ended by signal 11 (SIGSEGV)"
            self.kill()
            raise SessionEnded(
                Outcome(state=State.FAILED, reason=died, error="ProgramCrashed", exit_code=-11)
            )
        return super().advance(steps)

    def _outcome(self, state: State, reason: str, error: str = "") -> Outcome:
        outcome = super()._outcome(state, reason, error)
        guard = self._request.guard
        runner = self._runner
        assert isinstance(runner, GuardedRunner)
        if guard is None or not self._steps:
            return outcome
        if guard.role == "truth" and guard.precision in runner.no_truth:
            return replace(outcome, state=State.FAILED, reason="no such operator", guarding=())
        of = "baseline" if guard.role in ("baseline", "truth") else guard.role
        events = [gradients(of, [row()], step) for step in (1, 2, 5, 6, 8, 9)]
        events += [facts(1), facts(2), model(), update(1), update(2)]
        if guard.role in ("plan", "control"):
            events = runner.plant(self._request, events)
        return replace(outcome, guarding=tuple(events))


class GuardedRunner(MockRunner):
    """``plant`` changes what the trials of a plan tell."""

    guards = True

    def __init__(
        self,
        program: MockProgram,
        plant: Callable[[Request, Events], Events] = lambda _, events: events,
        no_truth: tuple[str, ...] = (),
        dies: Callable[[Request], bool] = lambda _: False,
        seed: int = 0,
    ) -> None:
        super().__init__(program, seed=seed)
        self.plant = plant
        self.no_truth = no_truth
        self.dies = dies

    def start(self, request: Request, tell: Callable[[str], None] = lambda _: None) -> MockSession:
        self.requests.append(request)
        session = GuardedSession(self, request)
        self.live.append(session)
        return session

    @property
    def guarded(self) -> list[str]:
        return [request.key for request in self.requests if request.guard is not None]


PROGRAM = MockProgram(
    techniques={
        "good": MockTechnique(factor=0.6, gradients_db=80.0),
        "sly": MockTechnique(factor=0.5, gradients_db=80.0),
    }
)
REFERENCE = ["guard:baseline", "guard:truth", "guard:again"]


def sly_loses_an_update(request: Request, events: Events) -> Events:
    """Nothing that the first step's gradients or the losses show."""
    if "sly" not in request.plan.names:
        return events
    return [*events[:-1], update(2, own_size=0.0, apart=1e-3, moved=False)]


def test_what_only_the_guards_own_trials_see_is_refused(tmp_path: Path) -> None:
    runner = GuardedRunner(PROGRAM, sly_loses_an_update)
    report = play(tmp_path, PROGRAM, runner=runner)
    assert report.plan.names == ("good",)
    sly = next(one for one in report.techniques if one.name == "sly")
    assert "layer.weight does not move" in sly.reason
    assert runner.guarded[:3] == REFERENCE
    assert set(runner.guarded[3:]) == {"guard:sly", "guard:good"}
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        events = ledger.events(1, "guarded")
        verdicts = ledger.verdicts(1)
    assert {event.data["plan"] for event in events} == {"good", "sly"}
    assert all(event.data["seconds"] > 0 for event in events)
    seen = verdicts["final:good"].guard_report
    assert seen is not None
    assert seen.complete
    assert seen.truth == "FP64"


def test_every_plan_that_is_accepted_is_guarded_once(tmp_path: Path) -> None:
    runner = GuardedRunner(PROGRAM)
    report = play(tmp_path, PROGRAM, runner=runner)
    assert set(report.plan.names) == {"good", "sly"}
    assert len(runner.guarded) == len(set(runner.guarded))
    assert f"guard:{report.plan.key}" in runner.guarded


def test_a_search_that_goes_on_asks_the_ledger(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    first = GuardedRunner(PROGRAM)

    def after_the_guard(what: str, session: MockSession) -> None:
        if len(first.guarded) >= 5:
            raise Killed

    first.before = after_the_guard
    with contextlib.suppress(Killed):
        play(tmp_path, PROGRAM, runner=first)
    second = GuardedRunner(PROGRAM)
    report = play(tmp_path, PROGRAM, runner=second)
    assert set(report.plan.names) == {"good", "sly"}
    assert not set(second.guarded) & set(REFERENCE)


def test_a_truth_that_fails_in_float64_is_made_in_float32(tmp_path: Path) -> None:
    runner = GuardedRunner(PROGRAM, no_truth=("float64",))
    report = play(tmp_path, PROGRAM, runner=runner)
    assert "guard:truth32" in runner.guarded
    assert report.guard is not None
    assert report.guard.truth == "FP32 without TF32 and autocast"


def test_where_there_is_no_truth_it_is_said(tmp_path: Path) -> None:
    runner = GuardedRunner(PROGRAM, no_truth=("float64", "float32"))
    report = play(tmp_path, PROGRAM, runner=runner)
    assert report.guard is not None
    assert any("there is no truth to compare with" in one for one in report.guard.unchecked)


def test_a_budget_that_does_not_allow_it_is_said(tmp_path: Path) -> None:
    # so large a gain that one pair of processes is enough
    slow = replace(PROGRAM, start_seconds=60.0, techniques={"good": MockTechnique(factor=0.4)})
    runner = GuardedRunner(slow)
    report = play(
        tmp_path, slow, runner=runner, options=SearchOptions(budget_seconds=260.0, only=("good",))
    )
    assert report.plan.names == ("good",)
    assert report.guard is None or not report.guard.complete
    assert "could not judge it: " in report.guard_note
    assert "the guard's own trials need about" in report.guard_note
    assert runner.guarded == []


def without_time_in_the_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The climb's own look at the guard has no time; the last proof's has."""
    unchecked = GuardReport(passed=None, unchecked=("the budget has no time for them",))
    monkeypatch.setattr(judge, "guard_plan", lambda *_, **__: unchecked)


def test_a_plan_first_guarded_before_the_last_proof_is_judged_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_time_in_the_climb(monkeypatch)
    report = play(tmp_path, PROGRAM, runner=GuardedRunner(PROGRAM), options=SearchOptions(only=("good",)))
    assert report.plan.names == ("good",)
    assert report.guard is not None
    assert report.guard.passed
    assert "could not judge" not in report.guard_note
    assert "cannot judge" not in report.conclusion


def test_a_plan_refused_before_the_last_proof_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_time_in_the_climb(monkeypatch)
    runner = GuardedRunner(PROGRAM, sly_loses_an_update)
    report = play(tmp_path, PROGRAM, runner=runner, options=SearchOptions(only=("sly",)))
    assert not report.plan
    sly = next(one for one in report.techniques if one.name == "sly")
    assert sly.standing == "refused"
    assert "layer.weight does not move" in sly.reason


def drawing(gradients_db: float, redraws_db: float) -> MockProgram:
    """A program with dropout, and a technique that draws other numbers."""
    redraw = MockTechnique(
        factor=0.4, effect=Effect.REDRAW, gradients_db=gradients_db, redraws_db=redraws_db
    )
    return MockProgram(techniques={"it": redraw}, discovery=replace(DISCOVERY, random=True))


def test_the_short_look_without_randomness_is_not_taken_for_a_guard_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The climb has no time for the guard's own trials, the last proof has."""
    without_time_in_the_climb(monkeypatch)
    program = drawing(gradients_db=80.0, redraws_db=1.0)
    report = play(tmp_path, program, runner=GuardedRunner(program))
    assert {"still:baseline", "still:it"} <= {trial.key for trial in report.trials}
    assert report.guard is not None
    assert report.guard.passed
    assert not any("could not be guarded" in one for one in report.guard.unchecked)


def test_a_guard_trial_that_died_is_not_taken_for_the_short_look(tmp_path: Path) -> None:
    program = drawing(gradients_db=80.0, redraws_db=1.0)
    runner = GuardedRunner(program, dies=lambda request: request.guard is not None and bool(request.plan))
    report = play(tmp_path, program, runner=runner)
    assert report.plan.names == ("it",)
    assert "gradients agree to 80 dB" in report.guard_note


@pytest.mark.parametrize(("still_db", "drawn_db", "taken"), [(5.0, -5.0, True), (-5.0, 5.0, False)])
def test_what_is_hopeless_is_told_without_the_other_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still_db: float, drawn_db: float, taken: bool
) -> None:
    unchecked = GuardReport(passed=None, unchecked=("the budget has no time for them",))
    monkeypatch.setattr(judge, "guard_plan", lambda *_, **__: unchecked)
    monkeypatch.setattr(final, "guard_plan", lambda *_, **__: unchecked)
    program = drawing(gradients_db=still_db, redraws_db=drawn_db)
    report = play(tmp_path, program, runner=GuardedRunner(program))
    assert bool(report.plan) is taken


LOW = MockProgram(
    techniques={
        "bf16": MockTechnique(factor=0.5, effect=Effect.APPROXIMATE, gradients_db=25.0, expected=2.0),
        "sdpa": MockTechnique(factor=0.8, gradients_db=80.0, expected=1.5),
    }
)
ONLY_BF16 = SearchOptions(only=("bf16",))


def flips(plan: float, control: Callable[[Request], float] = lambda _: 1.0) -> Callable[..., Events]:
    """One parameter of many is so many times its truth, in one step."""

    def plant(request: Request, events: Events) -> Events:
        assert request.guard is not None
        slope = plan if request.guard.role == "plan" else control(request)
        rows = [row(f"experts.{number}.weight", db=40.0) for number in range(30)]
        off = [row("experts.30.weight", db=40.0, slope=slope)]
        return [
            {**event, "rows": rows + (off if event["step"] == 9 else [])}
            if event["what"] == "gradients"
            else event
            for event in events
        ]

    return plant


def test_what_rounding_alone_brings_is_not_refused(tmp_path: Path) -> None:
    runner = GuardedRunner(LOW, flips(1.1, lambda _: 0.94))
    report = play(tmp_path, LOW, runner=runner, options=ONLY_BF16)
    assert report.plan.names == ("bf16",)
    assert runner.guarded == [*REFERENCE, "guard:bf16", "guard:control:bf16"]
    control = next(request for request in runner.requests if request.key == "guard:control:bf16")
    assert control.guard is not None and not control.plan
    assert (control.guard.rounding, control.guard.precision, control.guard.draw) == ("bf16", "float64", 0)
    assert report.guard is not None and report.guard.complete
    assert "1 finding as the rounding of BF16 alone brings it (first: late (step 9): " in report.guard_note


def test_no_control_is_asked_where_there_is_nothing_to_excuse(tmp_path: Path) -> None:
    runner = GuardedRunner(LOW, flips(1.0))
    assert play(tmp_path, LOW, runner=runner, options=ONLY_BF16).plan.names == ("bf16",)
    assert runner.guarded == [*REFERENCE, "guard:bf16"]


def test_no_control_is_asked_where_rounding_is_no_excuse(tmp_path: Path) -> None:
    def lost_too(request: Request, events: Events) -> Events:
        return [*flips(1.1)(request, events)[:-1], update(2, own_size=0.0, apart=1e-3, moved=False)]

    runner = GuardedRunner(LOW, lost_too)
    assert not play(tmp_path, LOW, runner=runner, options=ONLY_BF16).plan
    assert not any("control" in key for key in runner.guarded)


def test_three_draws_without_the_like_refuse_it(tmp_path: Path) -> None:
    runner = GuardedRunner(LOW, flips(1.1))
    report = play(tmp_path, LOW, runner=runner, options=ONLY_BF16)
    assert not report.plan
    draws = [f"guard:control:bf16{draw}" for draw in ("", ":2", ":3")]
    assert runner.guarded[4:] == draws
    asked = [request.guard for request in runner.requests if request.guard and request.key in draws]
    assert [(one.draw, one.fewer_bits) for one in asked] == [(0, 0), (1, 3), (2, 3)]
    reason = next(one for one in report.techniques if one.name == "bf16").reason
    assert "rounding alone has no parameter off by more than 0" in reason
    second = GuardedRunner(LOW, flips(1.1, lambda request: 0.94 if request.key.endswith(":2") else 1.0))
    (tmp_path / "second").mkdir()
    assert play(tmp_path / "second", LOW, runner=second, options=ONLY_BF16).plan.names == ("bf16",)
    assert second.guarded[4:] == draws[:2]


def test_a_control_serves_all_plans_of_its_format(tmp_path: Path) -> None:
    runner = GuardedRunner(LOW, flips(1.1, lambda _: 0.94))
    assert play(tmp_path, LOW, runner=runner).plan.names == ("bf16", "sdpa")
    assert {"guard:bf16", "guard:bf16+sdpa"} < set(runner.guarded)
    assert [key for key in runner.guarded if "control" in key] == ["guard:control:bf16"]


def test_a_control_that_dies_is_made_in_float32_else_the_plan_is_not_taken(tmp_path: Path) -> None:
    def big(request: Request) -> bool:
        guard = request.guard
        return guard is not None and guard.role == "control" and guard.precision == "float64"

    runner = GuardedRunner(LOW, flips(1.1, lambda _: 0.94), dies=big)
    assert play(tmp_path, LOW, runner=runner, options=ONLY_BF16).plan.names == ("bf16",)
    controls = ["guard:control:bf16", "guard:control:bf16~2", "guard:control:bf16:fp32"]
    assert runner.guarded[4:] == controls

    (tmp_path / "second").mkdir()
    runner = GuardedRunner(LOW, flips(1.1), dies=lambda request: "control" in request.key)
    report = play(tmp_path / "second", LOW, runner=runner, options=ONLY_BF16)
    assert not report.plan
    reason = next(one for one in report.techniques if one.name == "bf16").reason
    assert reason.startswith("not taken: the rounding of BF16 alone may explain what the guard found, and ")
    assert "the control that could tell did not run (it failed on its own before its first step" in reason
    assert "Found: late (step 9): the gradient of experts.30.weight is 1.1 times" in reason


def test_a_plan_is_not_taken_where_the_budget_has_no_time_for_a_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "_control_seconds", lambda *_: 1e6)
    runner = GuardedRunner(LOW, flips(1.1))
    report = play(tmp_path, LOW, runner=runner, options=ONLY_BF16)
    assert not report.plan
    assert not any("control" in key for key in runner.guarded)
    reason = next(one for one in report.techniques if one.name == "bf16").reason
    assert "did not run (it needs about 1000000 s, and the budget has" in reason
    assert "s for it: a larger --budget allows it). Found: late (step 9)" in reason
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        assert not ledger.events(1, "guarded")  # it may be asked again


def test_nor_by_the_last_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_time_in_the_climb(monkeypatch)
    monkeypatch.setattr(guarding, "_control_seconds", lambda *_: 1e6)
    runner = GuardedRunner(LOW, flips(1.1))
    report = play(tmp_path, LOW, runner=runner, options=ONLY_BF16)
    assert not report.plan
    reason = next(one for one in report.techniques if one.name == "bf16").reason
    assert "not taken: the rounding of BF16 alone may explain" in reason


def test_what_the_first_draw_refuses_stays_so_where_no_other_can_run(tmp_path: Path) -> None:
    runner = GuardedRunner(LOW, flips(1.1), dies=lambda request: "control:bf16:" in request.key)
    report = play(tmp_path, LOW, runner=runner, options=ONLY_BF16)
    assert not report.plan
    reason = next(one for one in report.techniques if one.name == "bf16").reason
    assert "rounding alone has no parameter off by more than 0" in reason
    assert "not taken" not in reason


def test_the_second_try_of_a_control_has_the_time_that_the_first_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    bench: Any = SimpleNamespace(
        trials={}, left=lambda: 500.0 if tried else 3000.0, say=lambda *_: None, discovery=None
    )

    def told(_: Any, key: str, *__: Any) -> tuple[tuple[()], str]:
        tried.append(key)
        return (), "it died"

    monkeypatch.setattr(guarding, "_control_seconds", lambda *_: 1000.0)
    monkeypatch.setattr(guarding, "points_of", lambda _: guarding.POINTS)
    monkeypatch.setattr(guarding, "_told", told)
    assert guarding._control(bench, "bf16", 0, "float64", 0.0) == ((), "it died")
    assert tried == ["guard:control:bf16"]


class Room:
    """A bench whose memory holds ``most`` processes; the last ``ahead`` of those that live wait for their
    turn."""

    def __init__(self, most: int, names: list[str], ahead: int) -> None:
        self.most = most
        self.ended: list[str] = []
        self.live = [self._process(name) for name in names]
        self._waiting = self.live[len(names) - ahead :]
        self.ahead = SimpleNamespace(keep_only=self._keep_only, has=lambda _key: False, possible=True)
        self.aligned = False
        self.resident = True
        self.baseline = Outcome(state=State.COMPLETED)
        self.trials: dict[str, Any] = {}
        self.noted: list[Any] = []
        self.search = 1
        self.ledger = SimpleNamespace(events=lambda *_: self.noted)

    def note(self, kind: str, data: dict[str, Any]) -> None:
        self.noted.append(SimpleNamespace(kind=kind, data=data))

    def _process(self, name: str) -> Any:
        process = SimpleNamespace(alive=True, plan=() if name == "baseline" else (name,), timed=True)
        process.shown = lambda: self.baseline

        def close() -> None:
            process.alive = False
            self.ended.append(f"{name} closed")

        process.close = close
        process.name = name
        return process

    def clear(self) -> None:
        bench: Any = self
        Bench.clear(bench)

    def _keep_only(self) -> None:
        for process in self._waiting:
            process.alive = False
            self.ended.append(f"{process.name} killed")
        self._waiting = []

    def fits(self, *held: Any) -> bool:
        return len(held) <= self.most

    def say(self, *_: Any) -> None:
        pass


def test_what_waits_for_its_turn_leaves_before_what_is_warm() -> None:
    size = Outcome(state=State.COMPLETED)
    room: Any = Room(3, ["baseline", "best", "next"], ahead=1)
    guarding._make_room(room, [size])
    assert room.ended == ["next killed"]
    room = Room(2, ["baseline", "best", "next"], ahead=1)
    guarding._make_room(room, [size])
    assert room.ended == ["next killed", "baseline closed"]
    room = Room(4, ["baseline", "best", "next"], ahead=1)
    guarding._make_room(room, [size])
    assert not room.ended


DIED = Outcome(state=State.FAILED, error="OutOfMemory")


def told_in(
    room: Room, monkeypatch: pytest.MonkeyPatch, trial: GuardTrial, first: Outcome | None = None
) -> str:
    """Why a guard trial did not come to its end: ``first`` is what the ledger knows; else it dies, and
    comes to its end once more."""
    if first is not None:
        room.trials["guard:it"] = SimpleNamespace(outcome=first)
    walks = [Outcome(state=State.COMPLETED)] if first else [Outcome(state=State.COMPLETED), DIED]
    monkeypatch.setattr(guarding, "_start", lambda *_: None)
    monkeypatch.setattr(guarding, "_walk", lambda *_: walks.pop())
    bench: Any = room
    return guarding._told(bench, "guard:it", Plan(), trial)[1]


def test_a_trial_that_is_run_once_more_alone_kills_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(9, ["best", "next"], ahead=1)
    assert told_in(room, monkeypatch, GuardTrial(role="plan")) == ""
    assert room.ended == ["next killed", "best closed"]


def test_a_trial_that_died_with_nobody_beside_it_stays_so_in_a_search_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room(9, ["best", "next"], ahead=1)
    assert told_in(room, monkeypatch, GuardTrial(role="plan"), DIED) == "OutOfMemory"
    assert room.ended == []


def test_a_trial_that_was_to_run_once_more_does_so_in_a_search_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room(9, [], ahead=0)
    room.note("crowded", {"key": "guard:it"})
    assert told_in(room, monkeypatch, GuardTrial(role="plan"), DIED) == ""


@pytest.mark.parametrize(
    ("most", "aligned", "ended", "together"),
    [
        (6, False, [], 3),
        (5, False, ["next killed"], 3),
        (4, False, ["next killed", "baseline closed"], 3),
        (4, True, ["next killed"], 2),
    ],
)
def test_the_first_three_start_beside_what_has_to_stay(
    monkeypatch: pytest.MonkeyPatch, most: int, aligned: bool, ended: list[str], together: int
) -> None:
    room: Any = Room(most, ["baseline", "best", "next"], ahead=1)
    room.aligned = aligned
    monkeypatch.setattr(guarding, "_start", lambda *_: None)
    trials = {key: GuardTrial(role="baseline") for key in REFERENCE}
    assert len(guarding._start_together(room, trials)) == together
    assert room.ended == ended


def test_a_search_that_goes_on_asks_no_control_again(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    first = GuardedRunner(LOW, flips(1.1, lambda _: 0.94))

    def after_the_control(what: str, session: MockSession) -> None:
        if "guard:control:bf16" in first.guarded[:-1]:
            raise Killed

    first.before = after_the_control
    with contextlib.suppress(Killed):
        play(tmp_path, LOW, runner=first)
    second = GuardedRunner(LOW, flips(1.1, lambda _: 0.94))
    play(tmp_path, LOW, runner=second)
    assert "guard:control:bf16" not in second.guarded


def test_a_guard_trial_that_dies_beside_others_runs_once_more_alone(tmp_path: Path) -> None:
    """As where the memory is full and a driver gives up."""
    runner = GuardedRunner(PROGRAM, sly_loses_an_update, dies=lambda request: request.key == "guard:sly")
    alone: list[list[str]] = []

    def look(what: str, session: MockSession) -> None:
        if session._request.key == "guard:sly~2" and not alone:
            alone.append([one._request.key for one in runner.live if one is not session])

    runner.before = look
    report = play(tmp_path, PROGRAM, runner=runner, options=SearchOptions(only=("sly",)))
    assert runner.guarded.count("guard:sly~2") == 1
    assert alone == [[]]
    sly = next(one for one in report.techniques if one.name == "sly")
    assert "layer.weight does not move" in sly.reason


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_where_two_do_not_run_side_by_side_the_guards_trials_do_not_either(
    tmp_path: Path, device: str
) -> None:
    """Nobody's estimate of memory says so: it was seen when two took turns."""
    discovery = replace(DISCOVERY, device=device)
    program = replace(PROGRAM, device_bytes=int(1.5 * PROGRAM.peak_bytes), discovery=discovery)
    runner = GuardedRunner(program, sly_loses_an_update)
    report = play(tmp_path, program, runner=runner, host=GPU_HOST if device == "cuda" else HOST)
    assert set(runner.guarded) >= {*REFERENCE, "guard:sly"}
    sly = next(one for one in report.techniques if one.name == "sly")
    assert "layer.weight does not move" in sly.reason


def test_a_guard_trial_that_dies_is_no_refusal(tmp_path: Path) -> None:
    runner = GuardedRunner(PROGRAM, dies=lambda request: "guard:sly" in request.key)
    report = play(tmp_path, PROGRAM, runner=runner, options=SearchOptions(only=("sly",)))
    assert next(one for one in report.techniques if one.name == "sly").standing != "refused"
    assert report.plan.names == ("sly",)
    assert "the plan's guard trial: it failed on its own before its first step" in report.guard_note
    assert report.guard is None or report.guard.passed is None


def test_a_plan_known_to_be_right_is_not_given_up_for_one_that_nobody_looked_at(tmp_path: Path) -> None:
    program = replace(PROGRAM, start_seconds=12.0)
    left_out = 0
    for budget in range(90, 150, 6):
        folder = tmp_path / str(budget)
        folder.mkdir()
        runner = GuardedRunner(program)
        report = play(folder, program, runner=runner, options=SearchOptions(budget_seconds=float(budget)))
        if any(key not in REFERENCE for key in runner.guarded):
            assert f"guard:{report.plan.key}" in runner.guarded
            left_out += any(row.standing is Standing.NOT_TRIED for row in report.techniques)
    assert left_out
