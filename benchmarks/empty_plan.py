"""Does an empty plan change nothing: losses equal to the bit, and the agent's own time within its bar?

    python benchmarks/empty_plan.py [--root DIR] [--only plain_gan,nanogpt] [--device cpu|cuda]
        [--python PY] [--vision-python PY] [--steps 12] [--work DIR] [--keep]

Programs: the six public scripts (where ``--root`` is given, see public_scripts.py), the bundled naive
script in examples/, and three small ones of ours (gan, scaler_clip, accumulation). Each runs twice
untouched and once under flatout's agent with an empty plan; in all three the losses are printed by the
same few lines of this benchmark's own (recorder/sitecustomize.py), not by flatout. The two untouched
runs show whether the program repeats itself at all.

One JSON line a program: ``equal`` (all losses equal to the bit), ``losses`` compared, ``repeats`` (the
untouched runs agree), ``agent_seconds_per_step`` (the agent's own time, counted inside it),
``agent_bar_seconds`` = max(0.2 ms, 0.5 % of the step), ``ok``. The last line sums up. Exit code 1 when
one is not ok.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import public_scripts
from searching import say, summarise
from sessions import request, runner_for

HERE = Path(__file__).resolve().parent
RECORDER = str(HERE / "recorder")
OWN = HERE.parent / "tests" / "programs"
EXAMPLES = HERE.parent / "examples"
AGENT_BAR_SECONDS = 0.2e-3
AGENT_BAR_SHARE = 0.005
TIMED_BLOCKS = 5
RECORDED = re.compile(r"RECORDED (\d+) (\S+)")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run, where, and with which environment on top of the recorder's."""

    name: str
    command: list[str]
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def surroundings(self, *, backwards: int | None, seeded: bool) -> dict[str, str]:
        """The whole environment of one run."""
        paths = [RECORDER, *filter(None, [self.environment.get("PYTHONPATH")])]
        found = {**os.environ, **self.environment, "PYTHONPATH": os.pathsep.join(paths)}
        if backwards is not None:
            found["RECORDER_BACKWARDS"] = str(backwards)
        if not seeded:
            found["RECORDER_SEED"] = "7"
        return found


def recorded(text: str) -> list[str]:
    """The losses that the recorder printed, as text, in order of the backward calls."""
    return [match.group(2) for match in RECORDED.finditer(text)]


def untouched(program: Program, *, backwards: int, seeded: bool, limit_seconds: float) -> list[str]:
    """Losses of the program as it is, ended by the recorder; RuntimeError with its last words."""
    done = subprocess.run(
        program.command,
        cwd=program.folder,
        env=program.surroundings(backwards=backwards, seeded=seeded),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_seconds,
        check=False,
    )
    losses = recorded(done.stderr)
    if len(losses) < backwards:
        raise RuntimeError(f"{program.name} recorded {len(losses)} of {backwards}: {done.stderr[-600:]}")
    return losses


def under_flatout(
    program: Program, *, steps: int, seeded: bool, out: Path
) -> tuple[list[str], list[Any], Any]:
    """(losses, timed blocks, outcome) under the agent with an empty plan and no seeding."""
    from flatout.runners import SessionEnded

    environment = program.surroundings(backwards=None, seeded=seeded)
    blocks = []
    with runner_for(program.command, cwd=program.folder, environment=environment, out=out) as runner:
        session = runner.start(request("baseline"))
        try:
            # Discovery's hooks are gone after the first steps; what is timed is what a trial times.
            session.advance(steps)
            for _ in range(TIMED_BLOCKS):
                blocks.append(session.advance(max(3, steps // 2)))
            outcome = session.stop()
        except SessionEnded as ended:
            outcome = ended.outcome
    texts = [path.read_text(errors="replace") for path in sorted(out.glob("trials/*/stderr*"))]
    return recorded("\n".join(texts)), blocks, outcome


def compare(program: Program, *, steps: int, seeded: bool, out: Path) -> dict[str, Any]:
    """One program's line."""
    found, blocks, outcome = under_flatout(program, steps=steps, seeded=seeded, out=out)
    if not found:
        return {"ok": False, "reason": outcome.reason, "child_error": outcome.child_error[-600:]}
    first = untouched(program, backwards=len(found), seeded=seeded, limit_seconds=300)
    second = untouched(program, backwards=len(found), seeded=seeded, limit_seconds=300)
    times = [seconds for block in blocks for seconds in block.step_seconds]
    step_seconds = statistics.median(times) if times else None
    # The median of the blocks: on a busy machine the agent is put aside like everybody else.
    own = statistics.median(block.agent_seconds / block.steps for block in blocks) if blocks else None
    bar = max(AGENT_BAR_SECONDS, AGENT_BAR_SHARE * (step_seconds or 0.0))
    equal = found == first
    return {
        "ok": equal and own is not None and own <= bar,
        "equal": equal,
        "repeats": first == second,
        "losses": len(found),
        "differ_at": next((i for i, (a, b) in enumerate(zip(found, first, strict=True)) if a != b), None),
        "step_seconds": step_seconds,
        "agent_seconds_per_step": own,
        "agent_bar_seconds": bar,
        "agent_seconds_per_step_with_discovery": outcome.agent_seconds_per_step,
        "isolation": outcome.isolation,
        "reason": outcome.reason,
    }


def programs(arguments: argparse.Namespace, work: Path) -> list[tuple[Program, bool]]:
    """(program, it seeds itself) of all that were asked for."""
    wanted = set(arguments.only.split(",")) if arguments.only else None
    found = []
    for name in ("gan", "scaler_clip", "accumulation"):
        folder = work / name
        folder.mkdir(exist_ok=True)
        own = Program(name=name, command=[arguments.python, str(OWN / f"{name}.py")], folder=folder)
        found.append((own, True))
    for script in sorted(EXAMPLES.glob("*/train.py")):
        folder = work / script.parent.name
        folder.mkdir(exist_ok=True)
        own = Program(name=script.parent.name, command=[arguments.python, str(script)], folder=folder)
        found.append((own, False))
    found = [pair for pair in found if wanted is None or pair[0].name in wanted]
    for script in public_scripts.SCRIPTS if arguments.root else ():
        if wanted is not None and script.name not in wanted:
            continue
        python = (script.vision and arguments.vision_python) or arguments.python
        cuda = arguments.device == "cuda"
        place = public_scripts.lay_out(script, root=arguments.root, work=work, cuda=cuda, python=python)
        public = Program(
            name=script.name,
            command=[python, *script.command(place)],
            folder=place.folder,
            environment=public_scripts.environment_of(script, place, work),
        )
        found.append((public, script.seeded))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    public_scripts.add_common_arguments(parser)
    for action in parser._actions:
        if action.dest == "root":
            action.required = False
    parser.add_argument(
        "--steps", type=int, default=12, help="before timing; twice to three times as many are timed"
    )
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="flatout-empty-"))
    work.mkdir(parents=True, exist_ok=True)
    results: dict[str, bool] = {}
    try:
        for program, seeded in programs(arguments, work):
            try:
                line = compare(
                    program, steps=arguments.steps, seeded=seeded, out=work / f"{program.name}.out"
                )
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                line = {"ok": False, "reason": str(error)}
            say(program=program.name, **line)
            results[program.name] = line["ok"]
    finally:
        if not arguments.keep and arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
    return summarise("empty_plan", results, device=arguments.device)


if __name__ == "__main__":
    sys.exit(main())
