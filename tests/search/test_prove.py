"""Comparisons of two plans over played programs: what they take to decide, and what they never claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flatout.codec import from_plain, to_plain
from flatout.ledger import Ledger
from flatout.plan import Choice, Plan
from flatout.runners.mock import MockProgram, MockRunner, MockTechnique
from flatout.search.allowance import Allowance
from flatout.search.baseline import measure_again, measure_baseline
from flatout.search.bench import Bench
from flatout.search.climb import _no_gain
from flatout.search.measure import Seat, steps_of_block, wanders
from flatout.search.options import SearchOptions
from flatout.search.prove import Aim, prove
from flatout.search.shifts import evidence_so_far, logs_of, unchanged
from flatout.surroundings import THERMAL, GpuReading, Reading
from flatout.trial import Call, Verdict

from .played import HOST, INTERPRETER, workload

ALPHA = Allowance(error=0.01, candidates=5).first_try
IT = Plan(choices=(Choice(name="it"),))
QUIET = {"noise": 0.003, "spike_chance": 0.002, "drift": 0.01}


@contextmanager
def bench_of(
    folder: Path,
    program: MockProgram,
    *,
    seed: int = 0,
    budget_seconds: float = 7200.0,
    watcher: Callable[..., object] | None = None,
) -> Iterator[tuple[Bench, Seat]]:
    """A bench whose untouched program has been measured, with its seat."""
    runner = MockRunner(program, seed=seed)
    options = SearchOptions(budget_seconds=budget_seconds)
    with Ledger(folder / "ledger.sqlite") as ledger:
        bench = Bench(
            runner=runner,
            ledger=ledger,
            search=ledger.start_search(
                fingerprint="played",
                workload=workload(folder),
                host=HOST,
                interpreter=INTERPRETER,
                options=options,
                version="0",
            ),
            host=HOST,
            interpreter=INTERPRETER,
            options=options,
            catalogue=program.catalogue(),
            tell=lambda _: None,
            clock=runner.clock,
            unix_time=lambda: 0.0,
            watcher=watcher,  # type: ignore[arg-type]
        )
        baseline = measure_baseline(bench)
        measure_again(bench, baseline)
        yield bench, baseline
        bench.kill_all()


def compare(
    folder: Path, factor: float, *, seed: int = 0, aim: Aim | None = None, **program: object
) -> Verdict:
    """The untouched program against a plan with ``factor`` of its step time."""
    played = MockProgram(techniques={"it": MockTechnique(factor=factor)}, **program)  # type: ignore[arg-type]
    with bench_of(folder, played, seed=seed) as (bench, baseline):
        seat = Seat(bench=bench, plan=IT, key="it")
        return prove(bench, "it", baseline, seat, aim or Aim(alpha=ALPHA, matters=0.01))


def test_a_large_gain_is_proved_by_one_pair_of_processes(tmp_path):
    verdict = compare(tmp_path, 0.1)
    assert verdict.call is Call.BETTER
    assert verdict.process_pairs == (6,)
    assert verdict.low < 10.0 < verdict.high


def test_a_small_gain_needs_fresh_processes(tmp_path):
    verdict = compare(tmp_path, 1 / 1.02, process_noise=0.001, **QUIET)
    assert verdict.call is Call.BETTER
    assert len(verdict.process_pairs) >= 2
    assert verdict.low < 1.02 < verdict.high
    assert verdict.processes_radius > 0
    assert verdict.pairs == sum(verdict.process_pairs) == len(verdict.samples_a)


@pytest.mark.parametrize("seed", range(8))
def test_what_processes_of_one_plan_differ_by_is_not_claimed(tmp_path, seed):
    verdict = compare(tmp_path, 1.0, seed=seed, process_noise=0.02, **QUIET)
    assert verdict.call in (Call.SAME, Call.UNKNOWN)
    assert verdict.low < 1.0 < verdict.high


@pytest.mark.parametrize("seed", range(4))
def test_speed_that_wanders_is_not_claimed(tmp_path, seed):
    verdict = compare(tmp_path, 1.0, seed=seed, wander=0.15, wander_seconds=2.0, step_seconds=0.014)
    assert verdict.call in (Call.SAME, Call.UNKNOWN)
    assert verdict.low < 1.0 < verdict.high
    assert verdict.smallest_effect > 0.02


def test_a_loss_is_proved_where_that_is_asked(tmp_path):
    aim = Aim(alpha=ALPHA, matters=0.01, both_ways=True)
    verdict = compare(tmp_path, 1.05, aim=aim, process_noise=0.001, **QUIET)
    assert verdict.call is Call.WORSE
    assert verdict.high < 1.0


def test_nothing_hopeful_ends_soon(tmp_path):
    verdict = compare(tmp_path, 1.05, process_noise=0.001, **QUIET)
    assert verdict.call in (Call.SAME, Call.WORSE)
    assert len(verdict.process_pairs) == 1
    assert verdict.pairs <= 20


def test_turns_are_shorter_where_the_speed_wanders(tmp_path):
    steps = {}
    for name, wander in (("calm", 0.0), ("wandering", 0.2)):
        program = MockProgram(
            techniques={"it": MockTechnique()},
            step_seconds=0.014,
            wander=wander,
            wander_seconds=3.0,
            drift=0.0,
        )
        (tmp_path / name).mkdir()
        with bench_of(tmp_path / name, program) as (bench, _):
            steps[name] = steps_of_block(bench, 0.014, 0.014)
            assert wanders(bench) == (wander > 0)
    assert steps["wandering"] * 0.014 < 0.2
    assert steps["calm"] * 0.014 > 0.35


def test_two_turns_are_kept_and_give_no_interval(tmp_path):
    aim = Aim(alpha=ALPHA, matters=0.01, turns=2, to_the_end=True, processes=1)
    verdict = compare(tmp_path, 0.5, aim=aim)
    assert verdict.call is Call.UNKNOWN
    assert verdict.ratio is verdict.low is verdict.high is verdict.smallest_effect is None
    assert verdict.reason == "too few turns for an interval"
    assert _no_gain(verdict) == "cannot tell: too few turns for an interval"
    assert verdict.pairs == len(verdict.samples_a) == 2


class Heat:
    """Surroundings: the GPU slows itself down for heat at readings with the given numbers."""

    def __init__(self, hot: Callable[[int], bool]) -> None:
        self.hot = hot
        self.count = 0

    def read(self) -> Reading:
        self.count += 1
        reasons = THERMAL if self.hot(self.count) else 0
        return Reading(at=float(self.count), gpus=(GpuReading(uuid="GPU-0", reasons=reasons),))


def test_disturbed_turns_are_kept_and_repeated(tmp_path):
    program = MockProgram(techniques={"it": MockTechnique(factor=0.5)})
    heat = Heat(lambda _: False)
    with bench_of(tmp_path, program, watcher=lambda *_: heat) as (bench, baseline):
        assert bench.usual is not None
        start = heat.count
        heat.hot = lambda count: count == start + 7
        seat = Seat(bench=bench, plan=IT, key="it")
        verdict = prove(bench, "it", baseline, seat, Aim(alpha=ALPHA, matters=0.01))
        assert verdict.call is Call.BETTER
        assert len(verdict.left_out) == 1
        seconds_a, seconds_b, why = verdict.left_out[0]
        assert "heat" in why
        assert seconds_a > seconds_b > 0
        assert verdict.pairs == 6
        assert len(bench.ledger.blocks(bench.search, "it")) == 14
        words = [event.data for event in bench.ledger.events(bench.search, "surroundings")]
        assert words[-1]["comparison"] == "it"
        assert words[-1]["left_out"] == 1


def test_a_trial_disturbed_all_along_is_repeated_once_and_then_given_up(tmp_path):
    program = MockProgram(techniques={"it": MockTechnique(factor=0.5)})
    heat = Heat(lambda _: False)
    with bench_of(tmp_path, program, watcher=lambda *_: heat) as (bench, baseline):
        heat.hot = lambda _: True
        seat = Seat(bench=bench, plan=IT, key="it")
        verdict = prove(bench, "it", baseline, seat, Aim(alpha=ALPHA, matters=0.01))
        assert verdict.call is Call.UNKNOWN
        assert verdict.reason.startswith("disturbed all along: the driver slowed the GPU down for heat")
        assert verdict.ratio is None
        assert len(verdict.left_out) == 16
        started = [key for key in bench.trials if key.startswith("it")]
        assert len(started) == 1, "the first process has ended, the second still lives"
        events = bench.ledger.events(bench.search, "disturbed")
        assert [event.data["comparison"] for event in events] == ["it", "it"]


def test_heat_that_passes_costs_a_start_and_no_verdict(tmp_path):
    program = MockProgram(techniques={"it": MockTechnique(factor=0.5)})
    heat = Heat(lambda _: False)
    with bench_of(tmp_path, program, watcher=lambda *_: heat) as (bench, baseline):
        start = heat.count
        heat.hot = lambda count: count <= start + 8 * 4
        seat = Seat(bench=bench, plan=IT, key="it")
        verdict = prove(bench, "it", baseline, seat, Aim(alpha=ALPHA, matters=0.01))
        assert verdict.call is Call.BETTER
        assert len(verdict.left_out) == 8


def test_what_a_search_knows_of_shifts_is_read_from_its_verdicts(tmp_path):
    verdict = compare(tmp_path, 1 / 1.02, process_noise=0.001, **QUIET)
    assert from_plain(Verdict, to_plain(verdict)) == verdict
    assert [len(values) for values in logs_of(verdict)] == list(verdict.process_pairs)
    old = replace(verdict, process_pairs=())
    assert [len(values) for values in logs_of(old)] == [verdict.pairs]
    with Ledger(tmp_path / "ledger.sqlite", writable=False) as ledger:
        again = list(ledger.verdicts(1).values())
    assert [one.key for one in again] == ["again", "again~2", "again~3"]
    known = evidence_so_far([*again, verdict], method=verdict.method)
    assert [one.freedom for one in known] == [3, len(verdict.process_pairs) - 1]
    assert evidence_so_far(again, method="another") == []


def test_processes_that_were_compared_at_the_same_step_tell_and_the_others_do_not():
    def verdict(key: str, apart: float) -> Verdict:
        return Verdict(
            key=key,
            plan_a=Plan(),
            plan_b=Plan(),
            call=Call.SAME,
            ratio=apart,
            low=None,
            high=None,
            confidence=0.99,
            pairs=3,
            smallest_effect=None,
            samples_a=(apart,) * 3,
            samples_b=(1.0,) * 3,
            process_pairs=(3,),
        )

    both = [verdict("again", 1.4), verdict("again:aligned", 1.001)]
    assert evidence_so_far(both, method="resident pair")[0].square < 1e-5
    assert evidence_so_far(both[:1], method="resident pair")[0].square > 0.1


@pytest.mark.parametrize("candidates", [1, 5, 15])
def test_the_error_allowed_is_split_and_no_more(candidates):
    allowance = Allowance(error=0.01, candidates=candidates)
    later = sum(allowance.second_try * 0.5**tried for tried in range(1, 30))
    spent = 2 * allowance.final + candidates * (allowance.first_try + later + allowance.share)
    assert spent <= 0.01 * (1 + 1e-9)
    assert spent > 0.0099


@pytest.mark.parametrize(("noise", "pairs"), [(0.001, 4), (0.03, 10)])
def test_unchanged_processes_that_say_the_same_need_few_turns(tmp_path, noise, pairs):
    quiet = {**QUIET, "noise": noise, "process_noise": 0.0003}
    with bench_of(tmp_path, MockProgram(techniques={}, **quiet)) as (bench, _):
        again = [one for one in bench.verdicts.values() if unchanged(one)]
    assert len(again) == 3, "what is saved in turns goes into further processes"
    assert {one.pairs for one in again} == {pairs}
    assert all(one.ratio is not None for one in again)


def test_an_estimate_ends_when_only_processes_could_tell_more(tmp_path):
    aim = Aim(alpha=ALPHA, matters=0.0, turns=16, processes=1, to_the_end=True)
    (tmp_path / "quiet").mkdir()
    (tmp_path / "noisy").mkdir()
    still = {"drift": 0.0, "spike_chance": 0.0, "process_noise": 0.001}
    quiet = compare(tmp_path / "quiet", 0.8, aim=aim, noise=0.001, **still)
    assert quiet.pairs < 16
    assert quiet.turns_radius <= quiet.processes_radius / 2
    noisy = compare(tmp_path / "noisy", 0.8, aim=aim, noise=0.1, **still)
    assert noisy.pairs == 16
