"""Getting in: by a .pth line or a sitecustomize, once, cheaply, and loudly when it fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from flatout.agent.protocol import SPEC_VARIABLE, Spec, pth_line

from .driven import AGENT, PYTHON

INSIDE = (
    "import sys; print(any(type(f).__name__ == 'Finder' for f in sys.meta_path), 'flatout' in sys.modules)"
)


def spec_in(folder: Path) -> str:
    path = folder / "spec.json"
    path.write_text(Spec(trial_dir=str(folder)).to_json())
    return str(path)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLATOUT"))
    }
    return subprocess.run(
        [PYTHON, *arguments],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_by_a_pth_line_also_where_the_environment_is_ignored(tmp_path: Path) -> None:
    line = pth_line(str(AGENT / "bootstrap.py"), spec_in(tmp_path))
    assert line.startswith("import ") and line.endswith("\n") and line.count("\n") == 1
    code = f"import site\nsite.addpackage({str(tmp_path)!r}, 'in.pth', None)\n{INSIDE}"
    (tmp_path / "in.pth").write_text(line)
    done = python("-I", "-c", code)
    assert done.stdout == "True False\n", done.stderr


def test_the_shadowed_sitecustomize_runs_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own_ran = __file__")
    path = os.pathsep.join([str(AGENT / "sitecustomize_dir"), str(own)])
    code = f"{INSIDE}; import sitecustomize; print(sys.own_ran == sitecustomize.__file__)\n"
    code += "print([p for p in sys.path if 'sitecustomize_dir' in p])"
    done = python("-c", code, PYTHONPATH=path, **{SPEC_VARIABLE: spec_in(tmp_path)})
    assert done.stdout == "True False\nTrue\n[]\n", done.stderr


def test_without_a_spec_nothing_happens(tmp_path: Path) -> None:
    done = python("-c", INSIDE, PYTHONPATH=str(AGENT / "sitecustomize_dir"))
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_twice_is_once(tmp_path: Path) -> None:
    line = pth_line(str(AGENT / "bootstrap.py"), spec_in(tmp_path))
    code = f"{line}{line}import sys; print(sum(type(f).__name__ == 'Finder' for f in sys.meta_path))"
    assert python("-c", code).stdout == "1\n"


@pytest.mark.parametrize("content", [None, "{", '{"format": 99}'])
def test_a_spec_that_cannot_be_read_ends_the_process_with_a_clear_line(
    content: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "spec.json"
    if content is not None:
        path.write_text(content)
    code = "import random; print('went on')"
    done = python("-c", code, PYTHONPATH=str(AGENT / "sitecustomize_dir"), **{SPEC_VARIABLE: str(path)})
    assert done.returncode == 20
    assert "went on" not in done.stdout
    assert done.stderr.startswith("flatout: its agent could not start in this process: ")
    assert list(tmp_path.glob("error-*.json"))


def test_it_imports_nothing_before_torch_or_the_like(tmp_path: Path) -> None:
    code = "import sys; print(len(sys.modules), 'typing' in sys.modules, 'json' in sys.modules)"
    plain = python("-c", code).stdout.split()
    done = python(
        "-c", code, PYTHONPATH=str(AGENT / "sitecustomize_dir"), **{SPEC_VARIABLE: spec_in(tmp_path)}
    )
    entered = done.stdout.split()
    # the package, its import hook, and the sitecustomize that let it in
    assert int(entered[0]) - int(plain[0]) <= 4
    assert entered[1:] == plain[1:]
