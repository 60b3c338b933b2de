"""The least time that an operator can take, from the shapes of its inputs."""

from __future__ import annotations

import pytest

from flatout.search.peaks import gpu_peaks
from flatout.search.roofline import Cost, cost_of, floor_of, precision_of
from flatout.trial import Work

F, H, L = "float", "c10::BFloat16", "long int"
H200 = gpu_peaks("NVIDIA H200")


def work(operator, *inputs, numbers=(), calls=1, seconds=1.0, kernels=()):
    return Work(
        operator=operator, calls=calls, seconds=seconds, inputs=inputs, numbers=numbers, kernels=kernels
    )


@pytest.mark.parametrize(
    ("row", "flops", "moved"),
    [
        (work("aten::mm", (F, (8, 4)), (F, (4, 2))), 2 * 8 * 4 * 2, 4 * (32 + 8 + 16)),
        (work("aten::addmm", (H, (2,)), (H, (8, 4)), (H, (4, 2))), 128, 2 * (2 + 32 + 8 + 16)),
        (work("aten::bmm", (F, (3, 8, 4)), (F, (3, 4, 2))), 3 * 128, 4 * 3 * (32 + 8 + 16)),
        (
            work(
                "aten::cudnn_convolution",
                (F, (1, 3, 8, 8)),
                (F, (4, 3, 3, 3)),
                numbers=((), (), (1, 1), (2, 2), (1, 1), (1,)),
            ),
            2 * 4 * 16 * 27,
            4 * (192 + 108 + 64),
        ),
        (
            work(
                "aten::convolution_backward",
                (F, (1, 4, 4, 4)),
                (F, (1, 3, 8, 8)),
                (F, (4, 3, 3, 3)),
                numbers=((), (), (), (4,), (2, 2), (1, 1), (1, 1), (0,), (0, 0), (1,), (0, 1, 1)),
            ),
            2 * 4 * 16 * 27,
            4 * (64 + 192 + 108 + 108),
        ),
        (
            work(
                "aten::_scaled_dot_product_flash_attention",
                *[(H, (2, 3, 16, 8))] * 3,
                numbers=((), (), (), (), (1,)),
            ),
            0.5 * 4 * 2 * 3 * 16 * 16 * 8,
            2 * 4 * 768,
        ),
        (
            work(
                "aten::_flash_attention_forward",
                *[(H, (2, 16, 3, 8))] * 3,
                numbers=((), (), (), (), (), (16,), (16,), (), (0,)),
            ),
            4 * 2 * 3 * 16 * 16 * 8,
            2 * 4 * 768,
        ),
        (work("aten::add", (F, (8, 4)), (F, (4,))), 0, 4 * (32 + 4 + 32)),
        (work("aten::mul_", (F, (8, 4)), (F, ())), 0, 4 * (32 + 1 + 32)),
        (work("aten::eq", (F, (8, 4)), (F, ())), 0, 4 * 33 + 32),
        (work("aten::sum", (F, (8, 4))), 0, 128),
        (work("aten::copy_", (H, (8,)), (F, (8,))), 0, 16 + 32),
        (work("aten::fill_", (F, (8,)), (F, ())), 0, 32),
        (work("aten::index_select", (F, (50_000, 8)), (L, (4,))), 0, 2 * 4 * 8 * 4 + 32),
        (work("aten::_foreach_mul_", ("list", (1000,)), ("double", ())), 0, 8000),
        (work("aten::_fused_adamw_", *[("list", (1000,))] * 4, ("list", (0,))), 0, 4 * 7 * 1000),
        (work("triton_poi_fused_add_gelu_3", (H, (64,)), (H, (64,)), (H, (64,))), 0, 3 * 128),
    ],
    ids=lambda value: value.operator if isinstance(value, Work) else "",
)
def test_arithmetic_and_bytes(row, flops, moved):
    assert cost_of(row) == Cost(flops=flops, bytes=moved)


@pytest.mark.parametrize(
    "row",
    [
        work("void at::native::some_kernel<float>"),
        work("AddmmBackward0", (F, (8, 4))),
        work("aten::mm", (F, (8, 4)), (F, (5, 2))),
        work("mylib::my_operator", (F, (8, 4))),
        work("aten::add", ("c10::Something", (8, 4))),
        work("aten::_foreach_mul_", ("list", ()), ("double", ())),
        work("aten::linear", (F, (8, 4)), (F, (2, 4))),
        work("aten::cudnn_convolution", (F, (1, 3, 8, 8)), (F, (4, 3, 3, 3))),
        work(""),
    ],
    ids=lambda row: row.operator,
)
def test_what_shapes_do_not_tell_has_no_cost(row):
    assert cost_of(row) is None
    assert floor_of(row, H200) is None


def test_a_large_product_is_bound_by_arithmetic_and_a_thin_one_by_memory():
    large = floor_of(work("aten::mm", (H, (8192, 8192)), (H, (8192, 8192))), H200)
    assert large.arithmetic
    assert large.seconds == pytest.approx(2 * 8192**3 / 989.5e12)
    thin = floor_of(work("aten::mm", (H, (1, 8192)), (H, (8192, 8192))), H200)
    assert not thin.arithmetic
    assert thin.seconds == pytest.approx(2 * (8192 * 8192 + 2 * 8192) / 4.8e12)


def test_the_precision_that_ran_decides_the_peak():
    shapes = ((F, (4096, 4096)), (F, (4096, 4096)))
    plain = work("aten::mm", *shapes, kernels=(("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", 1.0),))
    tf32 = work("aten::mm", *shapes, kernels=(("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n", 1.0),))
    assert precision_of(plain) == "float32"
    assert precision_of(tf32) == "tf32"
    assert floor_of(plain, H200).seconds == pytest.approx(2 * 4096**3 / 67e12)
    assert floor_of(tf32, H200).seconds == pytest.approx(2 * 4096**3 / 494.5e12)
    faster = work("aten::mm", *shapes, seconds=1e-3, kernels=(("nvjet_unnamed", 1e-3),))
    assert floor_of(faster, H200).precision == "tf32"


def test_a_floor_is_never_above_the_time_that_was_taken():
    floor = floor_of(work("aten::add", (F, (1 << 20,)), (F, (1 << 20,)), seconds=1e-9), H200)
    assert floor.seconds == 1e-9


def test_calls_are_counted():
    one = floor_of(work("aten::add", (F, (1 << 20,)), (F, (1 << 20,))), H200)
    ten = floor_of(work("aten::add", (F, (1 << 20,)), (F, (1 << 20,)), calls=10), H200)
    assert ten.seconds == pytest.approx(10 * one.seconds)


def test_a_gpu_that_is_not_listed_has_no_peak():
    assert gpu_peaks("NVIDIA H100 80GB HBM3")["bfloat16"] == 989.5e12
    assert gpu_peaks("NVIDIA H100 80GB HBM3 MIG 1g.10gb") == {}
    assert gpu_peaks("NVIDIA GeForce RTX 4090 Laptop GPU") == {}
    assert gpu_peaks("Some other GPU") == {}
    assert floor_of(work("aten::mm", (F, (8, 4)), (F, (4, 2))), {}) is None
    assert "bfloat16" not in gpu_peaks("Tesla T4")
