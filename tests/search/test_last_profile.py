"""One profiled step of the final plan: taken once, and not at any price."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flatout.ledger import Ledger
from flatout.plan import Choice, Plan
from flatout.runners.mock import MockProgram, MockRunner, MockTechnique
from flatout.search.last_profile import profile_last
from flatout.trial import Profile, Work

from .played import play

PROFILE = Profile(
    wall_seconds=0.03,
    device_busy_seconds=0.02,
    work=(Work(operator="aten::mm", calls=4, seconds=0.02, inputs=(("float", (64, 64)),) * 2),),
    gaps={"python": 0.01},
    span_seconds=0.03,
    peaks={"float32": 1e11, "bytes": 1e10},
)


def program(**more):
    return MockProgram(techniques={"it": MockTechnique(factor=0.5)}, profile=PROFILE, **more)


def kinds(folder, kind):
    with Ledger(folder / "ledger.sqlite", writable=False) as ledger:
        return ledger.events(1, kind)


def test_the_plan_is_profiled_once_however_often_the_search_goes_on(tmp_path):
    play(tmp_path, program())
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_state(1, "interrupted")
    runner = MockRunner(program())
    report = play(tmp_path, program(), runner=runner)
    events = kinds(tmp_path, "profiled")
    assert [event.data["plan"] for event in events] == ["it"]
    assert runner.requests == []
    assert report.left.plan == "it"


def test_without_a_plan_no_process_is_profiled_again(tmp_path):
    play(tmp_path, MockProgram(techniques={"it": MockTechnique()}, profile=PROFILE))
    assert kinds(tmp_path, "profiled") == []


@pytest.mark.parametrize(
    ("alive", "step_seconds", "left", "taken"),
    [
        (True, 0.05, -3.0, True),
        (True, 60.0, 10.0, False),
        (True, 60.0, 200.0, True),
        (False, 0.05, 10.0, False),
        (False, 0.05, 40.0, True),
    ],
)
def test_it_may_cost_seconds_beyond_the_budget_but_no_start_and_no_minutes(
    alive, step_seconds, left, taken
):
    class Seat:
        plan = Plan(choices=(Choice(name="it"),))
        started = False

        def step_seconds(self):
            return step_seconds

        def warm(self):
            self.started = True
            return SimpleNamespace(profile=lambda: None, peek=lambda: None)

    notes = []
    seat = Seat()
    seat.alive = alive
    bench = SimpleNamespace(
        ledger=SimpleNamespace(events=lambda *_: []),
        search=1,
        left=lambda: left,
        start_seconds=lambda _: 20.0,
        note=lambda kind, data: notes.append((kind, data["reason"])),
        say=lambda *_: None,
    )
    profile_last(bench, seat)
    assert seat.started is taken
    assert ("no time was left" in notes[0][1]) is not taken
