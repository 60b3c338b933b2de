"""The sdpa act: with and without compile, masks that change, layers, pickling."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from flatout.agent.acts import compile as compile_act  # noqa: E402
from flatout.agent.acts import sdpa  # noqa: E402
from flatout.agent.refused import Refused  # noqa: E402

from . import attention_forms as forms  # noqa: E402
from .fakes import make_acts, wrapped  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Two(nn.Module):
    """Two layers of one class, hence of one code object."""

    def __init__(self, kind=forms.NanoGpt):
        super().__init__()
        self.layers = nn.ModuleList([kind(), kind()])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def train_step(call, module, x):
    loss = call(x).square().mean()
    module.zero_grad()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def test_without_compile_every_layer_is_rewritten_and_trains_the_same():
    module = Two()
    x = torch.randn(2, 6, forms.WIDTH)
    wanted = train_step(module, module, x)
    _, (act,) = make_acts(sdpa.Act)
    call = wrapped([act], module)
    for step in range(1, 5):
        found = train_step(call, module, x)
        act.after_step(step)
    for have, want in zip(found, wanted):
        torch.testing.assert_close(have, want, rtol=2e-5, atol=2e-6)
    evidence = act.evidence()
    assert evidence["rewritten"] == 2 and not evidence["left"]
    assert evidence["runs_of_rewritten_graphs"] == 4
    assert {site["form"] for site in evidence["sites"]} == {"is_causal=True"}


def test_keys_type_and_pickle_stay():
    module = Two()
    keys = list(module.state_dict())
    before = copy.deepcopy(module.state_dict())
    _, (act,) = make_acts(sdpa.Act)
    call = wrapped([act], module)
    call(torch.randn(2, 6, forms.WIDTH))
    assert list(module.state_dict()) == keys and type(module) is Two
    restored = pickle.loads(pickle.dumps(module))
    assert all(torch.equal(a, b) for a, b in zip(restored.state_dict().values(), before.values()))


def test_with_compile_the_rewrite_is_a_pass_of_its_backend():
    module = Two()
    x = torch.randn(2, 6, forms.WIDTH)
    wanted = train_step(module, module, x)
    _, acts = make_acts(sdpa.Act, compile_act.Act)
    call = wrapped(acts, module)
    found = train_step(call, module, x)
    for have, want in zip(found, wanted):
        torch.testing.assert_close(have, want, rtol=2e-5, atol=2e-6)
    assert acts[0].evidence()["rewritten"] == 2
    assert acts[0].evidence()["runs_of_rewritten_graphs"] == 1
    assert acts[1].evidence()["last_call_compiled"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["torch.compile", "module.compile", "layer.compile"])
def test_a_program_that_compiles_itself_keeps_its_own_compiler(how):
    module = Two()
    x = torch.randn(2, 6, forms.WIDTH)
    wanted = train_step(module, module, x)
    inductor = importlib.import_module("torch._inductor.compile_fx")
    plain, compiled = inductor.compile_fx, []
    _, (act,) = make_acts(sdpa.Act)
    try:
        if how == "torch.compile":
            call = wrapped([act], torch.compile(module))
        elif how == "module.compile":
            module.compile()
            call = wrapped([act], module, module._compiled_call_impl)
        else:
            for layer in module.layers:
                layer.compile()
            call = wrapped([act], module)
        patched = inductor.compile_fx
        assert patched is not plain

        def counting(*args, **kwargs):
            compiled.append(1)
            return patched(*args, **kwargs)

        inductor.compile_fx = counting
        found = train_step(call, module, x)
    finally:
        inductor.compile_fx = plain
    for have, want in zip(found, wanted):
        torch.testing.assert_close(have, want, rtol=2e-5, atol=2e-6)
    assert compiled and act.evidence()["rewritten"] >= 1
    assert act.evidence()["runs_of_rewritten_graphs"] >= 1


@pytest.mark.parametrize("replace", [False, True], ids=["in place", "another tensor"])
def test_a_mask_that_changes_is_noticed_and_the_numbers_stay_right(replace):
    module = forms.NanoGpt()
    x = torch.randn(2, 6, forms.WIDTH)
    _, (act,) = make_acts(sdpa.Act)
    call = wrapped([act], module)
    torch.testing.assert_close(call(x), module(x))
    act.after_step(1)
    if replace:
        module.bias = torch.ones_like(module.bias)
    else:
        module.bias.fill_(1)
    torch.testing.assert_close(call(x), module(x), rtol=2e-5, atol=2e-6)
    if act.evidence()["rewritten"] == 2:
        return  # torch 2.4 guards which tensor it is, and captured the graph anew
    with pytest.raises(Refused, match="was changed"):
        act.after_step(2)


def test_a_mask_moved_without_change_is_no_fault():
    module = forms.NanoGpt()
    x = torch.randn(2, 6, forms.WIDTH)
    _, (act,) = make_acts(sdpa.Act)
    call = wrapped([act], module)
    call(x)
    module.bias = module.bias.clone()
    module.load_state_dict(copy.deepcopy(module.state_dict()))
    torch.testing.assert_close(call(x), module(x), rtol=2e-5, atol=2e-6)
    act.after_step(1)
    assert act.evidence()["mask_changed"] == ""


def test_layers_of_one_frame_with_other_masks_are_told_apart():
    """Where the graph breaks at each layer, one compiled frame may serve them all."""

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([forms.NanoGpt(), forms.NanoGpt()])
            self.layers[1].bias.fill_(1)

        def forward(self, x):
            for layer in self.layers:
                torch._dynamo.graph_break()
                x = x + layer(x)
            return x

    module = Broken()
    x = torch.randn(2, 6, forms.WIDTH)
    _, (act,) = make_acts(sdpa.Act)
    call = wrapped([act], module)
    for _ in range(3):
        torch.testing.assert_close(call(x), module(x), rtol=2e-5, atol=2e-6)


def test_a_graph_without_attention_is_refused_with_the_reason():
    module = forms.ScaleAfterSoftmax()
    _, (act,) = make_acts(sdpa.Act)
    call = wrapped([act], module)
    call(torch.randn(2, 6, forms.WIDTH))
    act.after_step(1)
    with pytest.raises(Refused, match=r"attention_forms\.py:\d+: softmax is followed by mul"):
        act.after_step(3)


@pytest.mark.frameworks
def test_a_hugging_face_model_is_switched_by_its_own_method():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=50,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 50, (2, 12))
    plain = model(ids, labels=ids).loss
    _, (act,) = make_acts(sdpa.Act)
    call = wrapped([act], model)
    torch.testing.assert_close(call(ids, labels=ids).loss, plain, rtol=1e-5, atol=1e-6)
    assert act.evidence()["switched"]
    assert model.config._attn_implementation == "sdpa"
