"""Readings from a played driver and a played /proc; what is a disturbance and what is not."""

# ruff: noqa: N802 - the played driver has NVML's own names

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.codec import from_plain, to_plain
from flatout.host import Gpu, Host
from flatout.surroundings import (
    HARDWARE_THERMAL,
    IDLE,
    POWER_CAP,
    GpuReading,
    Reading,
    Usual,
    Watch,
    disturbed,
    in_words,
    others_cpus,
    usual_of,
)

GPU = Gpu(name="NVIDIA H200", uuid="GPU-0", memory_bytes=140 << 30, compute_capability=(9, 0))
HOST = Host(system="Linux", cpu="played", cpu_count=16, memory_bytes=1 << 38, gpus=(GPU,))


@dataclass
class PlayedNvml:
    """As much of pynvml as a Watch asks; ``missing`` names functions that this driver lacks."""

    clock: int = 1980
    watts: float = 600.0
    cap: float = 700.0
    heat: int = 60
    reasons: int = 0
    pids: list[int] = field(default_factory=list)
    use: dict[int, int] = field(default_factory=dict)
    busy: int = 0
    missing: tuple[str, ...] = ()

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "missing"):
            raise object.__getattribute__(self, "NVMLError")(name)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return self.clock if kind == 1 else 3201

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return int(self.watts * 1e3)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return int(self.cap * 1e3)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return self.heat

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=self.busy)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, smUtil=use, timeStamp=1) for pid, use in self.use.items()]


class PlayedMachine:
    """A /proc with this process, one program of its own, and one of somebody else's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.busy = self.steal = 0
        self.own = {os.getpid(): 0, 900: 0}
        self.other = 0
        self.write()

    def run(self, seconds: float, *, own: float, others: float, steal: float = 0.0) -> None:
        """``own`` and ``others`` in processors."""
        self.now += seconds
        self.own[900] += int(100 * seconds * own)
        self.other += int(100 * seconds * others)
        self.busy += int(100 * seconds * (own + others))
        self.steal += int(100 * seconds * steal)
        self.write()

    def write(self) -> None:
        (self.folder / "stat").write_text(f"cpu  {self.busy} 0 0 5000 7 0 0 {self.steal} 0 0\ncpu0 1 2\n")
        children = {os.getpid(): "900 ", 900: ""}
        for pid, ticks in {**self.own, 555: self.other}.items():
            task = self.folder / str(pid) / "task" / str(pid)
            task.mkdir(parents=True, exist_ok=True)
            (task / "children").write_text(children.get(pid, ""))
            (self.folder / str(pid) / "stat").write_text(
                f"{pid} (a) b) (c)) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 99 0\n"
            )


@pytest.fixture
def machine(tmp_path: Path) -> PlayedMachine:
    return PlayedMachine(tmp_path)


def watch(machine: PlayedMachine, nvml: PlayedNvml | None = None, device: str = "cuda") -> Watch:
    return Watch(
        HOST,
        device,
        nvml=nvml or PlayedNvml(),
        proc=machine.folder,
        cgroup=machine.folder / "cgroup",
        clock=lambda: machine.now,
    )


def turns(
    machine: PlayedMachine, eye: Watch, count: int = 6, **load: float
) -> list[tuple[Reading, Reading]]:
    spans = []
    for _ in range(count):
        before = eye.read()
        machine.run(0.5, **load)
        spans.append((before, eye.read()))
    return spans


def test_a_reading_has_what_the_driver_and_the_kernel_tell(machine):
    eye = watch(machine, PlayedNvml(pids=[900, 555, 77777], use={555: 3}, reasons=POWER_CAP))
    machine.run(2.0, own=1.0, others=0.5, steal=0.1)
    group = machine.folder / "cgroup"
    group.mkdir()
    (group / "cpu.stat").write_text("usage_usec 9\nnr_throttled 3\nthrottled_usec 250000\n")
    reading = eye.read()
    (gpu,) = reading.gpus
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.power_watts, gpu.power_cap_watts) == (
        1980,
        3201,
        600.0,
        700.0,
    )
    assert gpu.pids == (555, 900, 77777)
    assert gpu.strangers == (555,), "900 is ours, 77777 is a number of another namespace"
    assert gpu.stranger_use_percent == 3
    assert (reading.busy_cpu_seconds, reading.own_cpu_seconds) == (3.0, 2.0)
    assert reading.stolen_cpu_seconds == 0.2
    assert reading.throttled_seconds == 0.25
    assert from_plain(Reading, to_plain(reading)) == reading


def test_an_older_control_group_counts_nanoseconds(machine):
    folder = machine.folder / "cgroup" / "cpu"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("nr_periods 2\nnr_throttled 1\nthrottled_time 500000000\n")
    assert watch(machine).read().throttled_seconds == 0.5


def test_what_a_driver_does_not_tell_is_none(machine):
    nvml = PlayedNvml(
        missing=(
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            "nvmlDeviceGetClockInfo",
        )
    )
    eye = watch(machine, nvml)
    ((before, after),) = turns(machine, eye, 1, own=1.0, others=0.0)
    assert after.gpus[0].power_watts is None
    assert after.gpus[0].reasons is None
    assert disturbed(before, after, usual_of([(before, after)])) == ""


def test_no_driver_at_all(machine):
    eye = watch(machine, PlayedNvml(missing=("nvmlInit",)))
    assert eye.read().gpus == ()
    eye.close()
    eye.close()


def test_a_program_on_the_processor_asks_no_driver(machine):
    assert watch(machine, device="cpu").read().gpus == ()


def test_a_folder_without_proc_says_nothing(tmp_path):
    reading = Watch(HOST, "cpu", proc=tmp_path / "no", cgroup=tmp_path / "no").read()
    assert reading.busy_cpu_seconds is None
    assert disturbed(reading, replace(reading, at=reading.at + 1.0), Usual(spans=1, others_cpus=0.0)) == ""


def test_quiet_turns_are_not_disturbed(machine):
    eye = watch(machine)
    spans = turns(machine, eye, own=1.0, others=0.3)
    usual = usual_of(spans)
    assert [disturbed(*span, usual) for span in turns(machine, eye, own=1.2, others=0.5)] == [""] * 6


def test_a_busy_machine_is_ordinary_to_itself(machine):
    eye = watch(machine, device="cpu")
    usual = usual_of(turns(machine, eye, own=2.0, others=13.0))
    ours_faster = turns(machine, eye, own=1.0, others=14.5)
    assert [disturbed(*span, usual) for span in ours_faster] == [""] * 6


def test_load_that_came_meanwhile_is_seen(machine):
    eye = watch(machine, device="cpu")
    usual = usual_of(turns(machine, eye, own=2.0, others=1.0))
    ((before, after),) = turns(machine, eye, 1, own=1.5, others=14.0)
    assert disturbed(before, after, usual) == "others kept 14.0 of 16 processors busy, 1.0 at most before"


def test_load_that_leaves_processors_free_takes_nothing_away(machine):
    eye = watch(machine, device="cpu")
    usual = usual_of(turns(machine, eye, own=2.0, others=0.0))
    ((before, after),) = turns(machine, eye, 1, own=2.0, others=6.0)
    assert disturbed(before, after, usual) == ""


def test_stolen_time_is_seen(machine):
    eye = watch(machine, device="cpu")
    usual = usual_of(turns(machine, eye, own=2.0, others=0.0, steal=0.2))
    ((before, after),) = turns(machine, eye, 1, own=1.0, others=0.0, steal=4.0)
    assert "other guests of this machine took 25%" in disturbed(before, after, usual)


def test_heat_slows_a_gpu_down(machine):
    nvml = PlayedNvml()
    eye = watch(machine, nvml)
    usual = usual_of(turns(machine, eye, own=1.0, others=0.0))
    nvml.reasons, nvml.heat = HARDWARE_THERMAL, 91
    ((before, after),) = turns(machine, eye, 1, own=1.0, others=0.0)
    assert disturbed(before, after, usual) == "the GPU slowed itself down for heat at 91 C"
    assert disturbed(before, after, replace(usual, reasons=HARDWARE_THERMAL)) == "", "it always does here"
    assert disturbed(before, after) == "", "whether it always does is not known"


@pytest.mark.parametrize("reasons", [POWER_CAP, IDLE])
def test_a_plans_own_load_is_no_disturbance(machine, reasons):
    nvml = PlayedNvml()
    eye = watch(machine, nvml)
    usual = usual_of(turns(machine, eye, own=1.0, others=0.0))
    nvml.clock, nvml.reasons = 1200, reasons
    ((before, after),) = turns(machine, eye, 1, own=1.0, others=0.0)
    assert disturbed(before, after, usual) == ""


def test_a_clock_that_nothing_explains(machine):
    nvml = PlayedNvml()
    eye = watch(machine, nvml)
    usual = usual_of(turns(machine, eye, own=1.0, others=0.0))
    nvml.clock = 1200
    ((before, after),) = turns(machine, eye, 1, own=1.0, others=0.0)
    assert "fell to 1200 MHz from 1980 MHz" in disturbed(before, after, usual)


def test_a_power_cap_that_somebody_set(machine):
    nvml = PlayedNvml()
    eye = watch(machine, nvml)
    before = eye.read()
    nvml.cap = 400.0
    assert disturbed(before, eye.read()) == "the GPU's power cap was set from 700 W to 400 W"


def test_others_on_the_gpu(machine):
    nvml = PlayedNvml(pids=[900, 901])
    eye = watch(machine, nvml)
    before = eye.read()
    nvml.pids = [900, 901, 7]
    assert "another process came to the GPU (3 there instead of 2)" in disturbed(before, eye.read())
    alone = usual_of([(before, before)])
    nvml.pids, nvml.use = [900, 555], {900: 80, 555: 35}
    before, after = eye.read(), eye.read()
    assert "(pid 555) took 35 % of the GPU's time" in disturbed(before, after, alone)
    assert disturbed(before, after, usual_of([(before, after)])) == "", "it has always been there"
    assert disturbed(before, after) == "", "whether it has is not known"


def test_ours_alone_on_the_gpu_is_nobody_elses(machine):
    eye = watch(machine, PlayedNvml(pids=[900], use={900: 99}))
    assert disturbed(eye.read(), eye.read()) == ""


def test_the_use_of_the_gpu_by_whomever(machine):
    assert watch(machine, PlayedNvml(busy=37)).gpu_use() == 37
    assert watch(machine, PlayedNvml(missing=("nvmlDeviceGetUtilizationRates",))).gpu_use() is None
    assert watch(machine, device="cpu").gpu_use() is None


def test_a_line_for_the_report(machine):
    eye = watch(machine, PlayedNvml(reasons=POWER_CAP))
    line = in_words(turns(machine, eye, own=1.0, others=0.5))
    assert line == (
        "clocks 1,980 MHz, up to 60 C, up to 600 of 700 W, held by its power cap at 100% of the readings, "
        "others kept 0.5 of 16 processors busy"
    )
    assert in_words([]) == ""


def test_this_machine_is_read_cheaply():
    eye = Watch(HOST, "cpu")
    began = time.process_time()
    readings = [eye.read() for _ in range(50)]
    assert (time.process_time() - began) / 50 < 0.002
    assert readings[0].busy_cpu_seconds is not None
    others = others_cpus(replace(readings[0], at=0.0), replace(readings[-1], at=10.0))
    assert others is not None


def test_a_gpu_that_is_always_idle_has_no_usual_clock():
    reading = Reading(at=0.0, gpus=(GpuReading(uuid="g", sm_clock_mhz=345, reasons=IDLE),))
    assert usual_of([(reading, reading)]).sm_clock_mhz is None
