"""``flatout run`` with a plan: the program runs as it would alone, with the plan's techniques on."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flatout import __version__, errors
from flatout.fingerprint import file_sha256, find_script
from flatout.plan import Choice, Plan
from flatout.planfile import PlanFile, read_plan, write_plan
from flatout.runners.seen import find_interpreter
from flatout.workload import Workload

from .harness import PROGRAMS, Ended, House, wait_for

pytestmark = pytest.mark.torch
PLAIN = str(PROGRAMS / "plain.py")


def losses(text: str) -> list[tuple[int, float]]:
    """(step, loss) of every line that a program of ours printed."""
    rows = [line.split() for line in text.splitlines()]
    return [(int(row[0]), float(row[1])) for row in rows if len(row) == 2 and row[0].isdigit()]


def planned(house: House, plan: Plan, *command: str) -> Path:
    """A plan.toml that applies ``plan`` to ``command``, as a search would have written it."""
    workload = Workload(command=command, cwd=str(house.work), environment=house.environment)
    discovery, _ = house.discover(*command)
    interpreter = find_interpreter(workload, out_dir=house.out)
    script = find_script(workload)
    path = house.root / "plan.toml"
    write_plan(
        path,
        PlanFile(
            plan=plan,
            command=command,
            cwd=str(house.work),
            script=str(script) if script else None,
            script_sha256=file_sha256(script) if script else None,
            interpreter=interpreter.executable,
            python=interpreter.version,
            torch=discovery.torch_version,
            flatout=__version__,
            packages=dict(interpreter.packages),
            gpus=(),
            driver=None,
            cuda=None,
            discovery=discovery,
        ),
    )
    return path


def run(
    house: House, plan: Path, *command: str, options: tuple[str, ...] = (), stdin: str | None = None
) -> Ended:
    return house.flatout("run", "--plan", str(plan), *options, "--", *command, stdin=stdin)


def alone(house: House, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=house.work,
        env=house.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_a_plan_is_applied_and_the_empty_one_changes_no_bit(house: House) -> None:
    command = (sys.executable, PLAIN, "--steps", "30")
    untouched = alone(house, *command)
    fused = planned(house, Plan(choices=(Choice(name="fused_optimizer"),)), sys.executable, PLAIN)
    ended = run(house, fused, *command)
    assert ended.exit_code == 0, ended.text
    expected = losses(untouched)
    found = losses(ended.stdout)
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], rel=1e-4)

    empty = house.root / "empty.toml"
    write_plan(empty, dataclasses.replace(read_plan(fused), plan=Plan()))
    ended = run(house, empty, *command)
    assert ended.exit_code == 0, ended.text
    assert losses(ended.stdout) == expected


def test_stale_plan_is_refused_unless_asked(house: House) -> None:
    script = house.work / "train.py"
    script.write_text(Path(PLAIN).read_text())
    plan = planned(house, Plan(choices=(Choice(name="fused_optimizer"),)), sys.executable, "train.py")
    script.write_text(script.read_text() + "\nprint('edited since')\n")
    command = (sys.executable, "train.py", "--steps", "3")
    refused = run(house, plan, *command)
    assert refused.exit_code == errors.StalePlan.exit_code, refused.text
    assert "edited since" not in refused.stdout, "refused before it ran"
    assert "train.py" in refused.stderr
    gone_on = run(house, plan, *command, options=("--stale-ok",))
    assert gone_on.exit_code == 0, gone_on.text
    assert "edited since" in gone_on.stdout


def test_technique_that_cannot_act_stops_the_job_unless_degraded(house: House) -> None:
    """A plan that promises a fused optimiser, for a program whose optimiser has no such thing."""
    script = house.work / "train.py"
    script.write_text(Path(PLAIN).read_text())
    plan = planned(house, Plan(choices=(Choice(name="fused_optimizer"),)), sys.executable, "train.py")
    script.write_text(script.read_text().replace("AdamW", "Rprop"))
    command = (sys.executable, "train.py", "--steps", "5")
    stopped = run(house, plan, *command, options=("--stale-ok",))
    assert stopped.exit_code == errors.TechniqueInactive.exit_code, stopped.text
    assert stopped.stderr.count("cannot act in this program") == 1, "the reason is said once"
    assert "fused" in stopped.stderr
    degraded = run(house, plan, *command, options=("--stale-ok", "--degrade"))
    assert degraded.exit_code == 0, degraded.text
    assert len(losses(degraded.stdout)) == 5
    assert "fused" in degraded.stderr, "it says what it went on without"


def test_exit_code_input_and_arguments_pass_through(house: House) -> None:
    script = house.work / "train.py"
    script.write_text(
        Path(PLAIN).read_text()
        + "\nimport sys\nprint('read', sys.stdin.read())\nprint('wrote', file=sys.stderr)\nsys.exit(7)\n"
    )
    plan = planned(house, Plan(choices=(Choice(name="fused_optimizer"),)), sys.executable, "train.py")
    ended = run(
        house, plan, sys.executable, "train.py", "--steps", "3", "--seed", "5", stdin="from the person"
    )
    assert ended.exit_code == 7, ended.text
    assert "read from the person" in ended.stdout
    assert "wrote" in ended.stderr
    assert len(losses(ended.stdout)) == 3


def test_interrupt_reaches_the_program(house: House) -> None:
    script = house.work / "train.py"
    body = Path(PLAIN).read_text().replace("for step in", "try:\n  for step in")
    head, _, loop = body.partition("try:\n")
    loop = "\n".join("  " + line if line.startswith("    ") else line for line in loop.splitlines())
    script.write_text(f"{head}try:\n{loop}\nexcept KeyboardInterrupt:\n  print('saved and left')\n")
    plan = planned(house, Plan(choices=(Choice(name="fused_optimizer"),)), sys.executable, "train.py")
    log = house.root / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            house.command("run", "--plan", str(plan), "--", sys.executable, "train.py"),
            cwd=house.work,
            env=house.environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_for(lambda: len(losses(log.read_text())) > 5, 60, "some steps")
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60)
    assert "saved and left" in log.read_text()
    assert house.leftover() == []


@pytest.mark.root
@pytest.mark.parametrize("wrapper", ["run.sh", "isolated.sh"])
def test_wrapper_that_hides_from_pythonpath(house: House, wrapper: str) -> None:
    if house.strongest_isolation() != "overlay":
        pytest.skip(
            f"needs a mount namespace; here the strongest isolation is {house.strongest_isolation()}"
        )
    command = str(PROGRAMS / wrapper)
    plan = planned(house, Plan(choices=(Choice(name="fused_optimizer"),)), command)
    ended = run(house, plan, command, "--steps", "10")
    assert ended.exit_code == 0, ended.text
    assert len(losses(ended.stdout)) == 10


def test_a_whole_search_ends_with_a_plan_and_three_reports(house: House) -> None:
    ended = house.train(
        sys.executable, PLAIN, options=("--budget", "60s", "--only", "fused_optimizer,bf16")
    )
    assert ended.exit_code == 0, ended.text
    report = ended.report
    assert report["state"] == "finished"
    assert report["conclusion"]
    by_name = {row["name"]: row for row in report["techniques"]}
    for name in ("fused_optimizer", "bf16"):
        assert by_name[name]["standing"] in ("applied", "no gain", "refused", "not tried"), by_name[name]
        assert by_name[name]["reason"] or by_name[name]["standing"] == "applied"
    for trial in report["trials"]:
        assert trial["state"] in ("completed", "failed", "skipped")
        assert trial["reason"] or trial["state"] == "completed"
    assert read_plan(house.out / "plan.toml").command == (sys.executable, PLAIN)
    assert (house.out / "report.md").read_text().strip()
    shown = {
        form: house.flatout("report", str(house.out), "--format", form)
        for form in ("terminal", "json", "markdown")
    }
    assert all(one.exit_code == 0 and one.stdout.strip() for one in shown.values())
    again = json.loads(shown["json"].stdout)
    assert again["conclusion"] == report["conclusion"]
    assert again["trials"] == report["trials"]
    assert house.leftover() == []
