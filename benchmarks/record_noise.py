"""Records how the step times of unchanged processes of one program wander: what the proof must stand.

    python benchmarks/record_noise.py --out tests/fixtures/noise/NAME.json [--pairs 4] [--seconds 30]
        [--turn 0.4] [--together] [--name NAME] [--cwd DIR] [--seed 1] -- python train.py ...

Starts pairs of processes of the same command under flatout's agent with the empty plan, as a search does;
the two of a pair take turns (A B, B A, A B ...) of ``--turn`` seconds for ``--seconds``. Between pairs the
processes are new ones. With ``--together`` all pairs are started at once and hold still until it is their
turn, which saves starts that take long. The file:

    {"program": ..., "device": ..., "made_by": ..., "torch": ..., "processes":
        [{"pair": 0, "side": "a", "blocks": [[step seconds, ...], ...]}, ...]}

Every block is one turn, in the order measured, the first step after each hold left out; seconds are rounded
to the microsecond. Prints one JSON line a pair and one that sums up.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from searching import say
from sessions import request, runner_for

WARM_SLICES = 8
WARM_LIMIT_SECONDS = 45.0
UNCOUNTED_TURNS = 2
"""Of a pair, before what is kept: the first turns after a long hold."""


def warm(session: Any) -> float:
    """Steps until they show no trend; the median step in seconds."""
    from flatout.stats import median, steady

    session.advance(12)
    began = time.monotonic()
    slices: list[float] = []
    while True:
        step = median(session.advance(4).step_seconds)
        times = session.advance(max(9, min(400, math.ceil(0.6 / step)))).step_seconds
        size = max(1, len(times) // 4)
        slices += [median(times[i : i + size]) for i in range(0, len(times) - size + 1, size)]
        waited = time.monotonic() - began
        if (waited >= 2.0 and steady(slices, last=WARM_SLICES)) or waited >= WARM_LIMIT_SECONDS:
            return step


def take_turns(
    sessions: tuple[Any, Any], *, turn_seconds: float, seconds: float
) -> list[list[list[float]]]:
    """The blocks of the two, each a list of step seconds."""
    from flatout.stats import median

    step = max(median(session.advance(6).step_seconds) for session in sessions)
    steps = 1 + max(3, math.ceil(turn_seconds / step))
    blocks: list[list[list[float]]] = [[], []]
    began = time.monotonic()
    turn = 0
    while turn < UNCOUNTED_TURNS or time.monotonic() - began < seconds:
        if turn == UNCOUNTED_TURNS:
            began = time.monotonic()
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            times = sessions[side].advance(steps).step_seconds
            if turn >= UNCOUNTED_TURNS:
                blocks[side].append([round(value, 6) for value in times])
        turn += 1
    return blocks


def pair_line(pair: int, blocks: list[list[list[float]]]) -> dict[str, Any]:
    """What one pair shows, in words of statistics."""
    from flatout.stats import autocorrelation_time, median, relative_spread

    a, b = ([median(times) for times in side] for side in blocks)
    logs = [math.log(x / y) for x, y in zip(a, b, strict=True)]
    return {
        "pair": pair,
        "turns": len(a),
        "step_seconds": median(a),
        "ratio": math.exp(median(logs)),
        "ratios_from": math.exp(min(logs)),
        "ratios_to": math.exp(max(logs)),
        "spread_of_blocks": relative_spread(a),
        "correlation_of_ratios": autocorrelation_time(logs),
    }


def record(arguments: argparse.Namespace, command: list[str], work: Path) -> dict[str, Any]:
    """Runs all pairs; the file's contents."""
    processes: list[dict[str, Any]] = []
    ratios = []
    cwd = arguments.cwd.resolve()
    device = torch_version = ""
    with runner_for(command, cwd=cwd, out=work) as runner:
        groups = (
            [list(range(arguments.pairs))] if arguments.together else [[i] for i in range(arguments.pairs)]
        )
        for group in groups:
            started = [
                (runner.start(request(f"pair{i}a", seed=arguments.seed)),
                 runner.start(request(f"pair{i}b", seed=arguments.seed)))
                for i in group
            ]  # fmt: skip
            both = [session for pair in started for session in pair]
            with ThreadPoolExecutor(len(both)) as pool:
                list(pool.map(lambda session: session.advance(1), both))
            for i, sessions in zip(group, started, strict=True):
                for session in sessions:
                    warm(session)
                blocks = take_turns(sessions, turn_seconds=arguments.turn, seconds=arguments.seconds)
                discovery = sessions[0].discovery
                if discovery is not None:
                    device, torch_version = device_name(discovery.device), discovery.torch_version
                for session in sessions:
                    session.stop()
                line = pair_line(i, blocks)
                say(**line)
                ratios.append(line["ratio"])
                for side, found in zip("ab", blocks, strict=True):
                    processes.append({"pair": i, "side": side, "blocks": found})
    return {
        "program": arguments.name or shlex.join(Path(word).name for word in command[1:]),
        "device": device,
        "torch": torch_version,
        "made_by": f"benchmarks/record_noise.py --pairs {arguments.pairs} --seconds {arguments.seconds:g} "
        f"--turn {arguments.turn:g}" + (" --together" if arguments.together else ""),
        "processes": processes,
    }


def device_name(device: str) -> str:
    """The card's name, or the kind of device."""
    from flatout.host import Host

    if not device.startswith("cuda"):
        return device
    from flatout.detect import detect_host

    host: Host = detect_host()
    return host.gpus[0].name if host.gpus else device


def main() -> int:
    if "--" not in sys.argv:
        print(__doc__, file=sys.stderr)
        return 2
    cut = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0, help="of turns, for each pair")
    parser.add_argument("--turn", type=float, default=0.4, help="seconds of one side's turn")
    parser.add_argument("--together", action="store_true", help="start all pairs at once")
    parser.add_argument("--name", default="", help="of the program, as told in the file")
    parser.add_argument("--cwd", type=Path, default=Path())
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(sys.argv[1:cut])
    command = sys.argv[cut + 1 :]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        found = record(arguments, command, Path(work))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, separators=(",", ":")).replace('{"pair"', '\n{"pair"')
    arguments.out.write_text(text + "\n", encoding="utf-8")
    say(
        benchmark="record_noise",
        program=found["program"],
        device=found["device"],
        processes=len(found["processes"]),
        steps=sum(len(block) for process in found["processes"] for block in process["blocks"]),
        bytes=len(text) + 1,
        seconds=time.monotonic() - began,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
