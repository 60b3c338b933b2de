"""Why each technique cannot be tried: true, specific, and naming the value seen."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from flatout.techniques import TECHNIQUES, technique_named

from .hosts import H200, P100, PYTHON, T4, host, program


@pytest.fixture(autouse=True)
def _compilers(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def reason(name, discovery=None, machine=None, interpreter=PYTHON):
    machine = host(H200) if machine is None else machine
    return technique_named(name).unfit(program() if discovery is None else discovery, machine, interpreter)


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_a_plain_program_on_a_new_gpu_may_try_all(technique):
    assert technique.unfit(program(), host(H200), PYTHON) is None


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda t: t.name)
def test_what_the_program_has_already_is_named(technique):
    seen = program(already={technique.name: "as the program says"})
    assert technique.unfit(seen, host(H200), PYTHON) == "already there: as the program says"


CASES = [
    ("tf32", {"device": "cpu"}, "trains on cpu"),
    ("tf32", {"parameter_dtypes": ("float64",)}, "float64 parameters"),
    ("bf16", {"grad_scaler": True}, "GradScaler"),
    ("bf16", {"already": {"fp16": "autocast float16"}}, "already there: autocast float16"),
    ("bf16", {"parameter_dtypes": ("float32", "float64")}, "float64 parameters"),
    ("bf16", {"device": "mps"}, "trains on mps"),
    ("bf16", {"units": ()}, "no module was found"),
    ("sdpa", {"attention": "none"}, "no attention was seen"),
    ("sdpa", {"attention": "sdpa"}, "already there: scaled_dot_product_attention"),
    ("sdpa", {"units": ()}, "no module was found"),
    ("compile", {"units": ()}, "no module was found"),
    ("fused_optimizer", {"optimizers": ()}, "no optimiser object"),
    ("fused_optimizer", {"optimizers": ({"class_name": "RMSprop"},)}, "no fused RMSprop"),
    (
        "fused_optimizer",
        {"optimizers": ({"class_name": "MyAdam", "exact_class": False},)},
        "MyAdam is not torch.optim's own class",
    ),
    (
        "fused_optimizer",
        {"optimizers": ({"class_name": "SGD", "sparse": True},)},
        "SGD was given sparse gradients",
    ),
]


@pytest.mark.parametrize(("name", "changes", "words"), CASES)
def test_a_reason_of_the_program(name, changes, words):
    assert words in (reason(name, program(**changes)) or "")


@pytest.mark.parametrize(
    ("name", "gpu", "words"),
    [
        ("tf32", T4, "TF32 needs SM 8.0 or later; this Tesla T4 is SM 7.5"),
        ("bf16", T4, "BF16 on tensor cores needs SM 8.0 or later; this Tesla T4 is SM 7.5"),
        ("compile", P100, "needs SM 7.0 or later; this Tesla P100 is SM 6.0"),
    ],
)
def test_a_reason_of_the_gpu(name, gpu, words):
    assert words in (reason(name, machine=host(gpu)) or "")
    assert words in (reason(name, machine=host(H200, gpu)) or "")


def test_bf16_may_be_tried_on_a_cpu_and_must_show_itself():
    assert reason("bf16", program(device="cpu"), host()) is None


def test_compile_wants_triton_on_a_gpu_wherever_it_lies(tmp_path):
    bare = replace(PYTHON, packages={})
    assert "Triton" in (reason("compile", interpreter=bare) or "")
    (tmp_path / "triton").mkdir()
    assert reason("compile", interpreter=replace(bare, site_packages=(str(tmp_path),))) is None
    assert reason("compile", program(device="cpu"), host(), bare) is None


def test_compile_wants_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    assert "no g++ or clang++ on PATH" in (reason("compile", program(device="cpu"), host()) or "")
    assert "no gcc, cc or clang on PATH" in (reason("compile") or "")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "my-c++" else None)
    monkeypatch.setenv("CXX", "my-c++ -O2")
    assert reason("compile", program(device="cpu"), host()) is None


def test_compile_follows_a_new_python_later():
    old = program(torch_version="2.5.1")
    words = "torch.compile on Python 3.13 needs torch 2.6 or later; the program has torch 2.5.1"
    assert reason("compile", old, interpreter=replace(PYTHON, version="3.13.0")) == words
    assert (
        reason("compile", program(torch_version="2.6.0"), interpreter=replace(PYTHON, version="3.13.0"))
        is None
    )
    assert reason("compile", old, interpreter=replace(PYTHON, version="3.9.18")) is None


def test_a_fused_one_among_several_is_passed_over():
    two = program(
        optimizers=(
            {"class_name": "AdamW", "fused": True, "exact_class": True},
            {"class_name": "SGD", "fused": False, "exact_class": True},
        )
    )
    assert reason("fused_optimizer", two) is None


def test_frameworks_take_bf16_without_a_unit():
    assert reason("bf16", program(units=(), frameworks=("accelerate",))) is None
