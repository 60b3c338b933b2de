"""What several techniques ask of a program and a machine before they can be tried.

Each function gives the reason against, naming the value seen, or None.
"""

from __future__ import annotations

import re

from flatout.host import Gpu, Host, Interpreter
from flatout.workload import Discovery


def already(name: str, discovery: Discovery) -> str | None:
    """The program has the technique by itself."""
    seen = discovery.already.get(name)
    return f"already there: {seen}" if seen else None


def on_cuda(discovery: Discovery) -> bool:
    return discovery.device == "cuda"


def weakest(host: Host) -> Gpu | None:
    """The GPU of the lowest compute capability: what all of a program's ranks have."""
    return min(host.gpus, key=lambda gpu: gpu.compute_capability, default=None)


def older_than(host: Host, capability: tuple[int, int], need: str) -> str | None:
    """``need`` wants an SM that the machine's weakest GPU does not have."""
    gpu = weakest(host)
    if gpu is None or gpu.compute_capability >= capability:
        return None
    major, minor = gpu.compute_capability
    return (
        f"{need} needs SM {capability[0]}.{capability[1]} or later; this {gpu.name} is SM {major}.{minor}"
    )


def no_unit(discovery: Discovery) -> str | None:
    """There is no module around whose call anything could be put."""
    if discovery.units:
        return None
    return "no module was found whose call leads to the loss: there is nothing to wrap"


def numbers(version: str | None) -> tuple[int, ...]:
    """``2.11.0+cu130`` -> (2, 11, 0); empty for what is no version."""
    found = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def torch_numbers(discovery: Discovery, interpreter: Interpreter) -> tuple[int, ...]:
    return numbers(discovery.torch_version or interpreter.torch_version)


def torch_older_than(
    discovery: Discovery, interpreter: Interpreter, least: tuple[int, int], need: str
) -> str | None:
    """The program's torch is older than ``need`` wants."""
    have = torch_numbers(discovery, interpreter)
    if not have or have >= least:
        return None
    version = discovery.torch_version or interpreter.torch_version
    return f"{need} needs torch {least[0]}.{least[1]} or later; the program has torch {version}"


def double_precision(discovery: Discovery, need: str) -> str | None:
    """The model is trained in float64, which ``need`` would not touch, or should not."""
    dtypes = discovery.parameter_dtypes
    if dtypes and "float64" in dtypes:
        return f"the model has float64 parameters, which {need} leaves as they are"
    return None
