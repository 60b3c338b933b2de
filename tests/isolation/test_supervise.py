"""Programs in each way of isolation: what they write is gone, what they start is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.errors import IsolationError
from flatout.isolation import Way
from flatout.isolation.client import Supervised

from .conftest import way_or_skip
from .house import House, marked_processes, tree_hash, wait_for

pytestmark = pytest.mark.root

WRITES = """
echo new > new.txt
mkdir -p made/deep && echo deep > made/deep/file
rm -f victim.txt
echo changed >> kept.txt
rm -rf folder && mkdir folder && echo other > folder/other
(echo from a child > child.txt)
"""


def furnish(house: House) -> None:
    (house.work / "victim.txt").write_text("do not delete me")
    (house.work / "kept.txt").write_text("as it was\n")
    (house.work / "folder").mkdir()
    (house.work / "folder" / "inside").write_text("here")
    (house.home / ".profile").write_text("mine")


def thrown(supervised: Supervised) -> dict[str, int]:
    answer = supervised.said("thrown_away")
    assert answer is not None
    return {str(path): int(size) for path, size in answer["largest"]}


def test_writes_are_seen_by_the_program_and_thrown_away(house: House, way: Way) -> None:
    if way.name == "redirect":
        pytest.skip("a shell's writes are not held by redirection, which says so")
    furnish(house)
    before = tree_hash(house.work, house.home)
    told = house.run(way, "sh", "-c", WRITES + "cat new.txt kept.txt; ls; test ! -e victim.txt; ls folder")
    assert told.said("exited")["code"] == 0, house.complained
    assert house.printed.split() == [
        *("new", "as", "it", "was", "changed"),
        *("child.txt", "folder", "kept.txt", "made", "new.txt"),
        "other",
    ]
    (house.trial / "stdout.txt").unlink()
    (house.trial / "stderr.txt").unlink()
    assert tree_hash(house.work, house.home) == before
    listed = thrown(told)
    work = str(house.work)
    assert listed[f"{work}/new.txt"] == 4
    assert listed[f"{work}/made/deep/file"] == 5
    assert listed[f"{work}/kept.txt"] == 18
    assert listed[f"{work}/child.txt"] == 13
    assert f"{work}/victim.txt (deleted)" in listed
    assert f"{work}/folder/other" in listed
    assert told.said("thrown_away")["count"] == len(listed)
    assert house.scratch_folders() == []


def test_home_and_temporary_folders_are_overlaid(house: House, way: Way) -> None:
    if way.name != "overlay":
        pytest.skip("only the overlay lets a program write there")
    name = f"flatout-test-{os.getpid()}"
    places = [str(house.home), "/tmp", "/var/tmp", "/dev/shm"]
    script = "; ".join(f"echo x > {place}/{name}" for place in places)
    told = house.run(way, "sh", "-c", f"set -e; {script}; cat " + " ".join(f"{p}/{name}" for p in places))
    assert told.said("exited")["code"] == 0, house.complained
    assert house.printed.split() == ["x"] * 4
    assert not any(Path(place, name).exists() for place in places)
    assert {f"{place}/{name}" for place in places[:3]} <= set(thrown(told))


def test_what_was_closed_stays_closed(house: House) -> None:
    way = way_or_skip(house, "overlay")
    if os.geteuid() == 0:
        pytest.skip("nothing is closed to root")
    told = house.run(
        way, "sh", "-c", "touch /usr/x /x /etc/x 2>/dev/null; test ! -e /usr/x -a ! -e /x -a ! -e /etc/x"
    )
    assert told.said("exited")["code"] == 0


def test_landlock_forbids_writing_elsewhere(house: House) -> None:
    way = way_or_skip(house, "landlock")
    target = house.home / "elsewhere"
    told = house.run(
        way,
        "sh",
        "-c",
        f"echo x > {target}; echo y > $TMPDIR/fine && echo z > /dev/null && cat $TMPDIR/fine",
    )
    assert told.said("exited")["code"] == 0
    assert house.printed.split() == ["y"]
    assert "denied" in house.complained and not target.exists()
    assert thrown(told)["$TMPDIR/fine"] == 2


def test_landlock_shows_the_caches_of_the_home_folder(house: House) -> None:
    way = way_or_skip(house, "landlock")
    model = house.home / ".cache" / "huggingface" / "hub" / "model"
    model.mkdir(parents=True)
    (model / "weights").write_text("many")
    script = "cd $XDG_CACHE_HOME/huggingface/hub/model; cat weights; echo lock > lock; ls"
    told = house.run(way, "sh", "-c", script)
    assert told.said("exited")["code"] == 0, house.complained
    assert house.printed.split() == ["many" + "lock", "weights"]
    assert [path.name for path in model.iterdir()] == ["weights"]


def test_landlock_refuses_a_folder_too_large_to_copy(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.isolation import landlock

    (house.work / "large").write_bytes(b"x" * 5000)
    with pytest.raises(landlock.CannotCopy, match="too much to copy"):
        landlock.copy_tree(str(house.work), str(house.root / "copy"), most_bytes=4096)


def test_the_pth_exists_inside_only(house: House, way: Way) -> None:
    if way.name != "overlay":
        pytest.skip("only the overlay changes site-packages")
    site = house.root / "site"
    site.mkdir()
    (site / "module.py").write_text("")
    told = house.run(
        way, "sh", "-c", f"cat {site}/flatout_agent.pth; ls {site}; echo x > {site}/installed",
        site_packages=[str(site)], pth_text="import sys\n",
    )  # fmt: skip
    assert told.said("exited")["code"] == 0, house.complained
    assert house.printed.split() == ["import", "sys", "flatout_agent.pth", "module.py"]
    assert [path.name for path in site.iterdir()] == ["module.py"]
    assert set(thrown(told)) == {f"{site}/installed"}, "the agent's own file is no write of the program's"


def test_exit_codes_and_signals_are_told(house: House, way: Way) -> None:
    assert house.run(way, "sh", "-c", "exit 7").said("exited")["code"] == 7
    (house.trial / "redirected").exists()
    assert house.run(way, "sh", "-c", "kill -9 $$").said("exited")["signal"] == signal.SIGKILL


def test_the_program_has_no_input(house: House, way: Way) -> None:
    told = house.run(way, "sh", "-c", "read line || echo none")
    assert told.said("exited")["code"] == 0
    assert house.printed.split() == ["none"]


def test_a_program_that_cannot_be_executed_is_told(house: House, way: Way) -> None:
    (house.work / "text").write_text("no program")
    (house.work / "text").chmod(0o755)
    supervised = Supervised(house.request(way, "./absent"))
    answer = supervised.wait_until_started()
    supervised.kill()
    assert answer["what"] == "cannot_execute" and "No such file" in answer["reason"]


def test_trackers_are_offline(house: House, way: Way) -> None:
    house.environment.update(WANDB_MODE="online", WANDB_API_KEY="secret")
    told = house.run(
        way,
        "sh",
        "-c",
        "echo $WANDB_MODE $COMET_MODE $NEPTUNE_MODE $WANDB_API_KEY; echo $MLFLOW_TRACKING_URI",
    )
    assert told.said("exited")["code"] == 0
    modes, uri = house.printed.splitlines()
    assert modes == "offline offline offline secret"
    assert uri.startswith("file:///")


DAEMON = "(trap '' HUP TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; : {mark}; done' & ) ; "


@pytest.mark.parametrize("ending", ["end", "kill", "kill -9 of the supervisor", "the pipe closes"])
def test_nothing_is_left_running(house: House, way: Way, ending: str) -> None:
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    script = DAEMON.replace("{mark}", mark) * 2 + f"sleep 300; : {mark}"
    supervised = Supervised(house.request(way, "sh", "-c", script))
    supervised.wait_until_started()
    assert wait_for(lambda: len(marked_processes(mark)) >= 3)
    if ending == "end":
        supervised.end()
    elif ending == "kill":
        supervised.kill()
    elif ending == "the pipe closes":
        supervised._in.close()
    else:
        os.kill(supervised.pid, signal.SIGKILL)
    assert wait_for(lambda: not marked_processes(mark)), marked_processes(mark)
    supervised.kill()
    if "kill -9" not in ending:
        assert house.scratch_folders() == []


def test_kill_9_of_flatout_ends_everything_and_removes_the_scratch(house: House, way: Way) -> None:
    mark = f"killed-{os.getpid()}-{way.name}-{way.whole}"
    request = house.request(way, "sh", "-c", DAEMON.replace("{mark}", mark) + f"sleep 300; : {mark}")
    script = house.root / "starts.py"
    script.write_text(
        "import time\nfrom flatout.isolation.client import Supervised\n"
        f"from flatout.isolation.request import Request\ns = Supervised({request!r})\n"
        "s.wait_until_started()\nprint('started', flush=True)\ntime.sleep(300)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as flatout:
        assert flatout.stdout is not None
        assert flatout.stdout.readline() == "started\n"
        assert wait_for(lambda: len(marked_processes(mark)) >= 2)
        flatout.kill()
    assert wait_for(lambda: not marked_processes(mark)), marked_processes(mark)
    assert wait_for(lambda: house.scratch_folders() == [])


def test_time_is_limited(house: House, way: Way) -> None:
    told = house.run(way, "sleep", "300", time_limit_seconds=0.5)
    assert told.said("ending")["why"] == "time"


def test_writes_are_limited(house: House, way: Way) -> None:
    if way.name == "redirect":
        pytest.skip("a shell's writes are not held by redirection")
    script = "i=0; while [ $i -lt 200 ]; do head -c 1000000 /dev/zero > f$i; i=$((i+1)); sleep 0.02; done"
    told = house.run(way, "sh", "-c", script, write_limit_bytes=20_000_000)
    assert told.said("ending")["why"] == "writes"
    assert 20_000_000 < told.said("ending")["bytes"] < 190_000_000
    assert house.scratch_folders() == []


def test_printing_is_limited(house: House) -> None:
    way = way_or_skip(house, "redirect")
    told = house.run(way, "sh", "-c", "yes", write_limit_bytes=5_000_000)
    assert told.said("ending")["why"] == "writes"


def test_what_is_left_behind_is_told_and_ended(house: House, way: Way) -> None:
    mark = f"left-{os.getpid()}-{way.name}-{way.whole}"
    told = house.run(way, "sh", "-c", f"sh -c 'while :; do sleep 0.1; : {mark}; done' & exit 0")
    assert told.said("exited")["code"] == 0
    left = told.said("ending")
    assert left["why"] == "left behind"
    assert any(mark in " ".join(map(str, row)) for row in left["left"])
    assert marked_processes(mark) == []


def test_set_up_is_quick(house: House) -> None:
    """Seconds of the set-up inside the supervisor; a loose bar, since the machine may be busy."""
    way = way_or_skip(house, "overlay")
    told = house.run(way, "true")
    assert told.said("ready")["seconds"] < 5.0


def test_a_scratch_place_that_is_not_there_is_an_isolation_error(house: House) -> None:
    way = way_or_skip(house, "redirect")
    request = house.request(way, "true")
    request.scratch_base = "/proc/nowhere"
    supervised = Supervised(request)
    with pytest.raises(IsolationError, match="could not be set up"):
        supervised.wait_until_started()


def test_two_at_once_do_not_see_each_other(house: House) -> None:
    way = way_or_skip(house, "overlay")
    script = "echo $0 > mine; sleep 0.5; cat mine"
    first = house.request(way, "sh", "-c", script, "first")
    second = house.request(way, "sh", "-c", script, "second")
    first.stdout, second.stdout = str(house.trial / "1"), str(house.trial / "2")
    both = [Supervised(first), Supervised(second)]
    for supervised in both:
        supervised.wait_until_started()
    for supervised in both:
        assert supervised.wait_for("done", seconds=30)
        supervised.kill()
    assert (house.trial / "1").read_text() == "first\n"
    assert (house.trial / "2").read_text() == "second\n"
    assert not (house.work / "mine").exists()
    assert time.monotonic() > 0
