"""Recurrent layers under BF16: on a GPU autocast gives them float16, and the act does not."""

from __future__ import annotations

import collections
import copy
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402

from flatout.agent.acts.recurrent import Recurrent  # noqa: E402

pytestmark = pytest.mark.torch

X = torch.randn(7, 3, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def recurrent():
    """On the CPU what is for cuda elsewhere."""
    originals = {name: getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    one = Recurrent(torch, "cpu")
    one.watch()
    yield one
    one.unwatch()
    assert {name: getattr(torch._VF, name) for name in originals} == originals


def layers():
    torch.manual_seed(0)
    return [
        nn.LSTM(8, 6, 2, bidirectional=True),
        nn.GRU(8, 6),
        nn.RNN(8, 6),
        nn.RNN(8, 6, nonlinearity="relu"),
        nn.LSTM(8, 6, batch_first=True, bias=False),
    ]


@pytest.mark.parametrize("place", range(5))
def test_what_it_is_given_is_cast_and_gradients_reach_the_float32_weights(recurrent, place):
    layer = layers()[place]
    low = copy.deepcopy(layer).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(X)[0]
        assert torch.is_autocast_enabled("cpu")
    wanted = low(X.bfloat16())[0]
    assert out.dtype == torch.bfloat16 and torch.equal(out, wanted)
    out.float().sum().backward()
    wanted.float().sum().backward()
    for mine, theirs in zip(layer.parameters(), low.parameters(), strict=True):
        assert mine.grad.dtype == torch.float32
        assert torch.equal(mine.grad, theirs.grad.float())
    assert recurrent.calls == {"bfloat16": 1}


def test_packed_sequences_and_a_state_of_ones_own(recurrent):
    layer = layers()[0]
    packed = pack_padded_sequence(X, torch.tensor([7, 5, 2]))
    state = (torch.zeros(4, 3, 6), torch.zeros(4, 3, 6))
    with torch.autocast("cpu", torch.bfloat16):
        out, (hidden, cell) = layer(packed, state)
    assert {out.data.dtype, hidden.dtype, cell.dtype} == {torch.bfloat16}


def test_cudnns_warning_of_the_cast_copies_is_not_the_programs(recurrent):
    # warnings are errors here
    warnings.warn("RNN module weights are not part of single contiguous chunk", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning):
        warnings.warn("another", UserWarning, stacklevel=1)


def test_a_state_that_is_a_named_tuple(recurrent):
    state_of = collections.namedtuple("state_of", "hidden cell")
    layer = nn.LSTM(8, 6)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = layer(X, state_of(torch.zeros(1, 3, 6), torch.zeros(1, 3, 6)))
    assert out.dtype == torch.bfloat16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def test_a_scripted_layer_still_works(recurrent):
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(net)
    assert torch.equal(scripted(X), net(X))


def test_elsewhere_nothing_is_touched(recurrent):
    layer = layers()[1]
    assert layer(X)[0].dtype == torch.float32
    double = copy.deepcopy(layer).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert double(X.double())[0].dtype == torch.float64
    assert recurrent.calls == {}


def test_a_failing_layer_leaves_autocast_on(recurrent):
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RuntimeError, match="size"):
            layers()[1](X[..., :5])
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("version", "cudnn", "hip", "dtype"),
    [
        ("2.11.0+cu130", 91900, None, torch.bfloat16),
        ("2.13.1", 91300, None, torch.bfloat16),
        ("2.11.0", 90100, None, torch.float32),
        ("2.9.1", 91900, None, torch.float32),
        ("2.11.0", 91900, "6.4", torch.float32),
        ("2.11.0", None, None, torch.float32),
    ],
)
def test_bfloat16_only_where_cudnn_has_it(version, cudnn, hip, dtype):
    stand_in = types.SimpleNamespace(
        bfloat16=torch.bfloat16,
        float32=torch.float32,
        __version__=version,
        version=types.SimpleNamespace(hip=hip),
        backends=types.SimpleNamespace(cudnn=types.SimpleNamespace(enabled=True, version=lambda: cudnn)),
    )
    assert Recurrent(stand_in).chosen_dtype() is dtype
