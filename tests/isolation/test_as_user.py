"""The overlay as somebody without any right: another user's process, when the tests run as root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import flatout

pytestmark = pytest.mark.root
USER = 54321

SCRIPT = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1] + "/src", sys.argv[1]]
from flatout.errors import IsolationError
from house import House, tree_hash
house = House(Path(sys.argv[1]) / "own")
try:
    way = house.way(sys.argv[2])
except IsolationError as error:
    print(json.dumps({"skip": error.message}))
    sys.exit()
(house.work / "victim").write_text("mine")
site = Path(sys.argv[1]) / "site"
before = tree_hash(house.work, house.home, site)
told = house.run(
    way, "sh", "-c",
    "id -u; echo x > new; rm victim; echo h > $HOME/h; cat $1/flatout_agent.pth; touch $1/no /usr/no /no; "
    "ls /proc | grep -c '^[0-9]'",
    "sh", str(site),
    site_packages=[str(site)], pth_text="import sys" + chr(10),
)
for name in ("stdout.txt", "stderr.txt"):
    (house.trial / ("_" + name)).write_text((house.trial / name).read_text())
print(json.dumps({
    "detail": way.detail, "printed": house.printed.split(), "complained": house.complained.splitlines(),
    "same": before == tree_hash(house.work, house.home, site), "left": house.scratch_folders(),
    "thrown": [path for path, _ in told.said("thrown_away")["largest"]],
    "exited": told.said("exited"),
}))
"""


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that another user may enter, with flatout's source in it."""
    folder = Path(tempfile.mkdtemp(prefix="flatout-test-"))
    try:
        shutil.copytree(
            Path(flatout.__file__).parent,
            folder / "src" / "flatout",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        shutil.copy(Path(__file__).with_name("house.py"), folder)
        (folder / "script.py").write_text(SCRIPT)
        (folder / "site").mkdir()
        (folder / "own").mkdir()
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
        os.chown(folder / "own", USER, USER)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_as_user(folder: Path, way: str) -> dict[str, object]:
    python = next(
        (p for p in ("/usr/bin/python3", "/usr/local/bin/python3") if os.access(p, os.X_OK)), None
    )
    if os.geteuid() != 0:
        pytest.skip("the other tests run as an ordinary user already")
    if python is None:
        pytest.skip("no Python here that another user may start")
    version = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True, check=True
    )
    if version.stdout.strip() != b"True":
        pytest.skip(f"{python} is older than 3.11")
    done = subprocess.run(
        [python, str(folder / "script.py"), str(folder), way],
        user=USER, group=USER, extra_groups=[], capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": os.defpath}, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    if "skip" in told:
        pytest.skip(str(told["skip"]))
    return told


def test_overlay_in_a_user_namespace(readable: Path) -> None:
    told = run_as_user(readable, "overlay")
    printed = told["printed"]
    assert isinstance(printed, list)
    assert printed[:3] == [str(USER), "import", "sys"], told
    assert int(printed[3]) < 10, "a process table of its own"
    assert told["same"] is True and told["left"] == []
    own = f"{os.path.realpath(readable)}/own"
    thrown = told["thrown"]
    assert isinstance(thrown, list)
    assert {f"{own}/work/new", f"{own}/work/victim (deleted)", f"{own}/home/h"} <= set(thrown)
    complained = "\n".join(map(str, told["complained"]))  # type: ignore[call-overload]
    for place in (f"{readable}/site/no", "/usr/no", "/no"):
        assert place in complained, "what was closed to this user stays closed"


def test_landlock_without_any_right(readable: Path) -> None:
    told = run_as_user(readable, "landlock")
    own = f"{os.path.realpath(readable)}/own"
    assert told["same"] is True and told["left"] == []
    assert set(told["thrown"]) == {f"{own}/work/new", f"{own}/work/victim (deleted)"}  # type: ignore[call-overload]
