"""Look at the machine and describe it as a Host: NVML for the GPUs, /proc and psutil for the rest.

Without a driver, or without NVML's library, there are no GPUs: a machine without one is not an error.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from flatout.host import Gpu, Host

CPUINFO = Path("/proc/cpuinfo")


def detect_host(*, isolation: str = "redirect") -> Host:
    """This machine. ``isolation`` is the strongest way that was found to work (see flatout.isolation)."""
    import psutil

    gpus, driver, cuda = detect_gpus()
    return Host(
        system=f"{platform.system()} {platform.release()}",
        cpu=cpu_name(),
        cpu_count=usable_cpus(),
        memory_bytes=usable_memory_bytes(psutil.virtual_memory().total),
        gpus=gpus,
        driver=driver,
        cuda=cuda,
        isolation=isolation,
    )


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name as the kernel gives it, else its architecture."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        # ARM kernels give no model name; "Model" and "Hardware" stand there on some boards.
        if colon and key.strip().lower() in ("model name", "hardware") and value.strip():
            return " ".join(value.split())
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """Processors that this process may run on: a container's or taskset's share, not the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory_bytes(
    physical_bytes: int,
    limits: tuple[Path, ...] = (
        Path("/sys/fs/cgroup/memory.max"),
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ),
) -> int:
    """Physical memory, or the control group's limit (v2, v1) where that is lower."""
    for limit in limits:
        try:
            text = limit.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return min(physical_bytes, int(text))
    return physical_bytes


def visible(index: int, uuid: str, wanted: str | None) -> bool:
    """Whether CUDA_VISIBLE_DEVICES, when it is set, lets a program see this GPU.

    Entries are indexes or prefixes of UUIDs; as CUDA reads it, an entry that is neither ends the list.
    """
    if wanted is None:
        return True
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.isdigit():
            if int(entry) == index:
                return True
        elif entry.startswith(("GPU-", "MIG-")):
            if uuid.startswith(entry):
                return True
        else:
            break
    return False


def detect_gpus(nvml: Any = None) -> tuple[tuple[Gpu, ...], str | None, str | None]:
    """(GPUs, driver version, highest CUDA version of the driver); nothing where NVML does not answer.

    ``nvml`` is the pynvml module, loaded here unless one is given.
    """
    nvml = nvml or load_nvml()
    if nvml is None:
        return (), None, None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return (), None, None
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
            if visible(index, uuid, wanted):
                major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
                gpus.append(
                    Gpu(
                        name=_text(nvml.nvmlDeviceGetName(handle)),
                        uuid=uuid,
                        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                        compute_capability=(int(major), int(minor)),
                    )
                )
        return tuple(gpus), driver, cuda
    except nvml.NVMLError:
        return (), None, None
    finally:
        nvml.nvmlShutdown()


def mig_modes(nvml: Any = None) -> dict[str, bool]:
    """UUID -> whether Multi-Instance GPU is on; GPUs that have no such mode are left out."""
    nvml = nvml or load_nvml()
    if nvml is None:
        return {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    modes = {}
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            try:
                current, _pending = nvml.nvmlDeviceGetMigMode(handle)
            except nvml.NVMLError:
                continue
            modes[_text(nvml.nvmlDeviceGetUUID(handle))] = bool(current)
    except nvml.NVMLError:
        return modes
    finally:
        nvml.nvmlShutdown()
    return modes


def load_nvml() -> Any:
    """The pynvml module, or None where it is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
