"""The played runner follows from (seed, key) and behaves as the protocol says."""

from __future__ import annotations

import pytest

from flatout.plan import Choice, Plan
from flatout.runners import Request, SessionEnded
from flatout.runners.mock import DISCOVERY, MockProgram, MockRunner, MockTechnique
from flatout.stats import autocorrelation_time, median
from flatout.trial import State

UNTOUCHED = Plan()


def times(runner, key="a", plan=UNTOUCHED, steps=200):
    return runner.start(Request(key=key, plan=plan)).advance(steps).step_seconds


def test_same_seed_and_key_same_times():
    program = MockProgram()
    assert times(MockRunner(program, seed=1)) == times(MockRunner(program, seed=1))
    assert times(MockRunner(program, seed=1)) != times(MockRunner(program, seed=2))
    assert times(MockRunner(program, seed=1)) != times(MockRunner(program, seed=1), key="b")


def test_factors_and_interactions():
    program = MockProgram(
        techniques={"a": MockTechnique(factor=0.5), "b": MockTechnique(factor=0.8)},
        interactions={frozenset({"a", "b"}): 1.5},
        noise=0.001,
        drift=0.0,
    )
    plan = Plan(choices=(Choice(name="a"), Choice(name="b")))
    assert median(times(MockRunner(program), plan=plan)) == pytest.approx(0.05 * 0.5 * 0.8 * 1.5, rel=0.01)


def test_noise_is_correlated():
    calm = {"drift": 0.0, "spike_chance": 0.0, "warmup_steps": 0}
    program = MockProgram(noise=0.02, correlation=0.8, **calm)
    assert autocorrelation_time(times(MockRunner(program), steps=3000)) > 4
    assert autocorrelation_time(times(MockRunner(MockProgram(correlation=0.0, **calm)), steps=3000)) < 1.5


def test_a_hold_leaves_its_first_step_out_and_discovery_comes_late():
    session = MockRunner(MockProgram()).start(Request(key="a", plan=Plan()))
    assert session.discovery is None
    block = session.advance(5)
    assert (block.steps, len(block.step_seconds), block.first_step) == (5, 4, 0)
    assert session.discovery == DISCOVERY
    assert session.advance(5).first_step == 5
    assert session.peek().steps == 10


def test_it_ends_as_programs_do():
    runner = MockRunner(MockProgram(total_steps=7))
    session = runner.start(Request(key="a", plan=Plan()))
    assert session.advance(10).steps == 7
    with pytest.raises(SessionEnded) as ended:
        session.advance(1)
    assert ended.value.outcome.state is State.COMPLETED
    assert ended.value.outcome.steps == 7
    assert session.stop() == ended.value.outcome
    session.kill()
    session.kill()
    assert not runner.live


def test_memory_is_shared_by_those_that_live():
    runner = MockRunner(MockProgram(peak_bytes=60, device_bytes=100))
    first, second = (runner.start(Request(key=key, plan=Plan())) for key in "ab")
    with pytest.raises(SessionEnded) as ended:
        second.advance(1)
    assert ended.value.outcome.error == "OutOfMemory"
    assert first.advance(1).steps == 1


def test_gradients_are_compared_only_where_asked():
    runner = MockRunner(MockProgram(techniques={"a": MockTechnique(gradients_db=30.0, redraws_db=2.0)}))
    plan = Plan(choices=(Choice(name="a"),))

    def gradients(**more):
        session = runner.start(Request(key="x", plan=plan, **more))
        session.advance(1)
        return session.peek().gradients

    assert gradients() is None
    assert gradients(reference_role="compare").overall_db == 2.0
    assert gradients(reference_role="compare", randomness_off=True).overall_db == 30.0
