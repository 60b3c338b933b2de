"""The rounding of a format, woven into products and their gradients: which ones, how far, and where not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from flatout.agent.guarding.rounding import BITS, Rounding, rounded  # noqa: E402
from flatout.agent.guarding.truth import _make_mode  # noqa: E402
from flatout.guard.bits import BY_TECHNIQUE  # noqa: E402

pytestmark = pytest.mark.torch
WIDTH = 32


def test_formats_have_as_many_bits_here_as_where_a_plan_is_judged():
    assert BITS == BY_TECHNIQUE


@pytest.fixture
def autocast_as_before():
    autocast = torch.amp.autocast_mode.autocast
    before = autocast.__enter__, autocast.__exit__
    yield
    autocast.__enter__, autocast.__exit__ = before


class Woven:
    """A rounding in its mode: inside the float64 truth's, or by itself for one in float32."""

    def __init__(self, format_name: str, *, double: bool = True, draw: int = 0) -> None:
        self.rounding = Rounding(torch, format_name, draw)
        self.rounding.watch_autocast()
        self.rounding.open = True
        self.rounding.device = "cpu"
        truth = SimpleNamespace(asleep=0, rounding=self.rounding)
        self.mode = _make_mode(torch, truth) if double else self.rounding.mode()

    def __enter__(self) -> Rounding:
        self.mode.__enter__()
        return self.rounding

    def __exit__(self, *error: Any) -> None:
        self.mode.__exit__(*error)


def kept(tensor: Any, bits: int) -> bool:
    """Its numbers have no more bits than that."""
    return bool(torch.equal(tensor, rounded(torch, tensor, bits)))


def numbers(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def test_the_nearest_number() -> None:
    values = numbers(10_000, dtype=torch.float32) * torch.exp(8.0 * numbers(10_000, seed=1)).float()
    assert torch.equal(rounded(torch, values, 8), values.bfloat16().float())
    halves = values.half().float()
    normal = torch.isfinite(halves) & (values.abs() > 1e-4)
    assert torch.equal(rounded(torch, values, 11)[normal], halves[normal])
    apart = (rounded(torch, values.double(), 11) / values.double() - 1.0).abs().max()
    assert 2.0**-13 < apart <= 2.0**-11
    odd = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-42])
    assert torch.equal(rounded(torch, odd, 8)[:4], odd[:4])
    assert torch.isnan(rounded(torch, odd, 8)[4])
    assert rounded(torch, numbers(3, 4).t(), 8).shape == (4, 3)


PRODUCTS = {
    "linear": F.linear,
    "matmul": lambda x, w: x @ w,
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
    "addmm": lambda x, w: torch.addmm(torch.zeros_like(x), x, w),
    "conv1d": lambda x, w: F.conv1d(x[None], w[:, :, None]),
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", PRODUCTS)
def test_bf16_products(name: str, double: bool) -> None:
    dtype = torch.float64 if double else torch.float32
    x, w = (numbers(WIDTH, WIDTH, seed=seed, dtype=dtype).requires_grad_() for seed in (1, 2))
    with Woven("bf16", double=double):
        out = PRODUCTS[name](x, w)
        (out * numbers(WIDTH, WIDTH, seed=3, dtype=dtype)).sum().backward()
    low = [tensor.detach().bfloat16().requires_grad_() for tensor in (x, w)]
    theirs = PRODUCTS[name](*low)
    (theirs * numbers(WIDTH, WIDTH, seed=3).bfloat16()).sum().backward()
    assert out.dtype == x.grad.dtype == dtype
    pairs = (out.detach(), theirs.detach()), (x.grad, low[0].grad), (w.grad, low[1].grad)
    for mine, other in pairs:
        assert kept(mine, BITS["bf16"])
        # but for the order of sums, which turns a last bit here and there
        assert (mine == other.to(dtype)).double().mean() > 0.9


def test_tf32_loses_bits_on_the_way_in_only() -> None:
    x, w = (numbers(WIDTH, WIDTH, seed=seed).requires_grad_() for seed in (1, 2))
    direction = numbers(WIDTH, WIDTH, seed=3)
    with Woven("tf32"):
        out = F.linear(x, w)
        (out * direction).sum().backward()
    a, b, g = (rounded(torch, one.detach(), BITS["tf32"]) for one in (x, w, direction))
    assert torch.allclose(out.detach(), a @ b.t(), rtol=1e-13, atol=1e-13)
    assert torch.allclose(x.grad, g @ b, rtol=1e-13, atol=1e-13)
    assert torch.allclose(w.grad, g.t() @ a, rtol=1e-13, atol=1e-13)


def test_another_device_than_the_models_stays_exact() -> None:
    x = numbers(WIDTH, WIDTH)
    exact = x @ x
    for format_name in ("tf32", "bf16"):
        with Woven(format_name) as rounding:
            rounding.device = "cuda"
            assert torch.equal(x @ x, exact)
            rounding.device = "cpu"
            low = x @ x
        assert not torch.equal(low, exact)
    rounding = Rounding(torch, "bf16")
    rounding.training_call(nn.Linear(2, 2))
    assert (rounding.open, rounding.device) == (True, "cpu")
    rounding = Rounding(torch, "tf32")
    rounding.training_call(nn.Linear(2, 2))
    assert rounding.device == "cuda"


def test_another_draw_errs_as_much_and_otherwise() -> None:
    values = numbers(20_000)
    errors = [Rounding(torch, "bf16", draw).nearest(values, 8) - values for draw in (0, 1, 2)]
    sizes = [float((error / values).square().mean().sqrt()) for error in errors]
    assert max(sizes) < 1.15 * min(sizes)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        together = torch.corrcoef(torch.stack([errors[one], errors[other]]))[0, 1]
        assert abs(together) < 0.1
    again = Rounding(torch, "bf16", 1).nearest(values, 8) - values
    assert torch.equal(again, errors[1])
    assert Rounding(torch, "bf16", 1, 3).bits == 5
    assert Rounding(torch, "nvfp4", 1, 3).bits == 2


@pytest.mark.parametrize("double", [True, False])
def test_what_is_no_product_stays_exact(double: bool) -> None:
    dtype = torch.float64 if double else torch.float32
    x = numbers(WIDTH, WIDTH, dtype=dtype)
    with Woven("bf16", double=double):
        soft, normal = F.softmax(x, -1), F.layer_norm(x, (WIDTH,))
    assert torch.equal(soft, F.softmax(x, -1))
    assert torch.equal(normal, F.layer_norm(x, (WIDTH,)))


def test_the_programs_own_regions(autocast_as_before: None) -> None:
    """One with autocast off stays exact, but for what is around the training call or for TF32."""
    x = numbers(WIDTH, WIDTH)
    exact = x @ x
    with Woven("bf16") as rounding:
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(x @ x, exact)
        assert not torch.equal(x @ x, exact)
        rounding.open = False
        assert torch.equal(x @ x, exact)
        with torch.autocast("cpu", enabled=False):
            rounding.open = True
            assert not torch.equal(x @ x, exact)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert not torch.equal(x @ x, exact)
        rounding.open = False
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = x @ x
    assert kept(low, BITS["bf16"])
    with Woven("tf32") as rounding:
        rounding.open = False
        with torch.autocast("cpu", enabled=False):
            assert not torch.equal(x @ x, exact)


@pytest.mark.parametrize("double", [True, False])
def test_an_attention_module_is_looked_into(double: bool) -> None:
    dtype = torch.float64 if double else torch.float32
    attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True, dtype=dtype)
    x = numbers(2, 5, WIDTH, dtype=dtype)
    with Woven("bf16", double=double):
        out, _ = attention(x, x, x, need_weights=True)
        out.sum().backward()
    plain, _ = attention(x, x, x, need_weights=True)
    assert kept(out.detach(), BITS["bf16"])
    assert kept(attention.in_proj_weight.grad, BITS["bf16"])
    assert torch.allclose(out, plain, atol=0.05)


def test_recurrent_modules_and_gradients_of_gradients() -> None:
    net = nn.LSTM(WIDTH, WIDTH, dtype=torch.float64)
    with Woven("bf16"):
        out, (hidden, _) = net(numbers(3, 2, WIDTH))
        (out.sum() + hidden.sum()).backward()
    assert kept(out.detach(), BITS["bf16"])
    assert kept(net.weight_hh_l0.grad, BITS["bf16"])
    x, w = (numbers(4, 4, seed=seed).requires_grad_() for seed in (1, 2))
    with Woven("bf16"):
        (gradient,) = torch.autograd.grad((x @ w).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
    assert torch.isfinite(w.grad).all()
    assert kept(w.grad, BITS["bf16"]) or w.grad.abs().sum() > 0


@pytest.mark.parametrize("draw", [0, 1])
def test_what_is_too_large_stays_as_it_is(draw: int) -> None:
    rounding = Rounding(torch, "bf16", draw)
    limits = torch.finfo(torch.float32)
    small = torch.tensor([limits.max, limits.min, float("nan"), float("-inf")])
    large = torch.tensor([1e300, -1e300, limits.min, float("inf")], dtype=torch.float64)
    for values in (small, large):
        assert torch.equal(rounding.nearest(values, 8).nan_to_num(), values.nan_to_num())
    assert rounded(torch, torch.tensor([float("nan")]), 8).isnan().all()
