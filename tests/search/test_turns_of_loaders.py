"""Turns where the loader sets the pace: whole bursts, and what its workers had begun is thrown away."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flatout.search.measure import settle_steps, steps_of_block


def bench(*, waiting: bool, stops: bool, workers: int = 6, prefetch: int = 2) -> SimpleNamespace:
    return SimpleNamespace(
        waiting=waiting,
        runner=SimpleNamespace(stops_idle=stops),
        discovery=SimpleNamespace(loaders=({"num_workers": workers, "prefetch_factor": prefetch},)),
        correlation=1.0,
        baseline_step_seconds=0.02,
        program_steps=None,
    )


@pytest.mark.parametrize(
    ("waiting", "stops", "steps"), [(False, True, 0), (False, False, 0), (True, True, 6), (True, False, 12)]
)
def test_steps_thrown_away_before_a_turn(waiting: bool, stops: bool, steps: int) -> None:
    assert settle_steps(bench(waiting=waiting, stops=stops)) == steps


def test_a_turn_holds_whole_bursts() -> None:
    usual = steps_of_block(bench(waiting=False, stops=True), 0.02, 0.02)
    counted = steps_of_block(bench(waiting=True, stops=True), 0.02, 0.02) - 1
    assert counted % 6 == 0 and usual - 1 <= counted < usual + 6


def test_a_program_without_workers_has_no_bursts() -> None:
    without = bench(waiting=True, stops=True, workers=0)
    assert settle_steps(without) == 0
    assert steps_of_block(without, 0.02, 0.02) == steps_of_block(
        bench(waiting=False, stops=True), 0.02, 0.02
    )


def test_a_burst_of_minutes_is_no_turn() -> None:
    assert steps_of_block(bench(waiting=True, stops=True, workers=16), 3.0, 3.0) == 2
