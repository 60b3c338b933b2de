"""Programs and machines for the tests of declarations."""

from __future__ import annotations

from dataclasses import replace

from flatout.host import Gpu, Host, Interpreter
from flatout.workload import Discovery, Unit

GIB = 1 << 30


def gpu(name: str, major: int, minor: int) -> Gpu:
    return Gpu(name=name, uuid=f"GPU-{name}", memory_bytes=80 * GIB, compute_capability=(major, minor))


def host(*gpus: Gpu) -> Host:
    return Host(system="Linux 6.1", cpu="a CPU", cpu_count=8, memory_bytes=64 * GIB, gpus=gpus)


H200 = gpu("NVIDIA H200", 9, 0)
T4 = gpu("Tesla T4", 7, 5)
P100 = gpu("Tesla P100", 6, 0)

PYTHON = Interpreter(
    executable="/usr/bin/python3",
    version="3.12.3",
    site_packages=(),
    torch_version="2.11.0+cu130",
    packages={"triton": "3.6.0"},
)

PROGRAM = Discovery(
    step_unit="optimizer",
    anchor=0,
    backwards_per_step=1.0,
    device="cuda",
    units=(Unit(name="GPT", class_name="GPT", parameters=1000, called="call"),),
    optimizers=({"class_name": "AdamW", "fused": False, "exact_class": True, "sparse": False},),
    torch_version="2.11.0+cu130",
    attention="hand-written",
    parameter_dtypes=("float32",),
)


def program(**changes) -> Discovery:
    return replace(PROGRAM, **changes)
