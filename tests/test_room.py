"""What is free for new processes: the kernel's word, control groups of both versions, a GPU in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.room import gpu_room_bytes, host_room_bytes

MIB = 1 << 20


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:  9000000 kB\nMemAvailable:    8192 kB\n")
    return path


def test_without_limits_it_is_what_the_kernel_calls_available(tmp_path: Path, meminfo: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/\n")
    assert host_room_bytes(meminfo, own, tmp_path / "groups") == 8 * MIB
    group(tmp_path / "groups", memory__max="max", memory__current=5)
    assert host_room_bytes(meminfo, own, tmp_path / "groups") == 8 * MIB
    assert host_room_bytes(tmp_path / "no", tmp_path / "no", tmp_path) is None


def test_the_tightest_limit_above_counts_without_what_can_be_given_back(
    tmp_path: Path, meminfo: Path
) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    own.write_text("0::/job/step\n")
    group(groups / "job", memory__max=6 * MIB, memory__current=4 * MIB)
    group(groups / "job" / "step", memory__max="max", memory__current=MIB)
    assert host_room_bytes(meminfo, own, groups) == 2 * MIB
    (groups / "job" / "memory.stat").write_text(f"anon 5\ninactive_file {MIB}\n")
    assert host_room_bytes(meminfo, own, groups) == 3 * MIB


def test_version_1_and_a_path_that_is_the_hosts(tmp_path: Path, meminfo: Path) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/docker/abc\n")
    group(groups / "memory", memory__limit_in_bytes=5 * MIB, memory__usage_in_bytes=4 * MIB)
    assert host_room_bytes(meminfo, own, groups) == MIB
    # no limit is a number near 2^63 there
    group(groups / "memory", memory__limit_in_bytes=(1 << 63) - 4096)
    assert host_room_bytes(meminfo, own, groups) == 8 * MIB


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, free: dict[str, int]) -> None:
        self.free_of = free
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self.free_of:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> object:  # noqa: N802
        return type("Info", (), {"free": self.free_of[handle], "total": 1 << 40})


def test_a_gpu_that_others_use_has_less_room() -> None:
    nvml = FakeNvml({"GPU-1": 7 * MIB})
    assert gpu_room_bytes("GPU-1", nvml) == 7 * MIB
    assert gpu_room_bytes("GPU-2", nvml) is None
    assert nvml.open == 0


def test_this_machine_has_some_room() -> None:
    assert (host_room_bytes() or 0) > 16 * MIB
