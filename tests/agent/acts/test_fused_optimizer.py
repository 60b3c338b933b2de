"""The fused optimiser act: which it takes, what stays of the program's state, what it refuses."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

from flatout.agent.acts import fused_optimizer  # noqa: E402
from flatout.agent.refused import Refused  # noqa: E402

from .fakes import make_acts  # noqa: E402

pytestmark = pytest.mark.torch

KINDS = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "SGD plain": lambda p: torch.optim.SGD(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def fused_kinds():
    """Those that this torch has a fused form of on a CPU: Adagrad's came later than the others'."""
    kinds = []
    for name, make in KINDS.items():
        mark = []
        if name == "Adagrad":
            one = torch.zeros(1, requires_grad=True)
            try:
                torch.optim.Adagrad([one], fused=True)
            except (TypeError, RuntimeError):
                mark = [pytest.mark.skip(reason=f"torch {torch.__version__} has no fused Adagrad")]
        kinds.append(pytest.param(make, id=name, marks=mark))
    return kinds


@pytest.fixture
def act():
    _, (act,) = make_acts(fused_optimizer.Act)
    yield act
    for name, plain in act._plain_kernels.items():
        setattr(torch, name, plain)


def problem(make):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    return net, make(net.parameters())


def step(net, optimizer, seed):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("make", fused_kinds())
def test_the_updates_are_the_same_and_the_kernel_ran(act, make):
    net, optimizer = problem(make)
    plain, plain_optimizer = problem(make)
    for index in range(6):
        if index == 0:
            act.on_optimizer(optimizer)
        step(net, optimizer, index)
        step(plain, plain_optimizer, index)
        act.after_step(index + 1)
    for have, want in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-7)
    evidence = act.evidence()
    assert evidence["optimizers"][0]["groups"] == evidence["optimizers"][0]["fused_groups"] == 1
    assert sum(evidence["fused_calls"].values()) >= 1
    assert not act._plain_kernels, "the counting of kernels ends after the first steps"


@pytest.mark.parametrize("make", fused_kinds())
def test_after_load_state_dict_it_is_applied_again(act, make):
    plain, plain_optimizer = problem(make)
    for index in range(3):
        step(plain, plain_optimizer, index)
    saved = copy.deepcopy((plain.state_dict(), plain_optimizer.state_dict()))
    net, optimizer = problem(make)
    act.on_optimizer(optimizer)
    step(net, optimizer, 9)
    net.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert not optimizer.param_groups[0]["fused"]
    act.on_optimizer(optimizer)
    assert optimizer.param_groups[0]["fused"]
    for index in range(3, 6):
        step(net, optimizer, index)
        step(plain, plain_optimizer, index)
    for have, want in zip(net.parameters(), plain.parameters()):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("make", fused_kinds())
def test_what_is_saved_is_what_the_program_would_have_saved(act, make):
    net, optimizer = problem(make)
    plain, plain_optimizer = problem(make)
    act.on_optimizer(optimizer)
    for index in range(2):
        step(net, optimizer, index)
        step(plain, plain_optimizer, index)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert saved["param_groups"] == plain_optimizer.state_dict()["param_groups"]
    wanted = plain_optimizer.state_dict()["state"]
    for key, values in saved["state"].items():
        assert set(values) == set(wanted[key])
        for name, value in values.items():
            if torch.is_tensor(value):
                assert value.dtype == wanted[key][name].dtype and value.device == wanted[key][name].device
    assert optimizer.param_groups[0]["fused"] is True, "saving leaves it fused"
    again, again_optimizer = problem(make)
    again_optimizer.load_state_dict(saved)
    step(again, again_optimizer, 5)
    assert not again_optimizer.param_groups[0]["fused"]


def test_a_group_added_later_is_fused_too(act):
    net, optimizer = problem(KINDS["AdamW"])
    act.on_optimizer(optimizer)
    step(net, optimizer, 0)
    act.after_step(1)
    extra = nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [extra], "lr": 0.5})
    extra.grad = torch.ones(3)
    step(net, optimizer, 1)
    act.after_step(2)
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]
    extra.grad = torch.ones(3)
    step(net, optimizer, 2)
    fresh = torch.optim.AdamW([nn.Parameter(torch.ones(1))]).param_groups[0]
    assert optimizer.state_dict()["param_groups"][0]["fused"] == fresh["fused"]


def test_a_scaler_that_skips_steps_still_skips(act):
    net, optimizer = problem(KINDS["AdamW"])
    act.on_optimizer(optimizer)
    before = [p.detach().clone() for p in net.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(net(torch.full((2, 6), float("inf"))).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    assert scaler.get_scale() == 4.0


def test_sparse_gradients_are_refused(act):
    bag = nn.EmbeddingBag(10, 4, sparse=True)
    optimizer = torch.optim.SGD(bag.parameters(), lr=0.1)
    bag(torch.tensor([[1, 2]])).sum().backward()
    with pytest.raises(Refused, match=r"shape \(10, 4\) is sparse"):
        act.on_optimizer(optimizer)


class Own(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Own, "a subclass of AdamW"),
        (torch.optim.RMSprop, "RMSprop has no fused form"),
        (lambda p: torch.optim.Adam(p, differentiable=True), "differentiable=True"),
    ],
)
def test_others_are_refused(act, make, words):
    _, optimizer = problem(make)
    with pytest.raises(Refused, match=words):
        act.on_optimizer(optimizer)
    assert not optimizer.param_groups[0].get("fused")


def test_complex_parameters_are_refused_by_torchs_own_word(act):
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(Refused, match=r"has no fused AdamW for torch\.complex64"):
        act.on_optimizer(torch.optim.AdamW([parameter]))


def test_an_explicit_foreach_gives_way(act):
    net, optimizer = problem(lambda p: torch.optim.AdamW(p, foreach=True))
    act.on_optimizer(optimizer)
    step(net, optimizer, 0)
    assert optimizer.state_dict()["param_groups"][0]["foreach"] is True


def test_probing_fires_no_hook_of_the_programs(act):
    seen = []
    handle = register_optimizer_step_post_hook(lambda *a: seen.append(a))
    try:
        _, optimizer = problem(KINDS["AdamW"])
        act.on_optimizer(optimizer)
    finally:
        handle.remove()
    assert not seen
