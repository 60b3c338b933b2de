"""The machine as a Host: from recorded texts and an NVML that is played."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.detect import cpu_name, detect_gpus, detect_host, mig_modes, usable_memory_bytes, visible


class PlayedNvml:
    """As much of pynvml as detect.py uses: two GPUs, the second split by MIG."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, driver: bool = True, old: bool = False) -> None:
        self.driver = driver
        self.old = old
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise self.NVMLError("NVML Shared Library Not Found")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:  # noqa: N802
        return b"470.57" if self.old else "580.95.05"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 11040 if self.old else 13000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:  # noqa: N802
        return b"NVIDIA T4" if self.old else "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=150 << 30)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (7, 5) if self.old else (9, 0)

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        if handle == 0:
            raise self.NVMLError("Not Supported")
        return (1, 1)


@pytest.fixture(autouse=True)
def every_gpu_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_gpus() -> None:
    nvml = PlayedNvml()
    gpus, driver, cuda = detect_gpus(nvml)
    assert [gpu.name for gpu in gpus] == ["NVIDIA H200"] * 2
    assert gpus[1].uuid == "GPU-1abc"
    assert gpus[0].compute_capability == (9, 0)
    assert gpus[0].memory_bytes == 150 << 30
    assert (driver, cuda) == ("580.95.05", "13.0")
    assert nvml.open == 0


def test_old_nvml_answers_in_bytes() -> None:
    gpus, driver, cuda = detect_gpus(PlayedNvml(old=True))
    assert gpus[0].name == "NVIDIA T4"
    assert (driver, cuda) == ("470.57", "11.4")


def test_no_driver_is_no_gpu() -> None:
    assert detect_gpus(PlayedNvml(driver=False)) == ((), None, None)
    assert mig_modes(PlayedNvml(driver=False)) == {}


def test_mig() -> None:
    assert mig_modes(PlayedNvml()) == {"GPU-1abc": True}


def test_hidden_gpus_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    gpus, _, _ = detect_gpus(PlayedNvml())
    assert [gpu.uuid for gpu in gpus] == ["GPU-1abc"]


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [(None, [0, 1]), ("", []), ("0", [0]), ("1,0", [0, 1]), ("GPU-1", [1]), ("-1,0", []), ("0,x,1", [0])],
)
def test_visible(wanted: str | None, seen: list[int]) -> None:
    assert [index for index in (0, 1) if visible(index, f"GPU-{index}abc", wanted)] == seen


def test_cpu_name(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: AMD EPYC   9654  96-Core\n")
    assert cpu_name(file) == "AMD EPYC 9654 96-Core"
    file.write_text("processor\t: 0\nBogoMIPS\t: 50.0\n")
    assert cpu_name(file)
    assert cpu_name(tmp_path / "nowhere")


def test_a_containers_memory_limit_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    assert usable_memory_bytes(1000, (limit,)) == 1000
    limit.write_text("max\n")
    assert usable_memory_bytes(1000, (limit,)) == 1000
    limit.write_text("400\n")
    assert usable_memory_bytes(1000, (limit,)) == 400


def test_this_machine() -> None:
    host = detect_host(isolation="overlay")
    assert host.cpu
    assert host.cpu_count >= 1
    assert host.memory_bytes > 1 << 28
    assert host.isolation == "overlay"
