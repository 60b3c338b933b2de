"""What this machine offers, as a list of Checks: the data behind ``flatout doctor``.

Every function here only looks; files that it reads are arguments, so that tests can show it others.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from flatout.host import Gpu, Host, Interpreter
from flatout.interpreter import OLDEST_PYTHON, OLDEST_TORCH

ENOUGH_DISK_BYTES = 5 << 30
"""A search keeps compile caches, one set of reference gradients and the trials' logs."""
CAP_SYS_ADMIN, CAP_PERFMON = 21, 38

NVIDIA_PARAMS = Path("/proc/driver/nvidia/params")


class State(StrEnum):
    OK = "ok"
    NOTE = "note"
    """It works, but less well than it could."""
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at. ``remedy`` says how to get it where it is missing."""

    group: str
    name: str
    state: State
    detail: str
    remedy: str = ""


def check_gpus(host: Host, mig: Mapping[str, bool]) -> list[Check]:
    """Each GPU, the driver and its CUDA version, and whether a GPU is split into MIG slices."""
    if not host.gpus:
        detail = "none that NVML names"
        remedy = "on a machine with an NVIDIA GPU: install its driver; in a container: --gpus all"
        if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
            detail += f"; CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r}"
        return [Check(group="GPU", name="GPU", state=State.MISSING, detail=detail, remedy=remedy)]
    checks = [_check_gpu(index, gpu, mig.get(gpu.uuid, False)) for index, gpu in enumerate(host.gpus)]
    detail = f"{host.driver or 'unknown'}, serves CUDA up to {host.cuda or 'unknown'}"
    return [*checks, Check(group="GPU", name="driver", state=State.OK, detail=detail)]


def _check_gpu(index: int, gpu: Gpu, mig: bool) -> Check:
    major, minor = gpu.compute_capability
    detail = f"{gpu.name}, {gpu.memory_bytes / 2**30:.1f} GiB, compute capability {major}.{minor}"
    name = f"GPU {index}"
    if mig:
        return Check(
            group="GPU",
            name=name,
            state=State.NOTE,
            detail=f"{detail}, split by MIG",
            remedy="name one slice: CUDA_VISIBLE_DEVICES=MIG-... (nvidia-smi -L lists them)",
        )
    if (major, minor) < (8, 0):
        return Check(
            group="GPU",
            name=name,
            state=State.NOTE,
            detail=detail,
            remedy="TF32 and BF16 need 8.0 (Ampere) or later; the other techniques work",
        )
    return Check(group="GPU", name=name, state=State.OK, detail=detail)


def capabilities(status: Path = Path("/proc/self/status")) -> int:
    """This process's effective capabilities as a bit set; 0 where they cannot be read."""
    try:
        for line in status.read_text().splitlines():
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        return 0
    return 0


def check_profiling(params: Path = NVIDIA_PARAMS, held: int | None = None) -> Check:
    """Whether hardware counters of the GPU may be read. Tracing kernels needs no permission at all."""
    group, name = "profiling", "GPU counters"
    try:
        text = params.read_text()
    except OSError:
        return Check(
            group=group, name=name, state=State.MISSING, detail=f"no NVIDIA driver ({params} is not there)"
        )
    values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    admin_only = values.get("RmProfilingAdminOnly", "1").strip() != "0"
    held = capabilities() if held is None else held
    if not admin_only:
        return Check(group=group, name=name, state=State.OK, detail="open to every user")
    if held & (1 << CAP_SYS_ADMIN | 1 << CAP_PERFMON):
        return Check(group=group, name=name, state=State.OK, detail="for administrators only; this is one")
    return Check(
        group=group,
        name=name,
        state=State.NOTE,
        detail="for administrators only (RmProfilingAdminOnly is 1); tracing works without",
        remedy="CAP_PERFMON for the process, or the driver option NVreg_RestrictProfilingToAdminUsers=0",
    )


def check_namespaces(proc_sys: Path = Path("/proc/sys")) -> Check:
    """Whether an ordinary user may make a user namespace, as far as the kernel's settings tell."""

    def setting(name: str) -> str | None:
        try:
            return proc_sys.joinpath(name).read_text().strip()
        except OSError:
            return None

    blocks = (
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    )
    name = "user namespaces"
    for path, value, remedy in blocks:
        if setting(path) == value:
            detail = f"forbidden: {path.replace('/', '.')} is {value}"
            return Check(
                group="isolation", name=name, state=State.NOTE, detail=detail, remedy=f"as root: {remedy}"
            )
    if setting("user/max_user_namespaces") is None:
        return Check(
            group="isolation",
            name=name,
            state=State.MISSING,
            detail="this kernel has none",
            remedy="run as root",
        )
    return Check(group="isolation", name=name, state=State.OK, detail="allowed by the kernel's settings")


def check_compiler(gpu: bool) -> Check:
    """A C++ compiler, which torch.compile needs on a CPU, and a C compiler, which Triton needs on a GPU."""
    found = [path for name in ("g++", "clang++", "gcc", "cc") if (path := shutil.which(name))]
    named = os.environ.get("CXX") or os.environ.get("CC")
    if named and shutil.which(named):
        found.insert(0, named)
    wanted = "C compiler" if gpu else "C++ compiler"
    usable = [path for path in found if gpu or "++" in Path(path).name or path == named]
    if usable:
        return Check(group="compilers", name=wanted, state=State.OK, detail=usable[0])
    return Check(
        group="compilers",
        name=wanted,
        state=State.MISSING,
        detail="torch.compile cannot work without it",
        remedy="Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++",
    )


def check_triton(interpreter: Interpreter, gpu: bool) -> Check:
    """Triton beside the program's torch: torch.compile writes GPU kernels with it."""
    found = _installed(interpreter, "triton")
    if found:
        return Check(group="compilers", name="Triton", state=State.OK, detail=found)
    return Check(
        group="compilers",
        name="Triton",
        state=State.MISSING if gpu else State.OK,
        detail="not in the program's interpreter" + ("" if gpu else "; not needed without a GPU"),
        remedy="pip install triton, of the version that this torch names" if gpu else "",
    )


def _installed(interpreter: Interpreter, name: str) -> str:
    if name in interpreter.packages:
        return f"{name} {interpreter.packages[name]}"
    for folder in map(Path, interpreter.site_packages):
        if (folder / name).is_dir():
            return str(folder / name)
    return ""


def check_interpreter(interpreter: Interpreter) -> list[Check]:
    """The program's Python and torch, and whether the agent can work in them."""
    group = "program"
    version = _numbers(interpreter.version)
    old = version < OLDEST_PYTHON
    checks = [
        Check(
            group=group,
            name="Python",
            state=State.MISSING if old else State.OK,
            detail=f"{interpreter.version} at {interpreter.executable}",
            remedy="the agent needs Python 3.9 or later" if old else "",
        )
    ]
    torch = interpreter.torch_version
    if torch is None:
        remedy = "name a command whose Python has it: flatout doctor -- /path/to/python train.py"
        checks.append(
            Check(
                group=group, name="torch", state=State.MISSING, detail="not installed there", remedy=remedy
            )
        )
    elif _numbers(torch) < OLDEST_TORCH:
        checks.append(
            Check(
                group=group,
                name="torch",
                state=State.MISSING,
                detail=torch,
                remedy=f"torch {'.'.join(map(str, OLDEST_TORCH))} or later is needed",
            )
        )
    else:
        checks.append(Check(group=group, name="torch", state=State.OK, detail=torch))
    others = ", ".join(
        f"{name} {found}" for name, found in sorted(interpreter.packages.items()) if name != "torch"
    )
    if others:
        checks.append(Check(group=group, name="beside it", state=State.OK, detail=others))
    return checks


def _numbers(version: str) -> tuple[int, int]:
    parts = []
    for part in version.split(".")[:2]:
        digits = "".join(letter for letter in part if letter.isdigit())
        parts.append(int(digits or 0))
    return (parts[0], parts[1]) if len(parts) == 2 else (parts[0] if parts else 0, 0)


def check_disk(folder: Path) -> Check:
    """Space where flatout would keep its files."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / 2**30:.1f} GiB free for {folder}"
    if not os.access(existing, os.W_OK):
        return Check(
            group="disk",
            name="space",
            state=State.MISSING,
            detail=f"{existing} cannot be written",
            remedy="give --out a folder that can",
        )
    if free < ENOUGH_DISK_BYTES:
        remedy = f"{ENOUGH_DISK_BYTES >> 30} GiB are enough for most models; --out chooses another disk"
        return Check(group="disk", name="space", state=State.NOTE, detail=detail, remedy=remedy)
    return Check(group="disk", name="space", state=State.OK, detail=detail)


def check_machine(host: Host) -> list[Check]:
    """Processor, memory and flatout's own Python."""
    return [
        Check(
            group="machine",
            name="processor",
            state=State.OK,
            detail=f"{host.cpu}, {host.cpu_count} usable, {host.memory_bytes / 2**30:.1f} GiB of memory",
        ),
        Check(group="machine", name="system", state=State.OK, detail=host.system),
        Check(
            group="machine",
            name="flatout's Python",
            state=State.OK,
            detail=f"{sys.version.split()[0]} at {sys.executable}",
        ),
    ]
