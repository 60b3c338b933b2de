"""The bf16 act: when its autocast region is open, and how it closes among the program's own."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from flatout.agent.acts import bf16  # noqa: E402
from flatout.agent.acts import compile as compile_act  # noqa: E402
from flatout.agent.refused import Refused  # noqa: E402

from .fakes import make_acts, wrapped  # noqa: E402

pytestmark = pytest.mark.torch


def autocast_state():
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    )


@pytest.fixture
def bf16_act():
    """The act, its patch of torch.autocast taken back afterwards; the state must be as it was."""
    before = autocast_state()
    _, (act,) = make_acts(bf16.Act)
    yield act
    act._region.unwatch()
    assert autocast_state() == before
    assert torch.autocast_increment_nesting() == 1, "a region was left open or closed twice"
    torch.autocast_decrement_nesting()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


def is_open():
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_the_loss_outside_the_model_is_inside_the_region_and_backward_closes_it(bf16_act):
    net = model()
    call = wrapped([bf16_act], net)
    out = call(X)
    assert out.dtype == torch.bfloat16 and is_open()
    loss = nn.functional.cross_entropy(out, torch.zeros(5, dtype=torch.long))
    assert loss.dtype == torch.float32
    bf16_act.before_backward(loss)
    assert not is_open()
    loss.backward()
    assert all(p.dtype == torch.float32 and p.grad.dtype == torch.float32 for p in net.parameters())
    assert bf16_act.evidence()["closed_by"] == {"backward": 1}
    assert bf16_act.evidence()["matmul_dtypes"] == {"bfloat16": 2}


def test_it_equals_the_lines_written_by_hand(bf16_act):
    by_hand = model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = by_hand(X).square().mean()
    wanted.backward()
    net = model()
    loss = wrapped([bf16_act], net)(X).square().mean()
    bf16_act.before_backward(loss)
    loss.backward()
    assert torch.equal(loss, wanted)
    for a, b in zip(net.parameters(), by_hand.parameters()):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("why", ["optimizer step", "call outside training"])
def test_it_closes_when_backward_never_comes(bf16_act, why):
    wrapped([bf16_act], model())(X)
    bf16_act.close(why)
    assert not is_open()
    assert bf16_act.evidence()["closed_by"] == {why: 1}
    bf16_act.close(why)
    assert bf16_act.evidence()["closed_by"] == {why: 1}


def test_zero_grad_between_model_and_loss_leaves_the_loss_in_float32(bf16_act):
    out = wrapped([bf16_act], model())(X)
    bf16_act.close("zero_grad")
    loss = nn.functional.cross_entropy(out, torch.zeros(5, dtype=torch.long))
    assert loss.dtype == torch.float32
    bf16_act.before_backward(loss)
    assert not is_open() and bf16_act.evidence()["closed_by"] == {"backward": 1}


def test_after_zero_grad_without_backward_the_next_call_has_a_region_of_its_own(bf16_act):
    net = model()
    call = wrapped([bf16_act], net)
    call(X)
    bf16_act.close("zero_grad")
    call(X)
    assert bf16_act.evidence()["closed_by"] == {"zero_grad, then another call": 1}
    assert bf16_act.evidence()["regions_opened"] == 2
    bf16_act.after_step(1)
    assert not is_open()


def test_it_closes_when_the_call_raises(bf16_act):
    with pytest.raises(RuntimeError):
        wrapped([bf16_act], model())(torch.ones(5, 3))
    assert not is_open()
    assert bf16_act.evidence()["closed_by"] == {"exception": 1}


def test_casts_of_weights_do_not_outlive_the_region(bf16_act):
    net = nn.Linear(8, 4, bias=False)
    call = wrapped([bf16_act], net)
    first = call(X)
    bf16_act.before_backward(first)
    with torch.no_grad():
        net.weight.mul_(2.0)
    second = call(X)
    bf16_act.close("end")
    torch.testing.assert_close(second, first * 2)


def test_a_call_without_gradients_does_not_cost_the_next_its_gradients(bf16_act):
    """pytorch#112583: a cast made under no_grad and kept has no gradient."""
    net = nn.Linear(8, 4, bias=False)
    call = wrapped([bf16_act], net)
    call(X)
    bf16_act.close("no-grad call")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        net(X)
    loss = call(X).sum()
    bf16_act.before_backward(loss)
    loss.backward()
    assert net.weight.grad is not None and net.weight.grad.abs().sum() > 0


def test_several_units_share_one_region(bf16_act):
    generator, critic = model(), nn.Linear(4, 1)
    loss = wrapped([bf16_act], critic)(wrapped([bf16_act], generator)(X)).mean()
    assert bf16_act.evidence()["regions_opened"] == 1
    bf16_act.before_backward(loss)
    assert not is_open()


@pytest.mark.parametrize("region", [{"dtype": torch.bfloat16, "enabled": False}, {"enabled": False}])
def test_the_programs_region_around_the_call_is_overridden_and_closes_first(bf16_act, region):
    """nanoGPT with --dtype=float32 runs its forward in an autocast region that does nothing."""
    net = model()
    call = wrapped([bf16_act], net)
    before = autocast_state()
    with torch.autocast("cpu", **region):
        out = call(X)
        assert out.dtype == torch.bfloat16 and is_open()
    assert autocast_state() == before
    assert bf16_act.evidence()["closed_by"] == {"the program's own autocast region ended": 1}
    assert bf16_act.evidence()["overridden"] == {"autocast disabled or float32": 1}
    bf16_act.before_backward(out)
    assert autocast_state() == before


def test_a_region_inside_the_model_stays(bf16_act):
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.outer = nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                self.seen = self.inner(x).dtype
            return self.outer(x)

    net = Rotary()
    out = wrapped([bf16_act], net)(X)
    assert net.seen == torch.float32 and out.dtype == torch.bfloat16 and is_open()
    bf16_act.before_backward(out)
    assert not is_open()


def test_a_region_of_the_programs_around_the_loss_may_be_open_at_backward(bf16_act):
    before = autocast_state()
    out = wrapped([bf16_act], model())(X)
    with torch.autocast("cpu", enabled=False):
        loss = out.float().square().mean()
        inside = autocast_state()
        bf16_act.before_backward(loss)
        assert autocast_state() == inside
        loss.backward()
    assert autocast_state() == before


def test_two_regions_of_the_programs_may_be_open_at_backward(bf16_act):
    before = autocast_state()
    out = wrapped([bf16_act], model())(X)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        with torch.autocast("cpu", enabled=False):
            bf16_act.before_backward(out)
        assert is_open()
    assert autocast_state() == before


def test_around_and_inside_at_once(bf16_act):
    before = autocast_state()
    with torch.autocast("cpu", enabled=False):
        around = autocast_state()
        out = wrapped([bf16_act], model())(X)
        with torch.autocast("cpu", enabled=False):
            bf16_act.before_backward(out)
        assert autocast_state() == around
    assert autocast_state() == before


def test_the_next_step_opens_again(bf16_act):
    net = model()
    call = wrapped([bf16_act], net)
    for _ in range(3):
        with torch.autocast("cpu", enabled=False):
            loss = call(X).float().sum()
        bf16_act.before_backward(loss)
        loss.backward()
    assert bf16_act.evidence()["regions_opened"] == 3


def test_a_region_of_another_device_is_left_alone(bf16_act):
    out = wrapped([bf16_act], model())(X)
    with torch.autocast("xpu" if hasattr(torch, "xpu") else "cpu", enabled=False):
        bf16_act.before_backward(out)
        assert not is_open()


def test_the_decorator_form_is_seen(bf16_act):
    call = wrapped([bf16_act], model())

    @torch.autocast("cpu", enabled=False)
    def forward(x):
        return call(x)

    assert forward(X).dtype == torch.bfloat16
    assert not is_open()


def test_a_program_with_its_own_low_precision_is_refused(bf16_act):
    call = wrapped([bf16_act], model())
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(Refused, match="already there"):
        call(X)


@pytest.mark.parametrize(("dtype", "word"), [(torch.float64, "float64"), (torch.bfloat16, "already there")])
def test_other_parameters_are_refused(bf16_act, dtype, word):
    with pytest.raises(Refused, match=word):
        wrapped([bf16_act], model().to(dtype))


def test_with_compile_the_graph_shows_the_dtypes():
    torch._dynamo.reset()
    _, acts = make_acts(bf16.Act, compile_act.Act)
    try:
        net = model()
        out = wrapped(acts, net)(X)
        acts[0].before_backward(out)
        assert out.dtype == torch.bfloat16
        assert acts[0].evidence()["matmul_dtypes"] == {"bfloat16": 2}
    finally:
        acts[0]._region.unwatch()


@pytest.mark.parametrize("returns", ["logits", "loss"])
def test_a_program_that_compiles_itself_is_not_compiled_again(bf16_act, returns):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 4)

        def forward(self, x):
            out = self.inner(x)
            return out if returns == "logits" else out.float().sum()

    torch._dynamo.reset()
    graphs = []

    def backend(graph_module, example_inputs):
        graphs.append(graph_module)
        return graph_module.forward

    net = torch.compile(Net(), backend=backend)
    call = wrapped([bf16_act], net)
    for _ in range(4):
        bf16_act.before_backward(call(X))
    assert bf16_act.evidence()["matmul_dtypes"].get("bfloat16")
    if returns == "logits":
        assert len(graphs) == 1


def test_the_model_stays_picklable_and_copyable(bf16_act):
    net = model()
    out = wrapped([bf16_act], net)(X)
    bf16_act.before_backward(out)
    assert list(pickle.loads(pickle.dumps(net)).state_dict()) == list(copy.deepcopy(net).state_dict())
