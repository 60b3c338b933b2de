"""One profiled step as a line of time: the parts sum to the whole."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.agent.timeline import MOST_ROWS, lay_out


class Kineto:
    """An event as kineto tells it; times in microseconds."""

    def __init__(
        self,
        name: str,
        start: int,
        end: int,
        *,
        device: str = "CPU",
        number: int = 0,
        linked: int = 0,
        inputs: tuple[tuple[str, list[Any]], ...] = (),
        numbers: tuple[Any, ...] = (),
        thread: int = 1,
    ) -> None:
        self._values = {
            "name": name,
            "start_ns": start * 1000,
            "duration_ns": (end - start) * 1000,
            "correlation_id": number,
            "linked_correlation_id": linked,
            "dtypes": [dtype for dtype, _ in inputs],
            "structured_input_shapes": [shape for _, shape in inputs],
            "shapes": [shape for _, shape in inputs],
            "concrete_inputs": list(numbers),
            "start_thread_id": thread,
            "is_async": False,
        }
        self._device = device

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: self._values[name]

    def device_type(self) -> Any:
        return type("Device", (), {"name": self._device})


def kernel(name: str, start: int, end: int, linked: int = 0) -> Kineto:
    return Kineto(name, start, end, device="CUDA", number=1, linked=linked)


def microseconds(told: dict[str, float]) -> dict[str, int]:
    return {name: round(seconds * 1e6) for name, seconds in told.items()}


def assert_sums(told: dict[str, Any]) -> None:
    total = sum(row[4] for row in told["work"]) + sum(told["gaps"].values())
    assert total == pytest.approx(told["span_seconds"], rel=1e-9)


def test_kernels_are_told_by_the_operator_that_launched_them() -> None:
    told = lay_out(
        [
            Kineto("aten::mm", 0, 10, number=1, inputs=(("float", [8, 4]), ("float", [4, 2]))),
            Kineto("cudaLaunchKernel", 4, 8, number=1, linked=1),
            kernel("sgemm", 20, 50, linked=1),
            kernel("unlinked", 60, 70),
        ],
        100e-6,
    )
    first, second = told["work"]
    assert first[:2] == ["aten::mm", [["float", [8, 4]], ["float", [4, 2]]]]
    assert [first[3], round(first[4] * 1e6), first[5]] == [1, 30, 1]
    assert first[6][0][0] == "sgemm"
    assert second[0] == "unlinked"
    assert microseconds(told["gaps"]) == {"launches": 10, "python": 50}
    assert_sums(told)


def test_kernels_that_overlap_share_the_time_in_which_they_do() -> None:
    told = lay_out([kernel("a", 0, 30), kernel("b", 10, 20), kernel("c", 40, 50)], 50e-6)
    seconds = {row[0]: round(row[4] * 1e6) for row in told["work"]}
    assert seconds == {"a": 25, "b": 5, "c": 10}
    assert_sums(told)


def test_a_copy_behind_a_kernel_costs_nothing() -> None:
    told = lay_out(
        [
            kernel("gemm", 0, 30),
            kernel("Memcpy HtoD (Pinned -> Device)", 10, 40),
            kernel("ncclDevKernel_AllReduce", 20, 25),
        ],
        40e-6,
    )
    seconds = {row[0]: round(row[4] * 1e6) for row in told["work"]}
    assert seconds == {"gemm": 30, "Memcpy HtoD (Pinned -> Device)": 10}
    assert_sums(told)


def test_a_gap_belongs_to_what_the_host_did_in_it() -> None:
    told = lay_out(
        [
            kernel("first", 0, 10),
            Kineto("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 12, 32),
            Kineto("aten::stack", 14, 20, number=3),
            Kineto("Optimizer.step#AdamW.step", 40, 60),
            Kineto("aten::add", 45, 50, number=4),
            Kineto("compile_fx.<locals>.bw_compiler", 60, 90),
            Kineto("aten::mul", 90, 95, number=5),
            kernel("last", 100, 110),
            Kineto("cudaDeviceSynchronize", 105, 112),
        ],
        115e-6,
    )
    assert microseconds(told["gaps"]) == {
        "loader": 20,
        "optimizer": 20,
        "compiling": 30,
        "launches": 5,
        "python": 2 + 8 + 5 + 5,
    }
    assert_sums(told)


def test_what_follows_a_drained_queue_is_the_price_of_the_wait() -> None:
    told = lay_out(
        [
            kernel("first", 0, 30),
            Kineto("aten::item", 5, 34, number=2),
            Kineto("cudaStreamSynchronize", 6, 33, number=9, linked=2),
            Kineto("aten::add", 40, 45, number=3),
            kernel("second", 50, 60, linked=3),
            Kineto("aten::add", 70, 75, number=4),
            kernel("third", 80, 90, linked=4),
        ],
        90e-6,
    )
    gaps = microseconds(told["gaps"])
    assert gaps["sync"] == 20
    assert gaps["launches"] == 5
    assert_sums(told)


def test_ranges_drawn_on_the_device_are_no_kernels_but_inductors_are() -> None:
    told = lay_out(
        [
            Kineto("my range", 0, 90, number=8),
            kernel("my range", 0, 90),
            Kineto("triton_poi_fused_add_0", 5, 8, number=7, inputs=(("float", [64]), ("float", [64]))),
            kernel("triton_poi_fused_add_0", 20, 40, linked=7),
        ],
        90e-6,
    )
    assert [row[0] for row in told["work"]] == ["triton_poi_fused_add_0"]
    assert told["work"][0][1] == [["float", [64]], ["float", [64]]]
    assert_sums(told)


def test_on_a_cpu_the_innermost_operator_has_the_time() -> None:
    told = lay_out(
        [
            Kineto("aten::linear", 0, 20, number=1),
            Kineto("aten::addmm", 5, 20, number=2),
            Kineto("aten::mul", 10, 20, number=3, thread=2),
            Kineto("Optimizer.step#SGD.step", 30, 40),
            Kineto("aten::add_", 32, 35, number=4),
        ],
        50e-6,
    )
    seconds = {row[0]: seconds * 1e6 for row in told["work"] for seconds in [row[4]]}
    assert seconds == pytest.approx({"aten::linear": 5, "aten::addmm": 10, "aten::mul": 5, "aten::add_": 3})
    assert microseconds(told["gaps"]) == {"optimizer": 7, "python": 20}
    assert_sums(told)


def test_what_the_loader_computes_in_the_same_process_is_the_loaders() -> None:
    told = lay_out(
        [
            Kineto("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 20),
            Kineto("aten::stack", 5, 15, number=1),
            Kineto("aten::mm", 20, 30, number=2),
        ],
        30e-6,
    )
    assert [row[0] for row in told["work"]] == ["aten::mm"]
    assert microseconds(told["gaps"]) == {"loader": 20}


def test_lists_of_tensors_and_numbers() -> None:
    told = lay_out(
        [
            Kineto(
                "aten::_foreach_add_",
                0,
                5,
                number=1,
                inputs=(("TensorList", [[2, 3], [4]]), ("float", []), ("Scalar", [])),
            ),
            Kineto(
                "aten::cudnn_convolution",
                5,
                9,
                number=2,
                inputs=(("float", [1, 3, 8, 8]), ("float", [4, 3, 3, 3]), ("ScalarList", [])),
                numbers=(None, None, [1, 1], [2, 2], [1, 1], 1, False, 0.5),
            ),
        ],
        9e-6,
    )
    by_name = {row[0]: row for row in told["work"]}
    assert by_name["aten::_foreach_add_"][1] == [["list", [10]], ["float", []]]
    assert by_name["aten::_foreach_add_"][2] == []
    assert by_name["aten::cudnn_convolution"][2] == [[], [], [1, 1], [2, 2], [1, 1], [1], [0], []]


def test_an_older_torch_tells_microseconds_and_no_sizes_of_lists() -> None:
    class Older(Kineto):
        def __getattr__(self, name: str) -> Any:
            if name in {"start_ns", "duration_ns", "structured_input_shapes"} or name.startswith("__"):
                raise AttributeError(name)
            if name in {"start_us", "duration_us"}:
                return lambda: self._values[name.replace("_us", "_ns")] // 1000
            return super().__getattr__(name)

    told = lay_out([Older("aten::_foreach_add_", 3, 8, number=1, inputs=(("TensorList", []),))], 10e-6)
    assert told["work"][0][1] == [["list", []]]
    assert round(told["work"][0][4] * 1e6) == 5
    assert_sums(told)


def test_many_rows_are_told_as_one() -> None:
    events = [kernel(f"kernel {number}", 10 * number, 10 * number + 5) for number in range(MOST_ROWS + 40)]
    told = lay_out(events, 1.0)
    assert len(told["work"]) == MOST_ROWS + 1
    assert told["work"][-1][0] == ""
    assert told["work"][-1][5] == 40
    assert_sums(told)
