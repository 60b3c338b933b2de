"""Can the search give back what nanoGPT's author tuned by hand, measured beside it in one run?

    python benchmarks/nanogpt_h200.py --repo DIR [--budget 6m40s] [--device cuda|cpu] [--small]
        [--python PY] [--stages before,search,pair] [--pairs 8] [--work DIR] [--keep]

``--repo`` is a checkout of karpathy/nanoGPT. Two copies are made: the author's as it is, run with
``--dtype=bfloat16 --compile=True``; and a naive one with that tuning taken out: hand-written attention,
AdamW that is not fused, the two TF32 lines removed, ``--dtype=float32 --compile=False``. Both train
GPT-2 124M at 12 x 1,024 tokens on data made here.

Stages, each printing a JSON line as it ends:

before   the author's tuned script, timed by flatout's own agent under an empty plan
search   ``flatout train`` on the naive copy, without help
tuned    (only when asked for) ``flatout train`` on the author's tuned script: nothing to change, or a
         proven gain, with what is there already named
pair     both resident at once, the author's tuned script and the naive one under the plan found, taking
         turns of some steps each: the figure

The last line is ``{"benchmark": "nanogpt_h200", "figure": tuned over plan's step, "bar": 0.98,
"search_seconds": s, "search_bar": 420, ...}``: ``figure`` 1.0 means as fast as the author's tuning.
``--small`` shrinks the model so that it can be tried on a CPU, where the figure says nothing.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import made_data
from searching import Searched, say, search
from sessions import request, runner_for

BAR = 0.98
SEARCH_BAR_SECONDS = 420

NAIVE_EDITS: dict[str, tuple[tuple[str, str], ...]] = {
    "model.py": (
        ("self.flash = hasattr(torch.nn.functional, 'scaled_dot_product_attention')", "self.flash = False"),
        ("use_fused = fused_available and device_type == 'cuda'", "use_fused = False"),
    ),
    "train.py": (
        ("torch.backends.cuda.matmul.allow_tf32 = True # allow tf32 on matmul\n", ""),
        ("torch.backends.cudnn.allow_tf32 = True # allow tf32 on cudnn\n", ""),
    ),
}


def make_naive(folder: Path) -> None:
    """Take the author's tuning out of a copy; SystemExit where a line to change is not there just once."""
    for name, edits in NAIVE_EDITS.items():
        text = (folder / name).read_text()
        for old, new in edits:
            if text.count(old) != 1:
                raise SystemExit(
                    f"{folder / name} has {text.count(old)} of {old.strip()!r}; this is another nanoGPT"
                )
            text = text.replace(old, new)
        (folder / name).write_text(text)


def lay_out(repository: Path, work: Path, *, small: bool) -> tuple[Path, Path]:
    """(author's copy, naive copy), each with the same made data."""
    copies = []
    for name in ("author", "naive"):
        copy = work / name
        shutil.copytree(repository, copy, ignore=shutil.ignore_patterns(".git", "*.ipynb", "assets"))
        made_data.make_tokens(
            copy / "data" / "made", limit_bytes=8_000_000, vocabulary=256 if small else None
        )
        copies.append(copy)
    make_naive(copies[1])
    return copies[0], copies[1]


def command(arguments: argparse.Namespace, *, tuned: bool) -> list[str]:
    """nanoGPT's command line, with the author's tuned flags or without."""
    sizes = (
        ["--batch_size=4", "--block_size=64", "--n_layer=2", "--n_head=2", "--n_embd=64"]
        if arguments.small
        else ["--batch_size=12", "--block_size=1024"]
    )
    flags = ["--dtype=bfloat16", "--compile=True"] if tuned else ["--dtype=float32", "--compile=False"]
    return [
        arguments.python,
        "train.py",
        "--dataset=made",
        f"--device={arguments.device}",
        *flags,
        *sizes,
        "--gradient_accumulation_steps=1",
        "--eval_interval=100000",
        "--eval_iters=1",
        "--always_save_checkpoint=False",
        "--max_iters=600000",
    ]


def warm(session: Any, *, steps: int) -> list[float]:
    """At most 12 blocks of ``steps``, until the last two medians agree within 3 %; medians in seconds."""
    medians: list[float] = []
    while len(medians) < 12:
        medians.append(statistics.median(session.advance(steps).step_seconds))
        if len(medians) > 2 and abs(medians[-1] / medians[-2] - 1) < 0.03:
            break
    return medians


def stage_before(arguments: argparse.Namespace, author: Path, work: Path) -> None:
    began = time.monotonic()
    with runner_for(command(arguments, tuned=True), cwd=author, out=work / "before") as runner:
        medians = warm(runner.start(request("before")), steps=arguments.block)
    say(
        stage="before",
        tuned_step_seconds=medians[-1],
        blocks=medians,
        seconds=round(time.monotonic() - began, 1),
    )


def stage_search(
    arguments: argparse.Namespace, folder: Path, out: Path, *, stage: str = "search", tuned: bool = False
) -> Searched:
    searched = search(
        command(arguments, tuned=tuned),
        cwd=folder,
        out=out,
        options=["--budget", arguments.budget, *arguments.search_options],
    )
    report = searched.report
    say(
        stage=stage,
        exit_code=searched.exit_code,
        seconds=round(searched.seconds, 1),
        plan=searched.plan,
        conclusion=report.get("conclusion", searched.stderr[-800:]),
        baseline_step_seconds=report.get("baseline_step_seconds"),
        plan_step_seconds=report.get("plan_step_seconds"),
        ratio=report.get("ratio"),
        low=report.get("low"),
        high=report.get("high"),
        guard=report.get("guard_note"),
        techniques=searched.techniques,
        limits=report.get("limits"),
        left=report.get("left"),
        spent=report.get("spent"),
        isolation=report.get("isolation"),
        compile=report.get("compile"),
        trials=[(row["key"], row["state"], round(row["seconds"], 1)) for row in report.get("trials", ())],
    )
    return searched


def stage_pair(arguments: argparse.Namespace, author: Path, naive: Path, work: Path) -> dict[str, Any]:
    """Both resident, taking turns; medians of each block in seconds, and the ratio of each pair."""
    from flatout.planfile import read_plan

    found = read_plan(work / "out" / "plan.toml")
    began = time.monotonic()
    tuned = runner_for(command(arguments, tuned=True), cwd=author, out=work / "before")
    planned = runner_for(command(arguments, tuned=False), cwd=naive, out=work / "out")
    with tuned, planned:
        sessions = [
            tuned.start(request("tuned")),
            planned.start(request("planned", plan=found.plan, discovery=found.discovery)),
        ]
        for session in sessions:
            warm(session, steps=arguments.block)
        pairs: list[tuple[float, float]] = []
        for turn in range(arguments.pairs):
            medians = [0.0, 0.0]
            for index in (0, 1) if turn % 2 == 0 else (1, 0):
                medians[index] = statistics.median(sessions[index].advance(arguments.block).step_seconds)
            pairs.append((medians[0], medians[1]))
    ratios = [of_author / of_plan for of_author, of_plan in pairs]
    result = {
        "figure": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "tuned_step_seconds": statistics.median(pair[0] for pair in pairs),
        "plan_step_seconds": statistics.median(pair[1] for pair in pairs),
        "pairs": pairs,
        "pair_seconds": round(time.monotonic() - began, 1),
    }
    say(stage="pair", **result)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repo", type=Path, required=True)
    parser.add_argument("--budget", default="6m40s")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--stages", default="before,search,pair")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--block", type=int, default=20, help="steps of a turn")
    parser.add_argument("--work", type=Path, help="folder for the copies; default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the copies and the out folder")
    arguments, arguments.search_options = parser.parse_known_args()
    stages = arguments.stages.split(",")
    work = arguments.work or Path(tempfile.mkdtemp(prefix="flatout-nanogpt-"))
    result: dict[str, Any] = {}
    searched: Searched | None = None
    try:
        if (work / "naive").exists():
            author, naive = work / "author", work / "naive"
        else:
            author, naive = lay_out(arguments.repo, work, small=arguments.small)
        if "before" in stages:
            stage_before(arguments, author, work)
        if "search" in stages:
            searched = stage_search(arguments, naive, work / "out")
        if "tuned" in stages:
            stage_search(arguments, author, work / "tuned", stage="tuned", tuned=True)
        if "pair" in stages and (work / "out" / "plan.toml").exists():
            result = stage_pair(arguments, author, naive, work)
    finally:
        if not arguments.keep and arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
    figure = result.get("figure")
    ok = figure is not None and figure >= BAR
    if searched is not None:
        ok = ok and searched.seconds <= SEARCH_BAR_SECONDS
    say(
        benchmark="nanogpt_h200",
        figure=figure,
        bar=BAR,
        search_seconds=searched and round(searched.seconds, 1),
        search_bar=SEARCH_BAR_SECONDS,
        plan=searched and searched.plan,
        device=arguments.device,
        small=arguments.small,
        ok=ok,
    )
    return 0 if ok or arguments.small else 1


if __name__ == "__main__":
    sys.exit(main())
