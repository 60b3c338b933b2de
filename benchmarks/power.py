"""Are planted gains and losses found on recorded noise, and within how many paired steps?

    python benchmarks/power.py [--effects 0.02,0.05] [--replays 50] [--steps 400] [--seed 0]
        [--noise tests/fixtures/noise] [--candidates 5]

Each replay plays the untouched program, its comparisons with itself, and then one comparison against a plan
whose steps are faster (or slower) by the effect, with the share of the error that a search with
``--candidates`` candidates gives each of them. All processes are whole recorded ones (runners/playback.py),
with their own level and wandering.

One JSON line an effect, direction and recording: ``found`` replays with the right verdict within
``--steps`` steps of each side, ``wrong`` with the opposite one, the median of paired steps and of pairs of
processes that the found ones took, and the smallest effect that would have been seen at the median replay's
end. The last line sums up; bar: found in at least 90 % of the replays of every line, and in none the
opposite. Exit code 1 below it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planted import compare
from playing import NOISE, START_SECONDS, recordings
from searching import say

BAR = 0.9


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One comparison."""

    call: str
    paired_steps: int
    processes: int
    ratio: float
    smallest_effect: float


def replay(
    recording: Any, *, effect: float, candidates: int, steps: int, seed: int, folder: Path
) -> Replay:
    """One comparison of the untouched program with a plan ``effect`` faster (negative: slower)."""
    from flatout.runners.mock import MockProgram, MockTechnique
    from flatout.search.allowance import Allowance
    from flatout.search.prove import Aim

    program = MockProgram(
        step_seconds=recording.step_seconds,
        start_seconds=START_SECONDS,
        techniques={"planted": MockTechnique(factor=1.0 / (1.0 + effect))},
        recording=recording,
    )

    def aim_of(options: Any) -> Aim:
        return Aim(
            alpha=Allowance(error=1.0 - options.confidence, candidates=candidates).first_try,
            matters=options.gain_that_matters,
            both_ways=True,
        )

    def paired_steps(bench: Any, _: Any) -> int:
        return sum(
            len(block.step_seconds)
            for trial, _, block in bench.ledger.blocks(bench.search, "planted")
            if trial.partition("~")[0] == "planted"
        )

    verdict, paired = compare(folder, program, seed=seed, aim_of=aim_of, then=paired_steps)
    return Replay(
        call=verdict.call.name.lower(),
        paired_steps=paired,
        processes=len(verdict.process_pairs),
        ratio=verdict.ratio or 1.0,
        smallest_effect=verdict.smallest_effect or 0.0,
    )


def middle(values: list[Any]) -> Any:
    """The middle one, or None."""
    return sorted(values)[len(values) // 2] if values else None


def all_replays(recording: Any, *, effect: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """One line's figures."""
    done = []
    for number in range(arguments.replays):
        with tempfile.TemporaryDirectory() as folder:
            done.append(
                replay(
                    recording,
                    effect=effect,
                    candidates=arguments.candidates,
                    steps=arguments.steps,
                    seed=arguments.seed + number,
                    folder=Path(folder),
                )
            )
    right, wrong = ("better", "worse") if effect > 0 else ("worse", "better")
    found = [one for one in done if one.call == right]
    within = [one for one in found if one.paired_steps <= arguments.steps]
    return {
        "replays": len(done),
        "found": len(within),
        "found_later": len(found) - len(within),
        "wrong": sum(one.call == wrong for one in done),
        "paired_steps": middle([one.paired_steps for one in found]),
        "process_pairs": middle([one.processes for one in found]),
        "ratio": middle([one.ratio for one in done]),
        "smallest_effect": middle([one.smallest_effect for one in done]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--effects", default="0.02,0.05")
    parser.add_argument("--replays", type=int, default=50)
    parser.add_argument("--steps", type=int, default=400, help="of each side, at most")
    parser.add_argument("--candidates", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=Path, default=NOISE, help="a recording, or a folder of them")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = recordings(arguments.noise)
    shares, wrong = [], 0
    for name, recording in found.items():
        for effect in [float(text) for text in arguments.effects.split(",")]:
            for signed in (effect, -effect):
                line = all_replays(recording, effect=signed, arguments=arguments)
                shares.append(line["found"] / line["replays"])
                wrong += line["wrong"]
                say(noise=name, device=recording.device, effect=signed, **line)
    say(
        benchmark="power",
        recordings=len(found),
        least_found=min(shares),
        wrong=wrong,
        bar=BAR,
        seconds=time.monotonic() - began,
    )
    return 0 if min(shares) >= BAR and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
