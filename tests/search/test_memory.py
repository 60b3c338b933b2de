"""Side by side or in turns, by the memory that is really free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.runners import mock
from flatout.runners.mock import DISCOVERY, MockTechnique
from flatout.search import bench

from .played import GPU_HOST, HOST, play
from .test_search import one

IN_TURNS = {"alternating fresh processes"}


@pytest.mark.parametrize("free, turns", [(60 << 30, True), (120 << 30, False), (None, False)])
def test_what_others_hold_of_a_gpu_is_not_there_for_a_second_process(tmp_path, monkeypatch, free, turns):
    monkeypatch.setattr(bench, "gpu_room_bytes", lambda _uuid: free)
    program = one(
        MockTechnique(factor=0.7), peak_bytes=40 << 30, discovery=replace(DISCOVERY, device="cuda")
    )
    report = play(tmp_path, program, host=GPU_HOST)
    assert report.plan.names == ("it",)
    assert ({verdict.method for verdict in report.verdicts} == IN_TURNS) is turns
    assert any("do not fit" in note for note in report.notes) is turns


@pytest.mark.parametrize("room, turns", [(5 << 30, True), (20 << 30, False), (None, False)])
def test_a_containers_limit_counts_and_not_its_machines_memory(tmp_path, monkeypatch, room, turns):
    outcome = mock.MockSession._outcome

    def with_memory(self, *args, **names):
        return replace(outcome(self, *args, **names), host_peak_bytes=3 << 30)

    monkeypatch.setattr(bench, "host_room_bytes", lambda: room)
    monkeypatch.setattr(mock.MockSession, "_outcome", with_memory)
    report = play(tmp_path, one(MockTechnique(factor=0.7)), host=HOST)
    assert report.plan.names == ("it",)
    assert ({verdict.method for verdict in report.verdicts} == IN_TURNS) is turns
