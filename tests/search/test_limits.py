"""What limits a program, from one profiled step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.runners.mock import DISCOVERY
from flatout.search.limits import find_limits, kind_of
from flatout.trial import Profile

CUDA = replace(DISCOVERY, device="cuda", loaders=({"num_workers": 1},))
TECHNIQUES = ("tf32", "bf16", "sdpa", "compile", "fused_optimizer")


def limits(profile, *, step=0.1, wait=0.0, discovery=CUDA):
    return find_limits(
        profile,
        step_seconds=step,
        loader_wait_seconds=wait,
        discovery=discovery,
        techniques=TECHNIQUES,
    )


def test_a_starved_program_is_limited_by_its_loader():
    profile = Profile(
        wall_seconds=0.1, device_busy_seconds=0.02, kernels=(("gemm", 50, 0.02),), kernel_count=50
    )
    first = limits(profile, wait=0.07)[0]
    assert first.cause == "loader"
    assert first.share == pytest.approx(0.7)
    assert "with 1 workers" in first.evidence


def test_many_short_kernels_on_an_idle_gpu_are_launches():
    profile = Profile(
        wall_seconds=0.1,
        device_busy_seconds=0.01,
        kernels=(("elementwise_kernel", 3000, 0.008), ("sgemm_32x32", 500, 0.002)),
        kernel_count=3500,
    )
    first = limits(profile)[0]
    assert first.cause == "launches"
    assert first.seconds_per_step == pytest.approx(0.09)
    assert "3500 kernels" in first.evidence
    assert first.techniques == ("compile", "fused_optimizer")


def test_few_long_kernels_on_an_idle_gpu_are_the_hosts_fault():
    profile = Profile(
        wall_seconds=0.1, device_busy_seconds=0.01, kernels=(("gemm", 20, 0.01),), kernel_count=20
    )
    assert limits(profile)[0].cause == "host"


def test_a_host_that_reads_the_loss_each_step_waits_for_the_gpu():
    profile = Profile(
        wall_seconds=0.2,
        device_busy_seconds=0.04,
        kernels=(("gemm", 20, 0.04),),
        kernel_count=20,
        gaps={"sync": 0.08, "python": 0.06, "loader": 0.02},
    )
    found = {limit.cause: limit.seconds_per_step for limit in limits(profile, wait=0.01)}
    assert found["host_sync"] == pytest.approx(0.05 * 8 / 14)
    assert found["host"] == pytest.approx(0.05 * 6 / 14)
    assert found["loader"] == pytest.approx(0.01)


def test_a_busy_gpu_is_split_by_what_its_kernels_do():
    kernels = (
        ("ampere_sgemm_128x64_tn", 300, 0.06),
        ("softmax_warp_forward", 24, 0.02),
        ("vectorized_elementwise_kernel", 400, 0.015),
        ("multi_tensor_apply_kernel<adam>", 10, 0.004),
    )
    profile = Profile(wall_seconds=0.1, device_busy_seconds=0.0995, kernels=kernels, kernel_count=734)
    found = limits(profile)
    assert [limit.cause for limit in found] == ["compute", "attention", "memory", "optimizer"]
    assert found[0].techniques == ("bf16", "tf32", "compile")
    assert abs(sum(limit.seconds_per_step for limit in found) - 0.0995) < 0.002


def test_tiny_operators_on_a_cpu_are_launches():
    operators = (
        ("aten::addmm", 900, 0.009),
        ("aten::sigmoid", 600, 0.004),
        ("aten::mul", 900, 0.005),
        ("aten::cross_entropy_loss", 1, 0.002),
    )
    profile = Profile(wall_seconds=0.03, device_busy_seconds=0.02, operators=operators, kernels=operators)
    first = limits(profile, step=0.03, discovery=DISCOVERY)[0]
    assert first.cause == "launches"
    assert first.share > 0.8
    assert "2400 of 2401 operators" in first.evidence


def test_large_products_on_a_cpu_are_compute():
    operators = (("aten::addmm", 48, 0.08), ("aten::gelu", 12, 0.01), ("aten::view", 50, 0.0001))
    profile = Profile(wall_seconds=0.1, device_busy_seconds=0.095, operators=operators)
    assert [limit.cause for limit in limits(profile, discovery=DISCOVERY)][:2] == ["compute", "memory"]


def test_shares_never_exceed_the_step():
    # the profiler stretches tiny operators beyond the step's own time
    operators = (("aten::add", 5000, 0.09), ("aten::mm", 10, 0.03))
    profile = Profile(wall_seconds=0.05, device_busy_seconds=0.12, operators=operators)
    found = limits(profile, step=0.05, wait=0.01, discovery=DISCOVERY)
    assert sum(limit.share for limit in found) <= 1.25


def test_without_a_profile_only_the_loader_is_known():
    assert limits(None) == ()
    assert [limit.cause for limit in limits(None, wait=0.05)] == ["loader"]


def test_what_is_under_one_percent_is_left_out():
    assert limits(None, wait=0.0005) == ()


def test_names():
    assert kind_of("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>") == "compute"
    assert kind_of("fmha_cutlassF_f32") == "attention"
    assert kind_of("flash_fwd_kernel") == "attention"
    assert kind_of("aten::_fused_adamw_") == "optimizer"
    assert kind_of("void at::native::elementwise_kernel<128, 2, at::native::{lambda(int)#1}>") == "memory"
    assert kind_of("multi_tensor_lamb_kernel") == "optimizer"
    assert kind_of("aten::convolution_backward") == "compute"
    assert kind_of("aten::bmm") == "compute"
    assert kind_of("aten::native_layer_norm") == "memory"
    assert kind_of("Memcpy HtoD") == "memory"


def test_a_program_that_compiles_again_at_every_step():
    operators = (("PythonDispatchMode", 226, 0.7), ("aten::addmm", 16, 0.009))
    profile = Profile(wall_seconds=0.75, device_busy_seconds=0.74, operators=operators)
    first = limits(profile, step=0.75, discovery=DISCOVERY)[0]
    assert first.cause == "compiling"
    assert first.techniques == ("compile",)


def test_on_a_slower_core_small_operators_take_longer():
    """All operators take three times as long where a core is shared: still dispatch, not work."""

    def first_cause(slowed):
        operators = (
            ("aten::mm", 98, slowed * 98 * 14e-6),
            ("aten::as_strided", 569, slowed * 569 * 0.6e-6),
            ("aten::transpose", 245, slowed * 245 * 0.8e-6),
            ("aten::view", 62, slowed * 62 * 1.4e-6),
            ("aten::mul", 400, slowed * 400 * 9e-6),
        )
        busy = sum(seconds for _, _, seconds in operators)
        profile = Profile(wall_seconds=busy, device_busy_seconds=busy, operators=operators)
        return limits(profile, step=busy * 1.1, discovery=replace(DISCOVERY, device="cpu"))[0].cause

    assert first_cause(1.0) == first_cause(3.0) == "launches"
