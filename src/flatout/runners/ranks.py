"""What the agents of one program have told: event lines of every rank, made into nouns."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, TypeVar

from flatout.trial import Block, Gradients, Profile, Work
from flatout.workload import Discovery, Unit

_Noun = TypeVar("_Noun")
_RANK_FILE = re.compile(r"rank-(\d+)\.jsonl$")


class RankLog:
    """The event file of one rank, read as it grows."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.rank = rank
        self.events: list[dict[str, Any]] = []
        self._by_kind: dict[str, list[dict[str, Any]]] = {}
        self._offset = 0

    def read(self) -> bool:
        """Take in new whole lines; True when there were any. A line cut off by a kill stays unread."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return False
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].split(b"\n"):
            if line.strip():
                event = json.loads(line)
                self.events.append(event)
                self._by_kind.setdefault(str(event.get("event")), []).append(event)
        return whole > 0

    def of(self, kind: str) -> list[dict[str, Any]]:
        return self._by_kind.get(kind, [])

    @property
    def steps(self) -> int:
        """Steps of which this file tells."""
        return max((_last_step(block) for block in self.of("block")), default=0)


def _last_step(block: dict[str, Any]) -> int:
    """``first_step`` counts from 1."""
    return int(block["first_step"]) + int(block.get("steps", len(block["step_seconds"]))) - 1


class Ranks:
    """The logs of all ranks of one program, found in the trial's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs: dict[int, RankLog] = {}

    def read(self) -> bool:
        """Take in what is new; True when anything was."""
        for path in self.folder.glob("rank-*.jsonl"):
            found = _RANK_FILE.search(path.name)
            if found and int(found.group(1)) not in self.logs:
                self.logs[int(found.group(1))] = RankLog(path, int(found.group(1)))
        return sum(log.read() for log in self.logs.values()) > 0

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Events of one kind, rank by rank."""
        return [event for _, log in sorted(self.logs.items()) for event in log.of(kind)]

    def first(self, kind: str) -> dict[str, Any] | None:
        return next(iter(self.all(kind)), None)

    @property
    def world_size(self) -> int:
        """Ranks known of."""
        told = [int(event.get("world_size") or 1) for event in self.all("discovered")]
        return max([1, len(self.logs), *told])

    @property
    def steps(self) -> int:
        """Of the slowest rank, as far as the files tell."""
        return min((log.steps for log in self.logs.values()), default=0)

    def block(self, first: int, last: int) -> Block:
        """Steps ``first`` to ``last``, counted from 1, all ranks' slowest taken for each."""
        slowest: dict[int, float | None] = {}
        losses: list[tuple[int, float]] = []
        waits, starts, agents, walls = [], [], [], []
        for rank, log in sorted(self.logs.items()):
            blocks = [b for b in log.of("block") if b["first_step"] <= last and _last_step(b) >= first]
            for block in blocks:
                for step, seconds in enumerate(block["step_seconds"], int(block["first_step"])):
                    if not first <= step <= last:
                        continue
                    known = slowest.get(step, 0.0)
                    # a step that means nothing on one rank means nothing
                    slowest[step] = None if seconds is None or known is None else max(known, float(seconds))
                if rank == min(self.logs):
                    losses += [
                        (int(step), float(value))
                        for step, value in block["losses"]
                        if first <= step <= last
                    ]
            waits.append(sum(float(block["loader_wait_seconds"]) for block in blocks))
            starts.append(sum(float(block.get("loader_start_seconds", 0.0)) for block in blocks))
            agents.append(sum(float(block["agent_seconds"]) for block in blocks))
            walls.append(sum(float(block["wall_seconds"]) for block in blocks))
        counted = tuple(value for _, value in sorted(slowest.items()) if value is not None)
        return Block(
            first_step=first,
            step_seconds=counted,
            losses=tuple(losses),
            loader_wait_seconds=max(waits, default=0.0),
            loader_start_seconds=max(starts, default=0.0),
            agent_seconds=max(agents, default=0.0),
            wall_seconds=max(walls, default=0.0),
            steps=max(0, last - first + 1),
        )

    def discovery(self) -> Discovery | None:
        event = self.first("discovered")
        if event is None:
            return None
        values = dict(event)
        values["units"] = tuple(
            _noun(Unit, {"class_name": unit.get("class", ""), **unit}) for unit in values.get("units") or ()
        )
        for name in ("optimizers", "loaders", "frameworks", "parameter_dtypes", "recurrent"):
            values[name] = tuple(values.get(name) or ())
        return _noun(Discovery, values)

    def gradients(self) -> Gradients | None:
        """The comparison with the reference; of several ranks, the one that agrees least."""
        compared = [event for event in self.all("guard") if "compared" in event and "equal" in event]
        if not compared:
            return None
        worst = min(
            compared, key=lambda event: (bool(event["equal"]), _number(event.get("overall_db"), math.inf))
        )
        return _noun(Gradients, {**_numbers(worst), "missing": tuple(worst.get("missing") or ())})

    def profile(self) -> Profile | None:
        event = self.first("profile")
        if event is None:
            return None
        values = _numbers(event)
        for name in ("kernels", "operators"):
            values[name] = tuple((str(row[0]), int(row[1]), float(row[2])) for row in event.get(name) or ())
        values["work"] = tuple(map(_work, event.get("work") or ()))
        return _noun(Profile, values)

    def evidence(self) -> dict[str, dict[str, object]]:
        """Technique -> the latest evidence that it ran, of the lowest rank that gave any."""
        found: dict[str, dict[str, object]] = {}
        for _, log in sorted(self.logs.items(), reverse=True):
            for event in log.of("active"):
                found[str(event["technique"])] = dict(event.get("evidence") or {})
        return found

    def total(self, name: str) -> int:
        """A count summed over the blocks, of the rank that has most."""
        sums = [sum(int(block.get(name) or 0) for block in log.of("block")) for log in self.logs.values()]
        return max(sums, default=0)

    def most(self, name: str) -> int:
        return max((int(block.get(name) or 0) for block in self.all("block")), default=0)


def _work(row: list[Any]) -> Work:
    name, inputs, numbers, calls, seconds, launches, kernels = row
    return Work(
        operator=str(name),
        inputs=tuple((str(dtype), tuple(map(int, shape))) for dtype, shape in inputs),
        numbers=tuple(tuple(map(int, one)) for one in numbers),
        calls=int(calls),
        seconds=float(seconds),
        launches=int(launches),
        kernels=tuple((str(kernel), float(spent)) for kernel, spent in kernels),
    )


def _noun(kind: type[_Noun], values: dict[str, Any]) -> _Noun:
    """Of a dataclass, from a dict that may hold more than its fields; None is left to the default."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    chosen = {}
    for name, value in values.items():
        if name not in fields:
            continue
        optional = fields[name].default is not dataclasses.MISSING and fields[name].default is not None
        if value is None and optional:
            continue
        chosen[name] = value
    return kind(**chosen)


def _number(value: object, otherwise: float) -> float:
    """A number of an event line, where one that is not finite is text."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            return otherwise
    return otherwise


def _numbers(event: dict[str, Any]) -> dict[str, Any]:
    """The event with ``inf``, ``-inf`` and ``nan`` as numbers again."""
    return {
        name: float(value) if value in ("inf", "-inf", "nan") else value
        for name, value in event.items()
        if name != "event"
    }
