"""The compile act: in place, counted, and refused where it does not settle."""

from __future__ import annotations

import importlib
import pickle
import shutil

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from flatout.agent.acts import compile as compile_act  # noqa: E402
from flatout.agent.refused import Refused  # noqa: E402

from .fakes import make_acts, wrapped  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not shutil.which("g++"), reason="no g++: the compiler for a CPU needs it"),
]


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def test_it_compiles_in_place_and_trains_the_same():
    net, x = model(), torch.randn(5, 8)
    net(x).square().mean().backward()
    wanted = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    keys = list(net.state_dict())
    _, (act,) = make_acts(compile_act.Act)
    call = wrapped([act], net)
    call(x).square().mean().backward()
    act.after_step(1)
    for have, want in zip((p.grad for p in net.parameters()), wanted):
        torch.testing.assert_close(have, want, rtol=2e-5, atol=2e-6)
    assert list(net.state_dict()) == keys and type(net) is nn.Sequential
    pickle.dumps(net)
    evidence = act.evidence()
    assert evidence["graphs"] == 1 and evidence["last_call_compiled"] and not evidence["recompiles"]
    assert evidence["graph_breaks"] == 0


def test_graph_breaks_are_counted_and_located():
    class Prints(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            x = self.inner(x)
            torch._dynamo.graph_break()
            return x.relu()

    _, (act,) = make_acts(compile_act.Act)
    wrapped([act], Prints())(torch.randn(3, 8))
    evidence = act.evidence()
    assert evidence["graph_breaks"] == 1
    assert "test_compile.py:" in evidence["breaks"][0]["where"]
    assert evidence["breaks"][0]["reason"]
    assert evidence["graphs"] == 2


def test_one_change_of_length_settles():
    net = model()
    _, (act,) = make_acts(compile_act.Act)
    call = wrapped([act], net)
    for step, rows in enumerate((5, 7, 9, 11, 6, 8, 12, 13), 1):
        call(torch.randn(rows, 8))
        act.after_step(step)
    assert act.evidence()["recompiles"] == 1


class Grows(nn.Module):
    """What it computes depends on a number of its own, so no dynamic shape settles it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.label = "0"

    def forward(self, x):
        return self.inner(x) * len(self.label)


def test_recompiling_without_end_is_refused_with_the_count():
    net = Grows()
    _, (act,) = make_acts(compile_act.Act)
    call = wrapped([act], net)
    step = 0
    with pytest.raises(
        Refused, match=r"\d+ recompiles, most at .*test_compile\.py:\d+; lengths change: dynamic"
    ):
        for step in range(1, 20):
            net.label = "x" * step
            call(torch.randn(3, 8))
            act.after_step(step)
    assert 4 < step < 12
    assert act.evidence()["recompiles"] >= 4


def test_with_dynamic_the_advice_is_another():
    net = Grows()
    _, (act,) = make_acts(compile_act.Act, compile={"dynamic": True})
    call = wrapped([act], net)
    with pytest.raises(Refused, match="leave compile out"):
        for step in range(1, 20):
            net.label = "x" * step
            call(torch.randn(3, 8))
            act.after_step(step)


def test_dynamic_from_the_start_compiles_once():
    net = model()
    _, (act,) = make_acts(compile_act.Act, compile={"dynamic": True})
    call = wrapped([act], net)
    for step, rows in enumerate((5, 7, 9), 1):
        call(torch.randn(rows, 8))
        act.after_step(step)
    assert act.evidence()["graphs"] == 1 and act.evidence()["recompiles"] == 0


def test_giving_up_is_noticed():
    """Past its limit dynamo runs the function as it was, with a warning that few read."""
    config = importlib.import_module("torch._dynamo.config")
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    net = Grows()
    _, (act,) = make_acts(compile_act.Act)
    call = wrapped([act], net)
    with config.patch(**{limit: 2}), pytest.raises(Refused, match="gave up"):
        for step in range(1, 8):
            net.label = "x" * step
            call(torch.randn(3, 8))
            act.after_step(step)
    assert not act.evidence()["last_call_compiled"] and act.evidence()["eager_calls"] == 1


def test_a_compiler_that_fails_is_refused_with_its_first_line(monkeypatch):
    def broken(graph_module, example_inputs):
        raise NotImplementedError("no lowering for aten.strange\nmore lines")

    monkeypatch.setattr(compile_act, "_inductor", broken)
    _, (act,) = make_acts(compile_act.Act)
    call = wrapped([act], model())
    with pytest.raises(
        Refused, match=r"torch\.compile failed: NotImplementedError: no lowering for aten\.strange$"
    ):
        call(torch.randn(5, 8))


def test_an_error_of_the_programs_own_stays_its_own():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            if x.shape[0] > 4:
                raise KeyError("the program's own")
            return self.inner(x)

    _, (act,) = make_acts(compile_act.Act)
    call = wrapped([act], Fails())
    call(torch.randn(3, 8))
    with pytest.raises(KeyError, match="the program's own"):
        call(torch.randn(5, 8))


def test_a_call_without_anything_to_compile_is_refused():
    class Outside(nn.Module):
        def forward(self, x):
            torch._dynamo.graph_break()
            return x

    _, (act,) = make_acts(compile_act.Act)
    wrapped([act], Outside())(torch.randn(3, 8))
    with pytest.raises(Refused, match="no graph to compile"):
        act.after_step(1)
