"""What is left of a step: the parts sum to it, and each has its cause."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from flatout.runners.mock import DISCOVERY
from flatout.search.floor import divide_step
from flatout.trial import Profile, Work

from .played import GPU_HOST, HOST

CUDA = replace(DISCOVERY, device="cuda")
F, H = "float", "c10::BFloat16"
PRODUCT = Work(
    operator="aten::mm",
    calls=10,
    seconds=0.020,
    inputs=((H, (8192, 8192)), (H, (8192, 8192))),
    launches=10,
    kernels=(("nvjet_hsh_128x256", 0.020),),
)
"""11.1 ms of arithmetic at 989.5 TFLOP/s."""
SUM = Work(
    operator="aten::add",
    calls=4,
    seconds=0.004,
    inputs=((F, (100_000_000,)), (F, (100_000_000,))),
    launches=4,
    kernels=(("vectorized_elementwise_kernel", 0.004),),
)
"""1 ms of memory traffic at 4.8 TB/s."""


def profile(*work, **gaps):
    busy = sum(row.seconds for row in work)
    span = busy + sum(gaps.values())
    return Profile(
        wall_seconds=span, device_busy_seconds=busy, work=work, gaps=gaps, span_seconds=span, peaks={}
    )


def divide(told, step=0.030, *, wait=0.0, discovery=CUDA, host=GPU_HOST, techniques=()):
    return divide_step(
        told,
        plan="bf16",
        step_seconds=step,
        loader_wait_seconds=wait,
        discovery=discovery,
        host=host,
        techniques=techniques,
    )


def parts(remains):
    assert sum(part.seconds for part in remains.parts) == pytest.approx(remains.step_seconds, rel=1e-9)
    assert sum(part.share for part in remains.parts) == pytest.approx(1.0)
    assert all(part.seconds >= 0 for part in remains.parts)
    return {part.cause: part.seconds for part in remains.parts}


def test_floor_and_what_is_above_it():
    remains = divide(profile(PRODUCT, SUM, launches=0.006))
    found = parts(remains)
    product_floor = 10 * 2 * 8192**3 / 989.5e12
    sum_floor = 4 * 12e8 / 4.8e12
    assert found["floor"] == pytest.approx(product_floor + sum_floor)
    assert found["compute"] == pytest.approx(0.020 - product_floor)
    assert found["memory"] == pytest.approx(0.004 - sum_floor)
    assert found["launches"] == pytest.approx(0.006)
    assert remains.parts[0].cause == "floor"
    assert "arithmetic in bfloat16" in remains.parts[0].evidence
    assert remains.above[0].operator == "aten::mm"
    assert remains.above[0].floor_seconds == pytest.approx(product_floor)
    assert "H200" in remains.peaks_from


def test_what_the_profiler_stretched_is_fitted_into_the_step_and_what_is_missing_is_unknown():
    stretched = parts(divide(profile(PRODUCT, SUM, launches=0.020, python=0.020)))
    assert stretched["launches"] == pytest.approx(0.003)
    assert stretched["host"] == pytest.approx(0.003)
    assert "unknown" not in stretched
    missing = parts(divide(profile(PRODUCT, launches=0.001)))
    assert missing["unknown"] == pytest.approx(0.009)


def test_work_longer_than_the_step_is_scaled():
    found = parts(divide(profile(PRODUCT, SUM, launches=0.02), step=0.012))
    assert "launches" not in found


def test_the_wait_for_data_is_what_was_measured_without_the_profiler():
    found = parts(divide(profile(PRODUCT, loader=0.5, python=0.002), step=0.040, wait=0.015))
    assert found["loader"] == pytest.approx(0.015)
    assert found["host"] == pytest.approx(0.002)
    assert found["unknown"] == pytest.approx(0.003)


def test_many_short_kernels_make_the_pause_between_operators_a_matter_of_launches():
    short = replace(SUM, calls=500, launches=500, inputs=((F, (10,)), (F, (10,))))
    found = parts(divide(profile(short, python=0.02, launches=0.006)))
    assert found["launches"] == pytest.approx(0.026)
    assert "host" not in found


def test_copies_collectives_and_kernels_without_shapes_have_no_floor():
    copies = Work(
        operator="aten::copy_",
        calls=2,
        seconds=0.002,
        inputs=((F, (10,)), (F, (10,))),
        launches=2,
        kernels=(("Memcpy HtoD (Pageable -> Device)", 0.002),),
    )
    nccl = Work(operator="x", calls=1, seconds=0.005, launches=1, kernels=(("ncclDevKernel_Sum", 0.005),))
    graph = Work(operator="some_replayed_kernel", calls=9, seconds=0.004, launches=9)
    remains = divide(profile(copies, nccl, graph))
    found = parts(remains)
    assert found["copies"] == pytest.approx(0.002)
    assert found["communication"] == pytest.approx(0.005)
    assert found["untold"] == pytest.approx(0.004)
    evidence = {part.cause: part.evidence for part in remains.parts}
    assert evidence["untold"] == "most of it some_replayed_kernel (9 calls)"
    assert "floor" not in found


def test_an_unknown_gpu_has_no_floor_and_it_is_said():
    gpu = replace(GPU_HOST.gpus[0], name="NVIDIA Something 9000")
    remains = divide(profile(PRODUCT), host=replace(GPU_HOST, gpus=(gpu,)))
    found = parts(remains)
    assert "floor" not in found
    assert found["untold"] == pytest.approx(0.020)
    assert "NVIDIA Something 9000" in remains.reason
    assert remains.peaks == {}


def test_on_a_cpu_the_peaks_are_those_measured_and_small_operators_are_dispatch():
    large = Work(operator="aten::mm", calls=1, seconds=0.010, inputs=((F, (512, 512)), (F, (512, 512))))
    small = Work(operator="aten::add", calls=200, seconds=0.001, inputs=((F, (10,)), (F, (10,))))
    node = Work(operator="ViewBackward0", calls=1, seconds=0.001, inputs=((F, (10,)),))
    compiled = Work(operator="CompiledFunctionBackward", calls=1, seconds=0.002)
    told = replace(
        profile(large, small, node, compiled, python=0.004), peaks={"float32": 1e11, "bytes": 1e10}
    )
    remains = divide(told, step=0.018, discovery=DISCOVERY, host=HOST)
    found = parts(remains)
    assert found["floor"] == pytest.approx(2 * 512**3 / 1e11, rel=0.01)
    assert found["launches"] == pytest.approx(0.006, rel=0.01)
    assert found["untold"] == pytest.approx(0.002)
    assert remains.peaks_from == "what was measured on this CPU"


def test_without_a_profile_only_the_loader_is_known():
    remains = divide(None, wait=0.01)
    assert parts(remains) == pytest.approx({"loader": 0.01, "unknown": 0.02})
    assert remains.reason == "no step was profiled"
    assert divide(None, step=0.0) is None


def test_techniques_that_could_still_be_tried_are_named():
    remains = divide(profile(PRODUCT, launches=0.006), techniques=("compile", "bf16"))
    by_cause = {part.cause: part.techniques for part in remains.parts}
    assert by_cause["launches"] == ("compile",)
    assert by_cause["compute"] == ("bf16", "compile")


@pytest.mark.parametrize("seed", range(40))
def test_the_parts_sum_to_the_step_whatever_was_profiled(seed):
    drawn = random.Random(seed)
    rows = [
        replace(
            drawn.choice((PRODUCT, SUM)),
            seconds=drawn.expovariate(200.0),
            calls=drawn.randint(1, 500),
            operator=drawn.choice(("aten::mm", "aten::add", "aten::_softmax", "unknown_kernel", "")),
        )
        for _ in range(drawn.randint(0, 9))
    ]
    causes = ("loader", "launches", "sync", "optimizer", "compiling", "python")
    gaps = {cause: drawn.expovariate(200.0) for cause in causes if drawn.random() < 0.6}
    told = replace(profile(*rows, **gaps), peaks={"float32": 1e11, "bfloat16": 1e10, "bytes": 1e10})
    for discovery, host in ((CUDA, GPU_HOST), (DISCOVERY, HOST)):
        remains = divide(
            told, drawn.expovariate(20.0), wait=drawn.expovariate(100.0), discovery=discovery, host=host
        )
        parts(remains)
        assert all(row.floor_seconds < row.seconds for row in remains.above)
