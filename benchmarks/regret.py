"""How far is the plan of a search from the best of all plans, and how much sooner was it found?

    python benchmarks/regret.py --workload nanogpt --root DIR --out grid.json [--device cuda|cpu]
        [--side-by-side 8] [--rounds 5] [--turn 0.8] [--seconds 500] [--only bf16,compile]
        [--stages grid,search] [--budget 8m] [--python PY] [--work DIR] [--small]
    python benchmarks/regret.py --out grid.json --against .flatout/report.json

Workloads: ``nanogpt`` (karpathy/nanoGPT with its author's tuning taken out, see nanogpt_h200.py),
``makemore`` and ``unet`` (as public_scripts.py lays them out; ``--root`` holds the checkouts) and
``bundled`` (the program in examples/naive_gpt).

Stage **grid** measures every combination of the techniques that fit, in waves: the processes of a wave
start and compile at once and hold still after their first step; then each is warmed and takes its turns
while all others hold still, ``--rounds`` times in changing order, the untouched program among them: a
plan's ratio is the median over rounds of the untouched program's turn over its own, so that cards and
clocks of different waves do not matter. A wave holds as many as memory does. The fastest four, and the plan
of ``--against``, then play once more against each other, since the first of so many is partly lucky.
``--out`` is written after every wave, and a call that finds it goes on where it was.

Stage **search** runs ``flatout train`` on the same copy. Its plan (or that of ``--against``) is looked up
in the grid: ``regret`` is what the best plan is faster (bar: 3 %), ``of_grid`` the search's seconds
over the grid's (bar: a quarter), the grid's being what the same combinations cost one after the other;
as run, side by side, it took ``grid_seconds_as_run``.

One JSON line a wave; the last line sums up. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nanogpt_h200
import public_scripts
from searching import say, search
from sessions import request, runner_for

REGRET_BAR = 0.03
TIME_BAR = 0.25
PLAYED_AGAIN = 4
WARM_LIMIT_SECONDS = 30.0
LONGEST_SECONDS = 3600.0
"""Of a process: the untouched program's lives through all waves."""
CONTEXT_BYTES = 3 << 29
"""Of GPU memory that a process takes beyond its tensors."""
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "naive_gpt" / "train.py"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A command laid out in a folder."""

    command: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)


def lay_out(arguments: argparse.Namespace, work: Path) -> Workload:
    """The workload's copy below ``work``, made where it is not there yet."""
    name, cuda = arguments.workload, arguments.device == "cuda"
    if name == "bundled":
        sizes = ["--batch-size=2", "--context=64", "--width=32"] if arguments.small else []
        command = [arguments.python, str(EXAMPLE), "--device", arguments.device, *sizes]
        (work / "bundled").mkdir(exist_ok=True)
        return Workload(command=command, folder=work / "bundled")
    if arguments.root is None:
        raise SystemExit(f"--workload {name} needs --root, the folder of the checkouts")
    if name == "nanogpt":
        if not (work / "naive").exists():
            nanogpt_h200.lay_out(arguments.root / "karpathy+nanoGPT", work, small=arguments.small)
        return Workload(command=nanogpt_h200.command(arguments, tuned=False), folder=work / "naive")
    (script,) = public_scripts.chosen(name)
    place = public_scripts.Place(folder=work / name, cuda=cuda, python=arguments.python)
    if not place.folder.exists():
        place = public_scripts.lay_out(
            script, root=arguments.root, work=work, cuda=cuda, python=arguments.python
        )
    environment = public_scripts.environment_of(script, place, work)
    return Workload(
        command=[arguments.python, *script.command(place)], folder=place.folder, environment=environment
    )


def factorial(techniques: Sequence[Any]) -> list[list[str]]:
    """Every combination without a conflict, the smaller ones first; the empty one is left out."""
    from flatout.techniques.order import conflict

    plans = []
    for size in range(1, len(techniques) + 1):
        for group in itertools.combinations(techniques, size):
            if not any(conflict(a, b) for a, b in itertools.combinations(group, 2)):
                plans.append([technique.name for technique in group])
    return plans


def key_of(names: Iterable[str]) -> str:
    return "+".join(names) or "baseline"


class BaselineEnded(Exception):
    """The untouched program failed while plans were measured beside it."""

    def __init__(self, outcome: Any) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


class Grid:
    """The file of results, and what is measured into it."""

    def __init__(self, arguments: argparse.Namespace, workload: Workload, work: Path) -> None:
        self.arguments = arguments
        self.path: Path = arguments.out
        self.host = _host()
        self.data: dict[str, Any] = (
            json.loads(self.path.read_text()) if self.path.exists() else {"plans": {}, "waves": []}
        )
        self.workload = workload
        self.work = work
        self.side_by_side: int = arguments.side_by_side
        self.began = time.monotonic()
        self.baseline: Any = None
        self.discovery: Any = None

    # what is known

    @property
    def plans(self) -> dict[str, dict[str, Any]]:
        return self.data["plans"]

    def save(self) -> None:
        text = json.dumps(self.data, indent=1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(self.path)

    # measuring

    def measure(self, found: str) -> None:
        """What is not measured yet; ``found``: key of a search's plan, which plays among the best."""
        from flatout.techniques import TECHNIQUES

        with runner_for(
            self.workload.command,
            cwd=self.workload.folder,
            environment={**os.environ, **self.workload.environment},
            out=self.work / "grid",
        ) as runner:
            began = time.monotonic()
            self._start_baseline(runner)
            self.data.update(
                workload=self.arguments.workload,
                device=self.host.gpu_label if self.host.gpus else self.discovery.device,
                cards=[gpu.uuid for gpu in self.host.gpus],
                torch=self.discovery.torch_version,
                small=self.arguments.small,
            )
            fitting, unfit = self._fitting(TECHNIQUES, runner.interpreter)
            self.data["unfit"] = unfit
            waiting = [names for names in factorial(fitting) if key_of(names) not in self.plans]
            say(stage="grid", plans=len(factorial(fitting)), to_measure=len(waiting), unfit=unfit)
            self.data["waves"].append({"seconds": time.monotonic() - began, "plans": []})
            tried: Counter[str] = Counter()
            while waiting:
                if self._out_of_time():
                    return
                wave = self._wave_of(waiting)
                waiting = [names for names in waiting if names not in wave]
                self._play(runner, wave, rounds=self.arguments.rounds)
                tried.update(map(key_of, wave))
                crowded = [names for names in wave if self._was_crowded(names) and tried[key_of(names)] < 3]
                if crowded:
                    self.side_by_side = max(1, self.side_by_side // 2)
                    waiting += crowded
            if not self._out_of_time():
                self._play_again(runner, found)

    def _out_of_time(self) -> bool:
        """No other wave as long as the longest so far ends within ``--seconds``."""
        longest = max((wave["seconds"] for wave in self.data["waves"]), default=0.0)
        return time.monotonic() - self.began + longest > self.arguments.seconds

    def _was_crowded(self, names: list[str]) -> bool:
        """It failed for want of memory, or with the untouched program beside it: fewer may fit."""
        row = self.plans.get(key_of(names), {})
        return not row.get("ratio") and row.get("error") in ("OutOfMemory", "baseline")

    def _play_again(self, runner: Any, found: str) -> None:
        """The fastest and the one found, against each other."""
        measured = [key for key, row in self.plans.items() if row.get("ratio") and row["names"]]
        best = sorted(measured, key=lambda key: -self.plans[key]["ratio"])[:PLAYED_AGAIN]
        best += [found] if found in measured and found not in best else []
        if len(measured) > 1 and set(best) - set(self.data.get("played_again", ())):
            self._play(runner, [self.plans[key]["names"] for key in best], rounds=2 * self.arguments.rounds)
            self.data["played_again"] = best
            self.save()

    def _start_baseline(self, runner: Any) -> None:
        began = time.monotonic()
        self.baseline = runner.start(self._request("baseline"))
        step = warm(self.baseline)
        self.discovery = self.baseline.discovery
        outcome = self.baseline.peek()
        row = self.plans.setdefault("baseline", {"names": [], "ratio": 1.0})
        row.setdefault("start_seconds", time.monotonic() - began)
        row.update(
            step_seconds=step, peak_bytes=outcome.peak_bytes, host_peak_bytes=outcome.host_peak_bytes
        )

    def _fitting(self, techniques: Iterable[Any], interpreter: Any) -> tuple[list[Any], dict[str, str]]:
        only = set((self.arguments.only or "").split(",")) - {""}
        fitting, unfit = [], {}
        for technique in techniques:
            reason = self.discovery.already.get(technique.name) or technique.unfit(
                self.discovery, self.host, interpreter
            )
            if only and technique.name not in only:
                reason = "left out by --only"
            if reason:
                unfit[technique.name] = reason
            else:
                fitting.append(technique)
        return fitting, unfit

    def _bytes_of(self, names: Sequence[str]) -> tuple[int, int]:
        """(Device, host) memory: of the smallest plan seen that this one contains, since techniques seldom
        take more."""
        known = [
            (row["peak_bytes"], row["host_peak_bytes"])
            for row in self.plans.values()
            if row.get("peak_bytes") is not None and set(row["names"]) <= set(names)
        ]
        device, host = min(known)
        return int(1.2 * device) + CONTEXT_BYTES, int(1.2 * host)

    def _wave_of(self, waiting: Sequence[list[str]]) -> list[list[str]]:
        """As many of those that wait as fit beside the untouched program."""
        on_gpu = self.discovery.device.startswith("cuda") and self.host.gpus
        room = self.host.gpus[0].memory_bytes if on_gpu else 0
        host_room = int(0.8 * self.host.memory_bytes)
        wave: list[list[str]] = []
        for names in [[], *waiting]:
            device, host = self._bytes_of(names)
            fits = host <= host_room and (not on_gpu or device <= room)
            if fits or not wave:
                room, host_room = room - device, host_room - host
                wave += [names] if names else []
            if len(wave) >= self.side_by_side:
                break
        return wave or [list(waiting[0])]

    def _play(self, runner: Any, wave: Sequence[list[str]], *, rounds: int) -> None:
        began = time.monotonic()
        if not _alive(self.baseline):
            self._start_baseline(runner)
        sessions, spent = self._start(runner, wave)
        held = time.monotonic()
        try:
            turns = self._take_turns(sessions, spent, rounds)
        except BaselineEnded as error:
            turns = {"baseline": []}
            for key in list(sessions):
                self._failed(key, error)
        for key, session in sessions.items():
            if turns.get(key):
                self._note(key, session, turns, spent[key])
            session.kill()
        self.data["waves"].append(
            {"seconds": time.monotonic() - began, "plans": [key_of(names) for names in wave]}
        )
        self.save()
        say(
            wave=[key_of(names) for names in wave],
            baseline_step_seconds=_median(turns["baseline"]) if turns["baseline"] else None,
            ratios={key: round(self.plans[key]["ratio"], 4) for key in sessions if turns.get(key)},
            failed={
                key: self.plans[key]["failed"]
                for key in map(key_of, wave)
                if self.plans.get(key, {}).get("failed")
            },
            starting_seconds=round(held - began, 1),
            seconds=round(time.monotonic() - began, 1),
        )

    def _take_turns(
        self, sessions: dict[str, Any], spent: dict[str, float], rounds: int
    ) -> dict[str, list[float]]:
        """Step seconds of each turn; nothing of those that end meanwhile. BaselineEnded where it is the
        untouched program that does."""
        from flatout.runners import SessionEnded

        everyone = {"baseline": self.baseline, **sessions}
        steps: dict[str, int] = {}
        turns: dict[str, list[float]] = {key: [] for key in everyone}
        for number in range(-1, rounds):  # before the first round each is warmed
            for key in list(everyone) if number % 2 == 0 else list(reversed(everyone)):
                began = time.monotonic()
                try:
                    if number < 0:
                        steps[key] = _steps(self.arguments.turn, warm(everyone[key]))
                    else:
                        turns[key].append(_median(everyone[key].advance(steps[key]).step_seconds))
                except SessionEnded as end:
                    if key == "baseline":
                        raise BaselineEnded(end.outcome) from end
                    self._failed(key, end)
                    del everyone[key], turns[key]
                    continue
                if key in spent:
                    spent[key] += time.monotonic() - began
        return turns

    def _start(self, runner: Any, wave: Sequence[list[str]]) -> tuple[dict[str, Any], dict[str, float]]:
        """All of the wave at once, up to their first step; the seconds that each took."""
        from flatout.techniques import make_plan

        sessions = {
            key_of(names): runner.start(self._request(key_of(names), plan=make_plan(names)))
            for names in wave
        }
        spent: dict[str, float] = {}

        def first_step(key: str) -> None:
            began = time.monotonic()
            sessions[key].advance(1)
            spent[key] = time.monotonic() - began

        with ThreadPoolExecutor(len(sessions)) as pool:
            started = {key: pool.submit(first_step, key) for key in sessions}
        for key, future in started.items():
            error = future.exception()
            if error is not None:
                self._failed(key, error)
                del sessions[key]
        return sessions, spent

    def _request(self, key: str, **given: Any) -> Any:
        made = request(key, discovery=self.discovery, seed=1, **given)
        return replace(made, time_limit_seconds=LONGEST_SECONDS)

    def _failed(self, key: str, error: BaseException) -> None:
        outcome = getattr(error, "outcome", None)
        reason = outcome.reason if outcome is not None else f"{type(error).__name__}: {error}"
        name = outcome.error if outcome is not None else type(error).__name__
        name = "baseline" if isinstance(error, BaselineEnded) else name
        if self.plans.get(key, {}).get("ratio"):
            self.plans[key]["failed_again"] = reason
        else:
            self.plans[key] = {"names": key.split("+"), "failed": reason, "error": name}

    def _note(self, key: str, session: Any, turns: dict[str, list[float]], spent: float) -> None:
        outcome = _shown(session)
        ratios = [base / own for base, own in zip(turns["baseline"], turns[key], strict=True)]
        row = self.plans.setdefault(
            key, {"names": key.split("+"), "start_seconds": outcome.startup_seconds}
        )
        row["alone_seconds"] = row.get("alone_seconds", 0.0) + spent
        row.pop("failed", None)
        row.update(
            step_seconds=_median(turns[key]),
            baseline_step_seconds=_median(turns["baseline"]),
            ratio=_median(ratios),
            low=min(ratios),
            high=max(ratios),
            rounds=len(ratios),
            peak_bytes=outcome.peak_bytes,
            host_peak_bytes=outcome.host_peak_bytes,
        )


def plan_key(report: dict[str, Any]) -> str:
    return key_of(choice["name"] for choice in report.get("plan", {}).get("choices", []))


def grid_seconds(data: dict[str, Any]) -> tuple[float, float]:
    """(One after the other, as run). The first: each plan's own start (as long as it took side by side),
    warm-up and turns, those that played again twice, and the untouched program's start once."""
    alone = sum(row.get("alone_seconds") or 0.0 for row in data["plans"].values())
    alone += data["plans"]["baseline"].get("start_seconds", 0.0)
    return alone, sum(wave["seconds"] for wave in data["waves"])


def compare(data: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """The search's plan within the grid."""
    key = plan_key(report)
    measured = {name: row for name, row in data["plans"].items() if row.get("ratio")}
    best = max(measured, key=lambda name: measured[name]["ratio"])
    alone, as_run = grid_seconds(data)
    seconds = report.get("elapsed_seconds") or 0.0
    found = measured.get(key)
    regret = measured[best]["ratio"] / found["ratio"] - 1.0 if found else None
    of_grid = seconds / alone if alone else None
    return {
        "plan": key,
        "plan_ratio": found["ratio"] if found else None,
        "best": best,
        "best_ratio": measured[best]["ratio"],
        "regret": regret,
        "regret_bar": REGRET_BAR,
        "search_seconds": round(seconds, 1),
        "grid_seconds": round(alone, 1),
        "grid_seconds_as_run": round(as_run, 1),
        "of_grid": of_grid,
        "of_grid_bar": TIME_BAR,
        "ok": regret is not None and regret <= REGRET_BAR and of_grid is not None and of_grid <= TIME_BAR,
    }


def warm(session: Any) -> float:
    """Steps until they show no trend; the median step in seconds."""
    from flatout.stats import median, steady

    began = time.monotonic()
    step = median(session.advance(5).step_seconds)
    slices: list[float] = []
    while True:
        times = session.advance(1 + max(4, min(400, math.ceil(0.4 / step)))).step_seconds
        step = median(times)
        size = max(1, len(times) // 4)
        slices += [median(times[at : at + size]) for at in range(0, len(times) - size + 1, size)]
        waited = time.monotonic() - began
        if (waited >= 1.0 and steady(slices, last=8)) or waited >= WARM_LIMIT_SECONDS:
            return step


def _shown(session: Any) -> Any:
    """What it has shown, also where it has just come to its end."""
    from flatout.runners import SessionEnded

    try:
        return session.peek()
    except SessionEnded as end:
        return end.outcome


def _alive(session: Any) -> bool:
    from flatout.runners import SessionEnded

    try:
        session.peek()
    except SessionEnded:
        return False
    return True


def _steps(turn_seconds: float, step_seconds: float) -> int:
    return 1 + max(3, math.ceil(turn_seconds / step_seconds))


def _median(values: Iterable[float]) -> float:
    from flatout.stats import median

    return median(list(values))


def _host() -> Any:
    from flatout.detect import detect_host

    return detect_host()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", choices=("nanogpt", "makemore", "unet", "bundled"))
    parser.add_argument("--root", type=Path, help="folder of the checkouts, named OWNER+NAME")
    parser.add_argument("--out", type=Path, required=True, help="the grid's file")
    parser.add_argument("--against", type=Path, help="report.json of a search of the same workload")
    parser.add_argument("--stages", default="grid", help="of grid and search, with a comma")
    parser.add_argument("--budget", default="8m", help="of the search")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--side-by-side", type=int, default=8, help="processes of a wave at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=0.8, help="seconds of one turn")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="begin no wave that ends later; the next call goes on",
    )
    parser.add_argument("--only", help="techniques of the grid, with commas")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--work", type=Path, help="folder for the copies; default: a temporary one")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU can train")
    arguments = parser.parse_args()
    stages = set(arguments.stages.split(",")) if arguments.workload else set()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="flatout-regret-"))
    work.mkdir(parents=True, exist_ok=True)
    report = json.loads(arguments.against.read_text()) if arguments.against else {}
    result: dict[str, Any] = {}
    try:
        if stages:
            workload = lay_out(arguments, work)
        if "grid" in stages:
            Grid(arguments, workload, work).measure(plan_key(report) if report else "")
        if "search" in stages:
            options = ["--budget", arguments.budget, "--fresh"]
            options += ["--only", arguments.only] if arguments.only else []
            searched = search(
                workload.command,
                cwd=workload.folder,
                out=work / "search",
                options=options,
                environment=workload.environment,
            )
            report = searched.report
            say(
                stage="search",
                seconds=round(searched.seconds, 1),
                plan=searched.plan,
                ratio=report.get("ratio"),
            )
            if report:
                report.setdefault("elapsed_seconds", searched.seconds)
        data = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        if report and data:
            result = compare(data, report)
    finally:
        if arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
    say(
        benchmark="regret",
        workload=data.get("workload"),
        device=data.get("device"),
        plans=len(data.get("plans", {})),
        **result,
    )
    return 0 if not result or result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
