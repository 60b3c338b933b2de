"""Memory that is free for new processes now: of the host under its control groups' limits, and of a GPU.

Totals say too much: other users' processes hold a part, and a container may have less than its machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.detect import load_nvml

MEMINFO = Path("/proc/meminfo")
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def host_room_bytes(meminfo: Path = MEMINFO, own: Path = OWN_GROUPS, groups: Path = GROUPS) -> int | None:
    """What the kernel calls available, or what is left of the tightest limit above this process.

    None where neither can be read.
    """
    known = [room for room in (_available(meminfo), *_left_of_groups(own, groups)) if room is not None]
    return min(known, default=None)


def gpu_room_bytes(uuid: str, nvml: Any = None) -> int | None:
    """Free memory of the GPU with this UUID; None where NVML does not tell."""
    nvml = nvml or load_nvml()
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(uuid)).free)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _available(meminfo: Path) -> int | None:
    for line in _lines(meminfo):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _left_of_groups(own: Path, groups: Path) -> list[int]:
    """What each limit on the way from this process's group to the root still allows."""
    left = []
    for line in _lines(own):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2
            names = ("memory.max", "memory.current", "inactive_file")
            base = groups
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = groups / "memory"
        else:
            continue
        folder = base / path.strip("/")
        # in a container the path may be the host's, which is not there: its own group is the root
        for place in (folder, *folder.parents):
            room = _left_of(place, *names)
            if room is not None:
                left.append(room)
            if place == base:
                break
    return left


def _left_of(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    most, used = _number(group / limit), _number(group / usage)
    if most is None or used is None:
        return None  # no such group, or "max"
    for line in _lines(group / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == reclaimable and value.strip().isdigit():
            used -= int(value)
    return max(0, most - used)


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
