"""The rarer shapes of the overlay: no PID namespace, layers in memory, mounts inside the working folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from flatout.isolation.choose import available, covered_places
from flatout.isolation.client import Supervised
from flatout.isolation.meter import WriteMeter

from .conftest import way_or_skip
from .house import House, marked_processes, tree_hash, wait_for

pytestmark = pytest.mark.root


@pytest.mark.parametrize("user_namespace", [False, True])
@pytest.mark.parametrize("change", ["no PID namespace", "in memory", "both"])
def test_shapes(house: House, change: str, user_namespace: bool) -> None:
    way = way_or_skip(house, "overlay")
    if not user_namespace and not way.whole:
        pytest.skip("an overlay without a user namespace needs root")
    way = replace(
        way,
        whole=not user_namespace,
        pid_namespace=change == "in memory",
        in_memory=change != "no PID namespace",
    )
    (house.work / "kept").write_text("as it was")
    before = tree_hash(house.work, house.home)
    mark = f"shape-{os.getpid()}-{user_namespace}-{change[:2]}"
    daemon = f"(setsid sh -c 'sleep 60; : {mark}' &)"
    script = f"echo x > new; rm kept; cat new; cat /proc/self/comm; {daemon}; sleep 0.2"
    told = house.run(way, "sh", "-c", script)
    assert told.said("exited")["code"] == 0, house.complained
    assert house.printed.split() == ["x", "cat"]
    assert tree_hash(house.work, house.home) == before
    listed = dict(told.said("thrown_away")["largest"])
    assert listed == {f"{house.work}/new": 2, f"{house.work}/kept (deleted)": 0}
    assert wait_for(lambda: not marked_processes(mark))
    assert house.scratch_folders() == []


@pytest.mark.parametrize("user_namespace", [False, True])
def test_sockets_of_the_machine_are_reached(house: House, user_namespace: bool) -> None:
    way = way_or_skip(house, "overlay")
    if not user_namespace and not way.whole:
        pytest.skip("an overlay without a user namespace needs root")
    path = house.work / "agent.sock"
    code = (
        f"import socket as s; c = s.socket(s.AF_UNIX); c.connect({str(path)!r}); print(c.recv(9).decode())"
    )

    def greet(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"hello")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(greet, server)
            told = house.run(replace(way, whole=not user_namespace), sys.executable, "-S", "-c", code)
            if told.said("exited")["code"]:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(path))  # lets the waiting thread go
            answer.result(timeout=20)
    assert told.said("exited")["code"] == 0, house.complained
    assert house.printed == "hello\n"


def test_a_house_in_shared_memory(house: House) -> None:
    """What is staged in /dev/shm is seen, thrown away when written, and passed through where asked."""
    way_or_skip(house, "overlay")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="flatout-test-") as folder:
        staged = House(Path(folder))
        (staged.work / "data").write_text("staged")
        before = tree_hash(staged.work, staged.home)
        told = staged.run("overlay", "sh", "-c", "cat data; echo x > new; rm data; echo y > /dev/shm/loose")
        assert told.said("exited")["code"] == 0, staged.complained
        assert staged.printed == "staged"
        assert tree_hash(staged.work, staged.home) == before
        assert not Path("/dev/shm/loose").exists()
        assert f"{staged.work}/new" in dict(told.said("thrown_away")["largest"])


def test_gigabytes_in_memory_are_stopped(house: House) -> None:
    way = replace(way_or_skip(house, "overlay"), in_memory=True)
    told = house.run(
        way, "sh", "-c", "head -c 90000000 /dev/zero > big; sleep 30", write_limit_bytes=20_000_000
    )
    assert told.said("ending")["why"] == "writes"


def test_what_is_written_before_the_first_look_counts(tmp_path: Path) -> None:
    meter = WriteMeter(str(tmp_path), 20_000_000)
    (tmp_path / "big").write_bytes(os.urandom(90_000_000))
    assert (meter.exceeded() or 0) >= 90_000_000


def test_a_mount_inside_the_working_folder(house: House) -> None:
    """As root it is overlaid, too; a user namespace cannot, says so, and a weaker way is taken."""
    way = way_or_skip(house, "overlay")
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    inside = house.work / "data"
    inside.mkdir()
    code = f"""
import subprocess, sys
from pathlib import Path
from flatout.isolation import linux
linux.unshare(linux.CLONE_NEWNS)
linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
linux.mount("t", {str(inside)!r}, "tmpfs")
Path({str(inside / "real")!r}).write_text("here")
Path({str(house.root / "uptime")!r}).write_text("1 2 of a container")
linux.mount({str(house.root / "uptime")!r}, "/proc/uptime", None, linux.MS_BIND)
words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", {__file__!r}, "-k", "in_such_a_house"]
sys.exit(subprocess.run([sys.executable, *words]).returncode)
"""
    environment = {
        **os.environ,
        "FLATOUT_TEST_HOUSE": str(house.root),
        "FLATOUT_TEST_WHOLE": str(way.whole),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    "FLATOUT_TEST_HOUSE" not in os.environ, reason="started by the test above, in its mounts"
)
def test_in_such_a_house() -> None:
    house = House(Path(os.environ["FLATOUT_TEST_HOUSE"]))
    way = house.way("overlay")
    script = "cat data/real; echo x > data/new; echo y > new; rm data/real; ls data; cat /proc/uptime"
    told = house.run(way, "sh", "-c", script)
    assert told.said("exited")["code"] == 0, house.complained
    assert house.printed == "herenew\n1 2 of a container"
    assert [path.name for path in (house.work / "data").iterdir()] == ["real"]
    listed = {path for path, _ in told.said("thrown_away")["largest"]}
    assert {f"{house.work}/data/new", f"{house.work}/data/real (deleted)", f"{house.work}/new"} <= listed
    # the same in a user namespace
    request = replace(
        house.request(way), whole=False, command=[], cover=covered_places(str(house.work), {})
    )
    supervised = Supervised(request)
    answer = supervised.wait_for("ready", "refused", seconds=20)
    supervised.kill()
    assert answer is not None and answer["what"] == "refused"
    assert "is mounted inside the working folder" in answer["reason"]


def test_the_order_of_ways_and_why_stronger_ones_do_not_work(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.isolation import choose

    monkeypatch.setattr(choose, "_probe", lambda request: f"refused, whole={request.whole}")
    monkeypatch.setattr(choose, "_why_no_landlock", lambda: "none in this kernel")
    (only,) = available(cwd=str(house.work), out_dir=house.out)
    assert only.name == "redirect"
    assert "refused" in only.why_not["overlay"] and only.why_not["landlock"] == "none in this kernel"
