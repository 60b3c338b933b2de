"""plan.toml: readable, the same after a round trip, strict about mistakes, stale loudly."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from flatout.errors import PlanError, UsageError
from flatout.fingerprint import file_sha256
from flatout.plan import Choice, Plan
from flatout.planfile import (
    FORMAT,
    PlanFile,
    Proof,
    parse_plan,
    plan_text,
    read_plan,
    stale_reasons,
    write_plan,
)
from flatout.runners.mock import DISCOVERY
from flatout.workload import Workload
from search.played import GPU_HOST, INTERPRETER

PLAN = PlanFile(
    plan=Plan(choices=(Choice(name="bf16"), Choice(name="compile", settings={"dynamic": True}))),
    command=("python", "train.py", "--name", 'a "b"'),
    cwd="/w",
    script="/w/train.py",
    script_sha256="0" * 64,
    interpreter="/usr/bin/python3",
    python="3.12.1",
    torch="2.13.0",
    flatout="0.1.0",
    packages={"transformers": "5.0"},
    gpus=("NVIDIA H200",),
    driver="580.1",
    cuda="13.0",
    discovery=replace(DISCOVERY, loaders=({"num_workers": 2, "batch_size": None},)),
    shares={"bf16": 2.5, "compile": 1.4},
    by_hand={"bf16": "with torch.autocast(...):\n    loss = model(x)", "compile": "model.compile()"},
    proof=Proof(
        ratio=4.7,
        low=1 / 3,
        high=4.75,
        confidence=0.99,
        smallest_effect=None,
        baseline_step_seconds=0.285,
        plan_step_seconds=0.06,
        pairs=10,
        method="resident pair",
        guard_note="gradients agree to 25 dB",
        date="2026-12-01T04:00:00+00:00",
    ),
    cache_dir="/w/.flatout/cache",
)


def test_round_trip(tmp_path):
    write_plan(tmp_path / "plan.toml", PLAN)
    back = read_plan(tmp_path / "plan.toml")
    # TOML has no word for nothing, and a table without the key says the same
    expected = replace(PLAN, discovery=replace(PLAN.discovery, loaders=({"num_workers": 2},)))
    assert back == expected
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


def test_the_empty_plan(tmp_path):
    empty = replace(PLAN, plan=Plan(), shares={}, by_hand={}, proof=None, driver=None, cuda=None, gpus=())
    write_plan(tmp_path / "plan.toml", empty)
    assert read_plan(tmp_path / "plan.toml").plan == Plan()
    assert "# It is empty" in (tmp_path / "plan.toml").read_text(encoding="utf-8")


def test_it_reads_well():
    text = plan_text(PLAN)
    head = text.split("\n\n")[0]
    assert "4.700 times the speed" in head
    assert "60 ms instead of 285 ms on NVIDIA H200" in head
    assert "flatout run --plan" in text
    assert """by_hand = \"\"\"\nwith torch.autocast""" in text
    assert list(tomllib.loads(text)) == [
        "format", "cache_dir", "technique", "workload", "host", "versions", "proof", "discovery"
    ]  # fmt: skip


MISTAKES = [
    ("format = 1", "format = 1\nformat = 1", "not valid TOML.*line"),
    (f"format = {FORMAT}", "format = 99", "format 99; this flatout reads up to"),
    (f"format = {FORMAT}", "", "is no plan: it has no `format`"),
    ('name = "bf16"', 'name = "bf17"', r"no technique 'bf17'"),
    ('name = "bf16"', 'name = "compile"', "compile is listed twice"),
    ('name = "bf16"', "name = 3", r"technique.name: expected text, not 3"),
    ("share = 2.5", 'share = "much"', r"technique.share: expected a number, not 'much'"),
    ("share = 2.5", "speed = 2.5", r"technique bf16: unknown field 'speed'"),
    ("[workload]", "[work]", "unknown field 'work'"),
    ("[host]", "[versions.host]", r"\[host\] is missing"),
    ('cwd = "/w"', "", "workload.cwd is missing"),
    ("ratio = 4.7", 'ratio = "x"', r"proof: Proof.ratio: expected a number, not 'x'"),
    ('step_unit = "optimizer"', "step_unit = 1", "discovery: Discovery.step_unit: expected text, not 1"),
    ("technique", "techniques", "unknown field 'techniques'"),
    ("[[technique]]", "[technique]", "not valid TOML"),
]


@pytest.mark.parametrize(("old", "new", "says"), MISTAKES)
def test_mistakes_are_named(tmp_path, old, new, says):
    text = plan_text(PLAN)
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(PlanError, match=says) as caught:
        read_plan(path)
    assert str(path) in caught.value.message


def test_no_file(tmp_path):
    with pytest.raises(PlanError, match="no plan at"):
        read_plan(tmp_path / "plan.toml")
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        write_plan(tmp_path / "missing" / "plan.toml", PLAN)


def test_not_text(tmp_path):
    (tmp_path / "plan.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan(tmp_path / "plan.toml")


def test_stale_reasons(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("train()\n", encoding="utf-8")
    workload = Workload(command=("python", "train.py", "--steps", "999"), cwd=str(tmp_path))
    plan = replace(PLAN, script=str(script), script_sha256=file_sha256(script), packages={})
    assert stale_reasons(plan, workload, GPU_HOST, INTERPRETER) == []

    def reasons(**changes: object) -> str:
        here = {"workload": workload, "host": GPU_HOST, "interpreter": INTERPRETER} | changes
        return " | ".join(stale_reasons(plan, here["workload"], here["host"], here["interpreter"]))

    assert "torch 2.13.0, here is 2.14.1" in reasons(
        interpreter=replace(INTERPRETER, torch_version="2.14.1")
    )
    assert "this machine has no GPU" in reasons(host=replace(GPU_HOST, gpus=()))
    assert "2 x NVIDIA H200" in reasons(host=replace(GPU_HOST, gpus=GPU_HOST.gpus * 2))
    assert "driver 580.1, here is 590.2" in reasons(host=replace(GPU_HOST, driver="590.2"))
    assert reasons(host=replace(GPU_HOST, driver="580.9")) == ""
    assert "Python 3.12.1, here is 3.13.0" in reasons(interpreter=replace(INTERPRETER, version="3.13.0"))
    assert reasons(interpreter=replace(INTERPRETER, version="3.12.9")) == ""
    packaged = replace(plan, packages={"lightning": "2.5"})
    assert "lightning 2.5, here is none" in stale_reasons(packaged, workload, GPU_HOST, INTERPRETER)[0]
    script.write_text("train_more()\n", encoding="utf-8")
    assert reasons() == f"{script} has changed since the plan was proved"
    assert "another program" in reasons(workload=replace(workload, command=("python", "-m", "other")))
    other = tmp_path / "other.py"
    other.write_text("other()\n", encoding="utf-8")
    elsewhere = reasons(workload=replace(workload, command=("python", "other.py")))
    assert elsewhere == f"it was proved for {script}, this command runs {other}, which differs"


def test_stale_for_another_module():
    plan = replace(
        PLAN, script=None, script_sha256=None, command=("python", "-m", "pkg.train"), packages={}
    )
    same = Workload(command=("python3", "-m", "pkg.train", "--steps", "9"), cwd="/nowhere")
    other = replace(same, command=("python", "-m", "pkg.other"))
    assert not any("module" in reason or "proved for" in reason for reason in stale_reasons(
        plan, replace(same, command=("python", "-m", "pkg.train", "-x")), GPU_HOST, INTERPRETER
    ))  # fmt: skip
    assert "proved for `python -m pkg.train" in stale_reasons(plan, other, GPU_HOST, INTERPRETER)[0]


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_stale_for_other_code_on_the_command_line(options):
    first, second = (("python", *options, "-c", f"train({n})\nmore()") for n in (1, 2))
    plan = replace(PLAN, script=None, script_sha256=None, command=first, packages={})
    assert stale_reasons(plan, Workload(command=first, cwd="/w"), GPU_HOST, INTERPRETER) == []
    (reason,) = stale_reasons(plan, Workload(command=second, cwd="/w"), GPU_HOST, INTERPRETER)
    assert reason == "the code behind -c has changed since the plan was proved"


def test_a_name_that_is_not_utf_8_can_be_read_back(tmp_path):
    write_plan(
        tmp_path / "plan.toml", replace(PLAN, command=("python", "n\udcff.py"), script="/w/n\udcff.py")
    )
    assert read_plan(tmp_path / "plan.toml").command == ("python", "n\ufffd.py")


def test_text_with_line_ends_stays_in_its_comment():
    """`python -c` has line ends in its words, and a torch error in its notes."""
    proof = replace(PLAN.proof, guard_note="first\nsecond = 1\r\x1b[2J\x00")
    plan = replace(PLAN, command=("python", "-c", "import x\nx.y()\n[z]"), proof=proof)
    read = parse_plan(plan_text(plan))
    assert (read.command, read.proof) == (plan.command, plan.proof)
    heading = plan_text(plan).split("\n\n")[0]
    assert all(line.startswith("#") for line in heading.splitlines())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("mode = 3", "compile has no setting 'mode'"),
        ("dynamic = 'yes'", "dynamic takes a bool, not 'yes'"),
    ],
)
def test_a_setting_that_would_be_overlooked_is_refused(settings, said):
    text = plan_text(PLAN).replace("dynamic = true", settings)
    with pytest.raises(PlanError, match=said):
        parse_plan(text)


def test_parse_names_the_file():
    with pytest.raises(PlanError, match=r"mine\.toml"):
        parse_plan("", "mine.toml")
