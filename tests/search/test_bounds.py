"""What cannot gain is not tried, with its numbers; what gained in the past is never ruled out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.runners.mock import DISCOVERY, MockProgram, MockTechnique
from flatout.search.bounds import Bound, bound_of
from flatout.search.standing import Standing
from flatout.technique import Part
from flatout.techniques import technique_named
from flatout.trial import Outcome, Profile, State

from .played import GPU_HOST, HOST, PLANTED, play

CUDA = replace(DISCOVERY, device="cuda")
PROFILE = Profile(
    wall_seconds=0.300,
    device_busy_seconds=0.280,
    kernels=(
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", 231, 0.226),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", 309, 0.025),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>", 20, 0.0014),
        ("Memcpy HtoD (Pageable -> Device)", 2, 0.0276),
    ),
    kernel_count=562,
    optimizer_host_seconds=0.0018,
    optimizer_device_seconds=0.0014,
)
BASELINE = Outcome(state=State.COMPLETED, discovery=CUDA, profile=PROFILE)


def bound(
    name: str, baseline: Outcome = BASELINE, *, step: float = 0.287, usual: float = 0.287
) -> Bound | None:
    return bound_of(
        technique_named(name), baseline=baseline, host=GPU_HOST, usual_seconds=usual, step_seconds=step
    )


def test_the_optimiser_bounds_the_fused_one_by_what_is_left_of_the_step():
    """As on nanoGPT: nothing to be had of 287 ms, and 1.054x of what was left at the end."""
    first, last = bound("fused_optimizer"), bound("fused_optimizer", step=0.0291)
    assert first is not None and first.at_most == pytest.approx(0.287 / (0.287 - 1.5 * 0.0032))
    assert first.reason == ("at most 1.017x: the optimiser's step took 3.2 ms; a step now takes 287 ms")
    assert last is not None and last.at_most > 1.054


def test_products_bound_tf32_and_all_kernels_bf16():
    tf32 = bound("tf32", replace(BASELINE, profile=replace(PROFILE, wall_seconds=3.0)), step=3.0, usual=3.0)
    assert tf32 is not None
    assert tf32.at_most == pytest.approx(3.0 / (3.0 - 1.5 * 0.226))
    bf16 = bound("bf16", replace(BASELINE, profile=replace(PROFILE, wall_seconds=3.0)), step=3.0, usual=3.0)
    assert bf16 is not None
    assert bf16.at_most == pytest.approx(3.0 / (3.0 - 1.5 * (0.280 - 0.0276)))


@pytest.mark.parametrize(
    ("name", "gained"), [("tf32", 2.6), ("bf16", 3.26), ("sdpa", 2.44), ("compile", 1.4)]
)
def test_what_gained_on_nanogpt_is_not_ruled_out(name, gained):
    """LOG.md and the catalogue: gains over the untouched program or a larger plan."""
    found = bound(name)
    assert found is None or found.at_most > gained


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"discovery": DISCOVERY}, "bf16"),
        ({"discovery": DISCOVERY}, "tf32"),
        ({"profile": None}, "fused_optimizer"),
        ({"profile": None}, "tf32"),
        ({"profile": replace(PROFILE, wall_seconds=0.1)}, "fused_optimizer"),
        ({"profile": replace(PROFILE, optimizer_host_seconds=None)}, "fused_optimizer"),
        ({"profile": replace(PROFILE, optimizer_device_seconds=0.0)}, "fused_optimizer"),
        ({"profile": replace(PROFILE, kernels=())}, "tf32"),
        ({"discovery": replace(CUDA, optimizers=CUDA.optimizers * 2)}, "fused_optimizer"),
        ({"discovery": None}, "fused_optimizer"),
    ],
)
def test_where_the_profile_does_not_support_one_there_is_none(change, name):
    assert bound(name, replace(BASELINE, **change)) is None


def test_on_a_processor_the_hosts_time_alone_counts():
    cpu = replace(BASELINE, discovery=DISCOVERY)
    found = bound("fused_optimizer", cpu)
    assert found is not None and found.at_most == pytest.approx(0.287 / (0.287 - 1.5 * 0.0018))


def test_the_wait_for_data_bounds_everything_where_processors_are_free():
    loaders = ({"num_workers": 1},)
    waiting = replace(
        BASELINE, discovery=replace(CUDA, loaders=loaders), loader_wait_seconds_per_step=0.93 * 0.287
    )
    found = bound("compile", waiting)
    assert found is not None and found.at_most == pytest.approx(1 / (0.8 * 0.93))
    assert found.reason == "at most 1.344x: the wait for data takes 93% of a step"
    crowded = replace(waiting, discovery=replace(CUDA, loaders=({"num_workers": 8},)))
    assert bound("compile", crowded) is None, "a faster program leaves more to its loader"
    on_cpu = replace(waiting, discovery=replace(DISCOVERY, loaders=loaders))
    assert bound("compile", on_cpu) is None


def program(**facts: float) -> MockProgram:
    profile = Profile(
        wall_seconds=0.05, device_busy_seconds=0.05, optimizer_host_seconds=facts.pop("optimizer")
    )
    planted = {
        **PLANTED,
        "fused_optimizer": MockTechnique(
            gradients_db=None, expected=1.03, shortens=Part.OPTIMIZER, factor=facts.get("factor", 1.0)
        ),
    }
    return MockProgram(techniques=planted, profile=profile)


def test_a_search_does_not_try_what_cannot_gain(tmp_path):
    report = play(tmp_path, program(optimizer=0.00002), host=HOST)
    (row,) = (row for row in report.techniques if row.name == "fused_optimizer")
    assert row.standing is Standing.NO_GAIN
    assert "not tried: it can gain at most 1.00" in row.reason
    assert "the optimiser's step took 0.02 ms; a step now takes" in row.reason
    assert not any("fused_optimizer" in trial.key for trial in report.trials)


def test_what_becomes_worth_trying_as_the_rest_gets_shorter_is_tried(tmp_path):
    """0.3 ms of 50 ms cannot gain 1 %; of the 11 ms that are left in the end it can."""
    report = play(tmp_path, program(optimizer=0.0003, factor=0.9), host=HOST)
    (row,) = (row for row in report.techniques if row.name == "fused_optimizer")
    assert row.standing is Standing.APPLIED
    assert not any(trial.key == "screen:fused_optimizer" for trial in report.trials)
