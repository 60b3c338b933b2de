"""Six public training scripts, unmodified: does each come to a verdict with reasons, and to the right one?

    python benchmarks/public_scripts.py --root DIR [--only nanogpt,unet] [--device cpu|cuda]
        [--python PY] [--vision-python PY] [--budget 90s] [--work DIR] [--keep]

``--root`` holds checkouts named OWNER+NAME: karpathy+nanoGPT, karpathy+makemore, pytorch+examples,
milesial+Pytorch-UNet, huggingface+trl. Each is copied, gets made data (see made_data.py) and is handed
to ``flatout train`` as it is; none of their code is part of this project. ``--python`` needs torch,
transformers, datasets, accelerate and tensorboard; ``--vision-python`` (imagenet, unet) torch,
torchvision, Pillow, tqdm and wandb (a stand-in of our own is used where wandb is missing). Sizes are
small on a CPU and real on a GPU.

Prints one JSON line a script: exit code, seconds, conclusion, ratio with bounds, plan, first limit, what
became of each technique, and checks (verdict: ended with a report and a reason for every technique;
not_slower: the plan's lower bound is above 1, or nothing was changed; limit and step_unit: as expected
for that script). The last line sums up: ``{"benchmark": "public_scripts", "ok": n, "of": m, ...}``.
Exit code 1 when a check failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import made_data
from searching import Searched, say, search, summarise

MAKE = str(Path(made_data.__file__))


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one script is tried: the copy of its repository, the sizes, and the Python that runs it."""

    folder: Path
    cuda: bool
    python: str

    def make(self, kind: str, folder: Path, **sizes: int) -> None:
        """Run made_data.py under the script's own Python."""
        options = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        subprocess.run([self.python, MAKE, kind, str(folder), *options], check=True, env=environment)


@dataclass(frozen=True, kw_only=True)
class Script:
    """One public script: how its data is made, the command, and what must be concluded."""

    name: str
    repository: str
    below: str = ""
    """Folder inside the repository that the command runs in."""
    vision: bool = False
    """Needs the Python that has torchvision."""
    prepare: Callable[[Place], None]
    command: Callable[[Place], list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    step_unit: str = "optimizer"
    first_limit: tuple[str, ...] = ()
    """Causes of which the report must name one first; empty: any."""
    first_limit_on: tuple[str, ...] = ("cpu", "cuda")
    seeded: bool = True
    """The script seeds itself as it is called here."""


def nanogpt_arguments(place: Place) -> list[str]:
    """Sizes and options of nanoGPT's train.py, author's tuning of dtype and compile off."""
    sizes = (
        ["--batch_size=12", "--block_size=1024"]
        if place.cuda
        else ["--batch_size=4", "--block_size=64", "--n_layer=2", "--n_head=2", "--n_embd=64"]
    )
    return [
        "train.py",
        "--dataset=made",
        f"--device={'cuda' if place.cuda else 'cpu'}",
        "--dtype=float32",
        "--compile=False",
        "--eval_interval=100000",
        "--eval_iters=1",
        "--gradient_accumulation_steps=1",
        "--always_save_checkpoint=False",
        "--max_iters=600000",
        *sizes,
    ]


def prepare_nanogpt(place: Place) -> None:
    made_data.make_tokens(
        place.folder / "data" / "made", limit_bytes=4_000_000, vocabulary=None if place.cuda else 256
    )


def prepare_makemore(place: Place) -> None:
    made_data.make_names(place.folder / "names.txt", count=20_000)


def makemore_arguments(place: Place) -> list[str]:
    device = "cuda" if place.cuda else "cpu"
    return ["makemore.py", "--type", "gru", "--device", device, "-n", "1" if place.cuda else "0"]


def prepare_word_language_model(place: Place) -> None:
    made_data.make_corpus(place.folder / "data" / "made", limit_bytes=4_000_000 if place.cuda else 300_000)


def word_language_model_arguments(place: Place) -> list[str]:
    sizes = (
        ["--accel", "--emsize", "650", "--nhid", "650"]
        if place.cuda
        else ["--emsize", "32", "--nhid", "32", "--batch_size", "8", "--bptt", "20", "--log-interval", "10"]
    )
    return ["main.py", "--data", "data/made", *sizes]


def prepare_imagenet(place: Place) -> None:
    if place.cuda:
        place.make("images", place.folder / "made", classes=8, per_class=512, size=500)
    else:
        place.make("images", place.folder / "made", classes=2, per_class=24, size=3200)


def imagenet_arguments(place: Place) -> list[str]:
    sizes = ["-a", "resnet18", "-b", "64"] if place.cuda else ["-a", "shufflenet_v2_x0_5", "-b", "4"]
    return ["main.py", "made", "-j", "1", "-p", "1", *sizes]


def prepare_unet(place: Place) -> None:
    shutil.rmtree(place.folder / "data", ignore_errors=True)
    width, height = (960, 640) if place.cuda else (64, 48)
    place.make("pairs", place.folder / "data", count=200 if place.cuda else 60, width=width, height=height)


def unet_arguments(place: Place) -> list[str]:
    return ["train.py", "-e", "50", "-b", "4", "-s", "0.5" if place.cuda else "1"]


def prepare_trl(place: Place) -> None:
    sizes = (
        {"rows": 4096, "hidden": 768, "layers": 12}
        if place.cuda
        else {"rows": 512, "hidden": 64, "layers": 2}
    )
    place.make("language_model", place.folder / "made", **sizes)
    # trl asks importlib.metadata for its own version, which a checkout that is not installed has not.
    metadata = place.folder / "trl-0.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: trl\nVersion: 0.0.0\n")


def trl_arguments(place: Place) -> list[str]:
    sizes = (
        ["--per_device_train_batch_size=8", "--max_length=1024"]
        if place.cuda
        else ["--per_device_train_batch_size=4", "--max_length=64", "--use_cpu=True"]
    )
    return [
        "trl/scripts/sft.py",
        "--model_name_or_path=made/model",
        "--dataset_name=made/data",
        "--bf16=False",
        "--logging_steps=1",
        "--num_train_epochs=1000",
        "--output_dir=out",
        "--report_to=none",
        *sizes,
    ]


SCRIPTS = (
    Script(
        name="nanogpt",
        repository="karpathy+nanoGPT",
        prepare=prepare_nanogpt,
        command=nanogpt_arguments,
    ),
    Script(
        name="makemore",
        repository="karpathy+makemore",
        prepare=prepare_makemore,
        command=makemore_arguments,
        first_limit=("launches",),
        first_limit_on=("cuda",),
    ),
    Script(
        name="word_language_model",
        repository="pytorch+examples",
        below="word_language_model",
        prepare=prepare_word_language_model,
        command=word_language_model_arguments,
        step_unit="backward",
    ),
    Script(
        name="imagenet",
        repository="pytorch+examples",
        below="imagenet",
        vision=True,
        prepare=prepare_imagenet,
        command=imagenet_arguments,
        first_limit=("loader",),
        seeded=False,
    ),
    Script(
        name="unet",
        repository="milesial+Pytorch-UNet",
        vision=True,
        prepare=prepare_unet,
        command=unet_arguments,
        environment={"WANDB_MODE": "offline"},
        seeded=False,
    ),
    Script(
        name="trl_sft",
        repository="huggingface+trl",
        prepare=prepare_trl,
        command=trl_arguments,
        environment={"HF_HUB_OFFLINE": "1", "PYTHONPATH": "."},
    ),
)


def lay_out(script: Script, *, root: Path, work: Path, cuda: bool, python: str) -> Place:
    """Copy the script's repository below ``work`` and make its data there."""
    copy = work / script.name
    source = root / script.repository / script.below
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", "*.ipynb"))
    place = Place(folder=copy, cuda=cuda, python=python)
    script.prepare(place)
    return place


def environment_of(script: Script, place: Place, work: Path) -> dict[str, str]:
    """The script's own environment variables, with a stand-in for wandb where it is not installed."""
    environment = dict(script.environment)
    before = [path for path in (os.environ.get("PYTHONPATH"),) if path]
    if "PYTHONPATH" in environment:
        environment["PYTHONPATH"] = os.pathsep.join([str(place.folder), *before])
    if (
        script.name == "unet"
        and subprocess.run(
            [place.python, "-c", "import importlib.util as u; raise SystemExit(not u.find_spec('wandb'))"],
            check=False,
        ).returncode
    ):
        stand_in = work / "stand_in"
        stand_in.mkdir(exist_ok=True)
        (stand_in / "wandb.py").write_text(STAND_IN_WANDB)
        environment["PYTHONPATH"] = os.pathsep.join([str(stand_in), *before])
    return environment


STAND_IN_WANDB = """
class _Run:
    def __init__(self): self.config = {}
    def log(self, values): pass
def init(**settings): return _Run()
def Histogram(values): return values
def Image(values): return values
"""


def judge(script: Script, searched: Searched, device: str) -> dict[str, bool]:
    """Name of each check -> whether it holds."""
    report = searched.report
    limits = report.get("limits") or []
    checks = {
        "verdict": searched.exit_code == 0
        and bool(report.get("conclusion"))
        and all(row["reason"] or row["standing"] == "applied" for row in report.get("techniques", ())),
        "not_slower": searched.plan == "baseline" or (report.get("low") or 0) > 1,
        "step_unit": (report.get("discovery") or {}).get("step_unit") == script.step_unit,
    }
    if script.first_limit and device in script.first_limit_on:
        checks["limit"] = bool(limits) and limits[0]["cause"] in script.first_limit
    return checks


def show(script: Script, searched: Searched, device: str) -> bool:
    """Print the script's line; True when all its checks hold."""
    report = searched.report
    checks = judge(script, searched, device)
    compiled = report.get("compile") or {}
    say(
        script=script.name,
        ok=all(checks.values()),
        checks=checks,
        exit_code=searched.exit_code,
        seconds=round(searched.seconds, 1),
        conclusion=report.get("conclusion", searched.stderr[-600:]),
        ratio=report.get("ratio"),
        low=report.get("low"),
        high=report.get("high"),
        baseline_step_seconds=report.get("baseline_step_seconds"),
        plan=searched.plan,
        limits=[(limit["cause"], round(limit["share"], 3)) for limit in report.get("limits") or []],
        left=searched.left,
        techniques=searched.techniques,
        isolation=report.get("isolation"),
        recompiles=compiled.get("recompiles"),
        thrown_away=report.get("thrown_away_count"),
        notes=report.get("notes"),
    )
    return all(checks.values())


def chosen(names: str | None) -> list[Script]:
    """The scripts of ``names``; SystemExit for one that there is not."""
    if not names:
        return list(SCRIPTS)
    known = {script.name: script for script in SCRIPTS}
    wanted = [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"no script {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in wanted]


def add_common_arguments(parser: argparse.ArgumentParser, *, root_required: bool = True) -> None:
    """Options that the benchmarks over the public scripts share."""
    parser.add_argument("--root", type=Path, required=root_required, help="folder of the checkouts")
    parser.add_argument("--only", help="names of scripts, with commas")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--vision-python", help="default: the same as --python")
    parser.add_argument("--work", type=Path, help="folder for the copies; default: a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave the copies and the out folders")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    parser.add_argument("--budget", help="of each search; default: 90s")
    arguments, more = parser.parse_known_args()
    scripts = chosen(arguments.only)
    work = arguments.work or Path(tempfile.mkdtemp(prefix="flatout-public-"))
    results: dict[str, Any] = {}
    try:
        for script in scripts:
            python = (script.vision and arguments.vision_python) or arguments.python
            cuda = arguments.device == "cuda"
            print(f"== {script.name}", file=sys.stderr, flush=True)
            try:
                place = lay_out(script, root=arguments.root, work=work, cuda=cuda, python=python)
            except (OSError, subprocess.CalledProcessError) as error:
                say(script=script.name, ok=False, checks={"laid_out": False}, conclusion=str(error))
                results[script.name] = False
                continue
            searched = search(
                [python, *script.command(place)],
                cwd=place.folder,
                out=work / f"{script.name}.out",
                options=["--budget", arguments.budget or "90s", *more],
                environment=environment_of(script, place, work),
            )
            results[script.name] = show(script, searched, arguments.device)
    finally:
        if not arguments.keep and arguments.work is None:
            shutil.rmtree(work, ignore_errors=True)
    return summarise("public_scripts", results, device=arguments.device)


if __name__ == "__main__":
    sys.exit(main())
