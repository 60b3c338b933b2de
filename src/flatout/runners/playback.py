"""Recorded step times of real processes, played again: noise for searches that no machine need run.

A file of benchmarks/record_noise.py holds pairs of unchanged processes of one program and the times of
their steps, turn by turn. A played process is one recorded process as a whole, from a random turn on: so
its step times wander, jump and depend on each other as they did. Its own speed, which differs from its
fellow's for as long as it lives, is kept too, stretched so that two processes drawn at random differ as
much as the two of a pair did (levels of half the difference to either side would give half the variance).
What came and went between the pairs, minutes apart, is left out: a search's comparisons pair it away.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flatout.stats import median


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Step times over their process's median, by process and turn, and each process's own level."""

    program: str
    device: str
    step_seconds: float
    processes: tuple[tuple[tuple[float, ...], ...], ...]
    levels: tuple[float, ...]
    """Factor on the step times of each process."""


def load(path: Path) -> Recording:
    """Read a file of benchmarks/record_noise.py. ValueError where it is none."""
    data = json.loads(path.read_text(encoding="utf-8"))
    try:
        rows = [
            (int(one["pair"]), [[float(value) for value in turn] for turn in one["blocks"] if turn])
            for one in data["processes"]
        ]
        program, device = str(data["program"]), str(data["device"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no recording of step times: {error}") from error
    centres = [median([value for turn in turns for value in turn]) for _, turns in rows]
    levels = []
    for pair, turns in rows:
        fellows = [
            [median(turn) for turn in other]
            for (number, other) in rows
            if number == pair and other is not turns
        ]
        if not fellows:
            levels.append(1.0)
            continue
        own = [median(turn) for turn in turns]
        apart = median([math.log(a / b) for a, b in zip(own, fellows[0], strict=False)])
        levels.append(math.exp(apart / math.sqrt(2.0)))
    return Recording(
        program=program,
        device=device,
        step_seconds=median(centres),
        processes=tuple(
            tuple(tuple(value / centre for value in turn) for turn in turns)
            for (_, turns), centre in zip(rows, centres, strict=True)
        ),
        levels=tuple(levels),
    )


class Playback(Iterator[float]):
    """One played process: relative step times without end."""

    def __init__(self, recording: Recording, draw: random.Random) -> None:
        which = draw.randrange(len(recording.processes))
        self._turns = recording.processes[which]
        self._level = recording.levels[which]
        self._turn = draw.randrange(len(self._turns))
        self._step = 0

    def __next__(self) -> float:
        turn = self._turns[self._turn]
        value = turn[self._step] * self._level
        self._step += 1
        if self._step == len(turn):
            self._step = 0
            self._turn = (self._turn + 1) % len(self._turns)
        return value
