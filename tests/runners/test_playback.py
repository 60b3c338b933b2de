"""Recorded step times played again."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path

import pytest

from flatout.runners.playback import Playback, load

NOISE = Path(__file__).resolve().parents[1] / "fixtures" / "noise"


def write(path: Path, processes: list[tuple[int, str, list[list[float]]]]) -> Path:
    rows = [{"pair": pair, "side": side, "blocks": blocks} for pair, side, blocks in processes]
    path.write_text(json.dumps({"program": "it", "device": "cpu", "processes": rows}))
    return path


@pytest.mark.parametrize("path", sorted(NOISE.glob("*.json")), ids=lambda path: path.stem)
def test_recordings_of_real_processes_can_be_played(path):
    recording = load(path)
    assert len(recording.processes) == len(recording.levels) >= 6
    assert recording.step_seconds > 0
    played = list(itertools.islice(Playback(recording, random.Random(1)), 2000))
    assert all(value > 0 for value in played)
    assert sorted(played)[1000] == pytest.approx(1.0, rel=0.3)


def test_levels_are_stretched_to_the_difference_of_a_pair(tmp_path):
    recording = load(write(tmp_path / "one.json", [(0, "a", [[0.2] * 4]), (0, "b", [[0.1] * 4])]))
    # two drawn at random then differ, in the mean of squares, as the two of a pair do
    assert recording.levels == pytest.approx((2 ** math.sqrt(0.5), 2 ** -math.sqrt(0.5)))


def test_what_lies_between_the_pairs_is_left_out(tmp_path):
    rows = [(0, "a", [[0.1]]), (0, "b", [[0.1]]), (1, "a", [[0.3]]), (1, "b", [[0.3]])]
    recording = load(write(tmp_path / "two.json", rows))
    assert recording.levels == pytest.approx((1.0,) * 4)
    assert recording.processes == (((1.0,),),) * 4


def test_turns_follow_each_other_as_they_did_and_begin_again_at_the_end(tmp_path):
    turns = [[1.0, 2.0], [3.0, 4.0, 5.0]]
    recording = load(write(tmp_path / "one.json", [(0, "a", turns)]))
    played = list(itertools.islice(Playback(recording, random.Random(2)), 10))
    order = [round(value * 3.0) for value in played]
    assert order[:5] in ([1, 2, 3, 4, 5], [3, 4, 5, 1, 2])
    assert order[5:] == order[:5]


def test_what_is_no_recording_is_said(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"program": "it"}')
    with pytest.raises(ValueError, match="no recording"):
        load(path)
