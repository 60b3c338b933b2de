"""Doctor on this machine, whatever it is: every group is there, and what is missing says how to get it."""

from __future__ import annotations

import json
import sys

import pytest

from flatout.__main__ import main

GROUPS = ["machine", "GPU", "program", "compilers", "isolation", "profiling", "disk"]


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--", sys.executable, "-c", "pass"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert list(dict.fromkeys(check["group"] for check in checks)) == GROUPS
    python = next(check for check in checks if check["name"] == "Python")
    assert sys.executable in python["detail"]
    ways = [check for check in checks if check["group"] == "isolation"]
    assert [check["name"] for check in ways] == ["overlay", "landlock", "redirect", "user namespaces"]
    for check in checks:
        assert check["state"] in ("ok", "note", "missing")
        assert check["detail"]


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "\nisolation\n" in shown
    assert "flatout's Python" in shown


def test_a_command_that_does_not_exist_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--", "no-such-program"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    (python,) = [check for check in checks if check["name"] == "Python"]
    assert python["state"] == "missing"
    assert "no-such-program" in python["detail"]
