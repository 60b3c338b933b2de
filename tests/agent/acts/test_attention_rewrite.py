"""The attention rewrite: what is rewritten, into what, with which numbers, and what is left."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from flatout.agent.acts.attention_rewrite import rewrite_attention  # noqa: E402
from flatout.agent.acts.graph_mask import is_causal, kept_tensors  # noqa: E402

from . import attention_forms as forms  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def capture(module, x, *, dynamic=None):
    """(output, what each graph's rewrite did, their code) of a call through the rewriting backend."""
    results, code = [], []

    def backend(graph_module, example_inputs):
        results.append(rewrite_attention(torch, graph_module, example_inputs, kept_tensors(torch, module)))
        code.append(graph_module.code)
        return graph_module.forward

    call = torch.compile(module._call_impl, backend=backend, dynamic=dynamic)
    return call(x), results, "\n".join(code)


def gradients(module, x, output):
    trained = [p for p in module.parameters() if p.requires_grad]
    return torch.autograd.grad(output.square().sum(), [x, *trained])


def sites(results):
    return [site for result in results for site in result.sites]


def reasons(results):
    return [left["reason"] for result in results for left in result.left]


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", forms.FORMS)
def test_a_form_is_rewritten_and_computes_the_same(name, dynamic):
    make, form = forms.FORMS[name]
    module = make()
    x = torch.randn(3, 6, forms.WIDTH, requires_grad=True)
    plain = module(x)
    wanted = gradients(module, x, plain)
    output, results, code = capture(module, x, dynamic=dynamic)
    assert [site["form"] for site in sites(results)] == [form], reasons(results)
    assert sites(results)[0]["checked"] <= 1e-9
    assert "scaled_dot_product_attention" in code and "softmax" not in code
    for have, want in zip((output, *gradients(module, x, output)), (plain, *wanted)):
        torch.testing.assert_close(have, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", forms.LOOK_ALIKES)
def test_a_look_alike_is_left_with_the_reason(name):
    make, word = forms.LOOK_ALIKES[name]
    module = make()
    x = torch.randn(3, 6, forms.WIDTH, requires_grad=True)
    _, results, code = capture(module, x)
    assert not sites(results)
    assert "scaled_dot_product_attention" not in code
    assert len(reasons(results)) == 1 and word in reasons(results)[0]
    (left,) = [left for result in results for left in result.left]
    path, _, line = left["where"].rpartition(":")
    assert path.endswith("attention_forms.py") and int(line) > 0


def test_a_strictly_lower_mask_is_not_called_causal():
    module = forms.StrictlyLower()
    x = torch.randn(2, 6, forms.WIDTH)
    plain = module(x)
    output, results, _ = capture(module, x)
    assert all(site["form"] != forms.CAUSAL for site in sites(results))
    torch.testing.assert_close(output, plain)


@pytest.mark.parametrize(
    ("mask", "causal"),
    [
        (torch.ones(4, 4).tril(), True),
        (torch.ones(1, 1, 4, 4).tril(), True),
        (torch.ones(4, 4), False),
        (torch.ones(4, 4).tril(-1), False),
        (torch.ones(4, 4).tril(1), False),
        (torch.ones(4, 4).triu(), False),
        (torch.ones(4, 4).tril() - torch.ones(4, 4).tril(-3), False),
        (torch.ones(3, 4).tril(), False),
        (torch.stack([torch.ones(4, 4).tril(), torch.ones(4, 4)]), False),
        (torch.ones(()), False),
    ],
)
def test_causal_means_exactly_the_lower_triangle(mask, causal):
    assert is_causal(torch, mask.bool()) is causal


def test_a_mask_of_another_length_is_not_causal():
    class Shifted(forms.Base):
        """Keys of the whole memory, queries of its end: rows are not columns."""

        def attend(self, q, k, v):
            q = q[:, :, -4:]
            scores = (q @ k.transpose(-2, -1)) * self.scale
            scores = scores.masked_fill(self.bias[:, :, :4, :6] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
            return F.pad(y, (0, 0, 2, 0))

    module = Shifted()
    x = torch.randn(2, 6, forms.WIDTH)
    plain = module(x)
    output, results, _ = capture(module, x)
    assert [site["form"] for site in sites(results)] == [forms.MASKED]
    torch.testing.assert_close(output, plain)


def test_the_window_that_shows_only_in_longer_calls_is_seen():
    """A mask that is the triangle at the traced length and a band at longer ones."""

    class LongBand(forms.Base):
        def __init__(self):
            super().__init__()
            rows = torch.arange(64)
            away = rows[:, None] - rows[None, :]
            self.register_buffer("band", (away >= 0) & (away < 16))

        def attend(self, q, k, v):
            length = q.size(-2)
            scores = (q @ k.transpose(-2, -1)) * self.scale
            scores = scores.masked_fill(~self.band[:length, :length], float("-inf"))
            return F.softmax(scores, dim=-1) @ v

    module = LongBand()
    x = torch.randn(2, 6, forms.WIDTH)
    _, results, _ = capture(module, x, dynamic=True)
    assert [site["form"] for site in sites(results)] == [forms.MASKED]
    torch._dynamo.reset()
    _, results, _ = capture(module, x, dynamic=False)
    assert [site["form"] for site in sites(results)] == [forms.CAUSAL]


def test_without_randomness_there_is_no_dropout_in_it():
    """A graph's code calls SDPA by name, past what stands in its place while randomness is off."""

    class Dropped(forms.NoMask):
        def attend(self, q, k, v):
            att = F.softmax((q @ k.transpose(-2, -1)) * self.scale, dim=-1)
            return F.dropout(att, 0.25, self.training) @ v

    code = []

    def backend(graph_module, example_inputs):
        kept = kept_tensors(torch, module)
        rewrite_attention(torch, graph_module, example_inputs, kept, randomness_off=True)
        code.append(graph_module.code)
        return graph_module.forward

    module = Dropped()
    torch.compile(module._call_impl, backend=backend)(torch.randn(3, 6, forms.WIDTH))
    assert "dropout_p = 0.0" in "\n".join(code)


def test_dropout_keeps_its_rate_and_stays_fresh():
    class Dropped(forms.NoMask):
        def attend(self, q, k, v):
            att = F.softmax((q @ k.transpose(-2, -1)) * self.scale, dim=-1)
            return F.dropout(att, 0.25, self.training) @ v

    class Bare(Dropped):
        def forward(self, x):
            q = k = torch.zeros(64, 1, 32, 8)
            return self.attend(q, k, x)

    module = Bare()
    identity = torch.eye(32).expand(64, 1, 32, 32).contiguous()
    output, results, code = capture(module, identity)
    assert [site["form"] for site in sites(results)] == ["no mask, dropout_p=0.25"]
    assert "dropout_p = 0.25" in code
    # With all scores equal and v the identity, the output is the dropped weights themselves.
    count = output.numel()
    dropped = (output == 0).sum().item()
    assert abs(dropped / count - 0.25) < 6 * math.sqrt(0.25 * 0.75 / count)
    torch.testing.assert_close(output[output != 0], torch.full((count - dropped,), 1 / 32 / 0.75))
    module.eval()
    torch._dynamo.reset()
    _, results, _ = capture(module, identity)
    assert [site["form"] for site in sites(results)] == ["no mask"]


def test_the_check_draws_no_random_numbers_of_the_programs():
    module = forms.NanoGpt()
    x = torch.randn(2, 6, forms.WIDTH)
    before = torch.get_rng_state()
    capture(module, x)
    assert torch.equal(torch.get_rng_state(), before)


def test_under_autocast_the_dtype_stays():
    module = forms.NanoGpt()
    x = torch.randn(2, 6, forms.WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = module(x)
        output, results, _ = capture(module, x)
    assert [site["form"] for site in sites(results)] == [forms.CAUSAL]
    assert output.dtype == plain.dtype
    torch.testing.assert_close(output, plain, rtol=2e-2, atol=2e-2)


def test_autocast_switched_off_in_between_is_left():
    class Careful(forms.Base):
        def attend(self, q, k, v):
            scores = (q @ k.transpose(-2, -1)) * self.scale
            with torch.autocast("cpu", enabled=False):
                att = F.softmax(scores.float(), dim=-1)
            return att @ v

    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, results, _ = capture(Careful(), torch.randn(2, 6, forms.WIDTH))
    assert not sites(results)
    assert "autocast" in reasons(results)[0]


def test_a_whole_region_of_the_programs_own_is_kept_around():
    class Inside(forms.NanoGpt):
        def attend(self, q, k, v):
            with torch.autocast("cpu", enabled=False):
                return super().attend(q.float(), k.float(), v.float())

    module = Inside()
    x = torch.randn(2, 6, forms.WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = module(x)
        output, results, _ = capture(module, x)
    assert [site["form"] for site in sites(results)] == [forms.CAUSAL]
    torch.testing.assert_close(output, plain, rtol=1e-2, atol=1e-2)


def test_a_mask_given_with_each_call_is_no_constant():
    class Given(nn.Module):
        def forward(self, x, mask):
            scores = (x @ x.transpose(-2, -1)).masked_fill(mask == 0, float("-inf"))
            return F.softmax(scores, dim=-1) @ x

    module = Given()
    seen = []

    def backend(graph_module, example_inputs):
        seen.append(rewrite_attention(torch, graph_module, example_inputs, kept_tensors(torch, module)))
        return graph_module.forward

    x, mask = torch.randn(2, 6, 8), torch.ones(6, 6).tril()
    output = torch.compile(module._call_impl, backend=backend)(x, mask)
    assert [site["form"] for site in sites(seen)] == [forms.MASKED]
    torch.testing.assert_close(output, module(x, mask))
