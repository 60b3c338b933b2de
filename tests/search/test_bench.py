"""What every part of a search shares: readings of the surroundings, and ending processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flatout.host import Host
from flatout.ledger import Ledger
from flatout.plan import Choice, Plan
from flatout.runners.mock import DISCOVERY, MockProgram, MockRunner
from flatout.search.bench import Bench
from flatout.search.options import SearchOptions
from flatout.search.progress import Progress
from flatout.surroundings import GpuReading, Reading
from flatout.trial import Outcome, State, Trial

from .played import HOST, INTERPRETER, PLANTED, workload


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def bench(tmp_path: Path, told: list[str]) -> Iterator[Bench]:
    program = MockProgram(techniques=PLANTED)
    runner = MockRunner(program)
    options = SearchOptions()
    asked: list[tuple[str, int]] = []

    class Played:
        def read(self) -> Reading:
            gpus = (GpuReading(uuid="GPU-0"),) if asked[0][0] == "cuda" else ()
            return Reading(at=float(len(asked)), busy_cpu_seconds=1.0, gpus=gpus)

        def gpu_use(self) -> int | None:
            return 37

        def close(self) -> None:
            told.append("closed")

    def watcher(host: Host, device: str, ranks: int) -> Played:
        asked.append((device, ranks))
        return Played()

    def tell(progress: Progress) -> None:
        told.append(progress.text)

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        number = ledger.start_search(
            fingerprint="f",
            workload=workload(tmp_path),
            host=HOST,
            interpreter=INTERPRETER,
            options=options,
            version="0",
        )
        yield Bench(
            runner=runner,
            ledger=ledger,
            search=number,
            host=HOST,
            interpreter=INTERPRETER,
            options=options,
            catalogue=program.catalogue(),
            tell=tell,
            clock=runner.clock,
            unix_time=lambda: 0.0,
            watcher=watcher,
        )


def test_a_reading_needs_the_device_and_makes_one_watch(bench: Bench) -> None:
    assert bench.reading() is None, "which device is not known yet"
    bench.discovery = replace(DISCOVERY, world_size=2)
    first, second = bench.reading(), bench.reading()
    assert first is not None
    assert first == second == Reading(at=1.0, busy_cpu_seconds=1.0)


def test_what_watches_is_let_go_once(bench: Bench, told: list[str]) -> None:
    bench.discovery = DISCOVERY
    bench.start("one", Plan())
    bench.reading()
    bench.close()
    bench.close()
    assert bench.live == []
    assert told.count("closed") == 1


def test_a_process_that_cannot_be_ended_is_said_and_the_others_are_ended(
    bench: Bench, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.discovery = DISCOVERY
    stubborn, other = bench.start("one", Plan()), bench.start("two", Plan())

    def kill() -> Any:
        raise PermissionError("not yours")

    monkeypatch.setattr(stubborn._session, "kill", kill)
    bench.kill_all()
    assert bench.live == []
    assert not other.alive
    assert "could not be ended: PermissionError: not yours" in told[-1]
    (event,) = bench.ledger.events(bench.search, "not_ended")
    assert event.data == {"key": "one", "error": "PermissionError: not yours"}


def test_who_uses_the_gpu_while_ours_hold_still(
    bench: Bench, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.search.bench.HELD_SECONDS", 0.0)
    bench.discovery = DISCOVERY
    bench.note_held_use()
    assert not bench.ledger.events(bench.search, "held"), "a program on the processor has no GPU to look at"


def test_a_gpu_that_others_use_is_said_once(
    bench: Bench, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.search.bench.HELD_SECONDS", 0.0)
    bench.discovery = replace(DISCOVERY, device="cuda")
    bench.note_held_use()
    bench.note_held_use()
    assert sum("37 % busy while none of this search's processes runs" in text for text in told) == 1
    (event,) = bench.ledger.events(bench.search, "held")
    assert event.data == {"use_percent": 37}


def test_a_small_budget_is_for_all_but_the_very_first_step(bench: Bench) -> None:
    bench.options = SearchOptions(budget_seconds=10.0)
    runner = bench.runner
    assert isinstance(runner, MockRunner)
    bench.start("baseline", Plan())
    bench.baseline = Outcome(state=State.COMPLETED)
    bench.start("climb:bf16", Plan())
    bench.start("climb:compile", Plan(), reserve_seconds=20.0)
    limits = [request.step_limit_seconds for request in runner.requests]
    assert limits == [30.0, pytest.approx(10.0), 5.0]


def test_a_graph_that_was_compiled_before_starts_sooner(bench: Bench) -> None:
    def started(key: str, seconds: float, *names: str) -> None:
        outcome = Outcome(state=State.COMPLETED, startup_seconds=seconds)
        plan = Plan(choices=tuple(Choice(name=name) for name in names))
        bench.trials[key] = Trial(key=key, plan=plan, outcome=outcome, started=0.0)

    compiler: Any = bench.technique("compile")
    compiler.after = ("bf16",)
    bench.baseline = Outcome(state=State.COMPLETED, startup_seconds=10.0)
    bench.extra_start_seconds["compile"] = 60.0
    both = Plan(choices=(Choice(name="bf16"), Choice(name="compile")))
    more = Plan(choices=(*both.choices, Choice(name="fused_optimizer")))
    assert bench.start_seconds(both) == 70.0
    started("alone", 70.0, "compile")
    assert bench.start_seconds(both) == 70.0, "another graph"
    started("first", 70.0, "bf16", "compile")
    assert bench.start_seconds(both) == bench.start_seconds(more) == 34.0
    started("second", 15.0, "bf16", "compile", "fused_optimizer")
    assert bench.start_seconds(both) == bench.start_seconds(more) == 15.0
    assert bench.start_seconds(Plan()) == 10.0
