"""A program that plays an agent's part without torch: it speaks agent/protocol.py and nothing else.

fake_program.py SRC [--option[=value] ...]
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from flatout.agent.protocol import STOP, Control, Spec


def main() -> None:
    options = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[2:])
    spec = Spec.load(os.environ["FLATOUT_SPEC"])
    rank = int(options.get("rank", "0"))
    if "daemon" in options and os.fork():
        os._exit(0)
    if "crash-at-start" in options:
        raise ModuleNotFoundError("No module named 'somebody'")
    if "input" in options:
        input("Go on? ")
    if "never" in options:
        time.sleep(float(options["never"] or 0))
        return
    play(spec, rank, options)


def play(spec: Spec, rank: int, options: dict[str, str]) -> None:
    folder = Path(spec.trial_dir)
    (folder / f"hello-{os.getpid()}.json").write_text(json.dumps({"event": "hello", "pid": os.getpid()}))
    events = (folder / f"rank-{rank}.jsonl").open("a", encoding="utf-8")

    def emit(kind: str, **values: object) -> None:
        events.write(json.dumps({"event": kind, **values}) + "\n")
        events.flush()

    if spec.mode == "run":
        run(spec, emit, options)
        return
    control = Control(str(folder / "control"))
    emit("holds", pid=os.getpid())
    length = float(options.get("seconds", "0.002"))
    most = int(options.get("steps", "1000000"))
    taken, first, times = 0, 1, []
    for technique in spec.techniques:
        if "refuse" in options:
            emit("refused", technique=technique["name"], reason="it has no such thing")
            emit("end", reason="refused", steps=0)
            sys.exit(23)
        emit("active", technique=technique["name"], active=True, evidence={"ran": True})
    if "lock" in options:
        lock_now_and_then(options["lock"])
    while taken < most:
        began = time.perf_counter()
        time.sleep(length)
        taken += 1
        times.append(time.perf_counter() - began)
        if taken == 3:
            emit("discovered", step_unit="optimizer", anchor=0, backwards_per_step=1.0, device="cpu",
                 units=[{"name": "Net", "class": "Net", "parameters": 7, "called": "call"}],
                 optimizers=[{"class_name": "SGD"}], frameworks=[], already={}, loaders=[],
                 world_size=int(options.get("world", "1")))  # fmt: skip
        if taken == int(options.get("crash", "-1")):
            raise ValueError("bad batch")
        if taken == int(options.get("oom", "-1")):
            raise MemoryError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        if taken == int(options.get("killed", "-1")):
            os.kill(os.getpid(), 9)
        if taken == int(options.get("hang", "-1")):
            time.sleep(1000)
        if taken == int(options.get("write", "-1")):
            Path("checkpoint.bin").write_bytes(b"x" * int(options.get("bytes", "1000")))
        if taken == 4 and "outside" in options:
            Path(options["outside"]).write_text("written")
        if taken >= control.granted:
            emit("block", first_step=first, steps=len(times), step_seconds=[None, *times[1:]],
                 losses=[[first + place, 1.0 / (first + place)] for place in range(len(times))],
                 loader_wait_seconds=0.25 * sum(times), agent_seconds=0.001, peak_bytes=1000 + rank,
                 wall_seconds=sum(times), recompiles=1, graph_breaks=0)  # fmt: skip
            first, times = taken + 1, []
            control.set_steps(rank, taken)
            while control.granted <= taken:
                if control.command == STOP:
                    emit("end", reason="stopped by flatout", steps=taken)
                    os._exit(0)
                time.sleep(0.0005)
        else:
            control.set_steps(rank, taken)
    if times:
        emit("block", first_step=first, steps=len(times), step_seconds=[None, *times[1:]], losses=[],
             loader_wait_seconds=0.0, agent_seconds=0.0, peak_bytes=0, wall_seconds=sum(times))  # fmt: skip
    emit("end", reason="own end", steps=taken)


def lock_now_and_then(path: str) -> None:
    """A thread of the program's own takes a lock that all trials share, and keeps it for a while."""
    file = Path(path).open("a")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)

    def let_go() -> None:
        time.sleep(1.0)
        fcntl.flock(file, fcntl.LOCK_UN)

    threading.Thread(target=let_go, daemon=True).start()


def run(spec: Spec, emit: Callable[..., None], options: dict[str, str]) -> None:
    """The real job: steps until the end, and what it is asked to show."""
    for technique in spec.techniques:
        if "refuse" in options:
            emit("refused", technique=technique["name"], reason="it has no such thing")
            if not spec.degrade:
                time.sleep(100)
                return
        emit("applied", technique=technique["name"], detail={})
    caught = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda signum, _frame: caught.append(signum))
    if "stdin" in options:
        print("read", sys.stdin.read(), flush=True)
    emit("watch", step=3, what="nan_loss", detail="the loss is nan")
    print("stepping", flush=True)
    deadline = time.monotonic() + float(options.get("lasts", "0.3"))
    while time.monotonic() < deadline and not (caught and "until-signal" in options):
        time.sleep(0.01)
    time.sleep(0.3 if caught else 0.0)  # a second delivery would come now
    print("caught", [signal.Signals(number).name for number in caught], flush=True)
    emit("end", reason="own end", steps=5)
    sys.exit(int(options.get("exit", "0")))


if __name__ == "__main__":
    main()
