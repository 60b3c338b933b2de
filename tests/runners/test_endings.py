"""What a program printed last, and what that means."""

from __future__ import annotations

import pytest

from flatout.runners.endings import crash, headline, last_error

PLAIN = """warming up
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
  File "train.py", line 4, in main
    raise ValueError("bad batch")
ValueError: bad batch
"""
CHAIN = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    int("x")
ValueError: invalid literal

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    raise RuntimeError("no such file")
RuntimeError: no such file
"""
TORCHRUN = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 2, in <module>
[rank1]:     raise KeyError("lr")
[rank1]: KeyError: 'lr'
W1201 04:00:00.1 torch/distributed/elastic/api.py:900] Sending process 12 closing signal SIGTERM
E1201 04:00:00.2 torch/distributed/elastic/multiprocessing/api.py:870] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File "bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "torch/distributed/launcher/api.py", line 270, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""


def test_the_last_traceback_is_the_error() -> None:
    text = last_error(PLAIN + "closing files\n")
    assert text.startswith("Traceback") and text.endswith("ValueError: bad batch\nclosing files")
    assert headline(text) == "ValueError: bad batch"


def test_a_chain_is_kept_whole() -> None:
    text = last_error(CHAIN)
    assert "invalid literal" in text and text.endswith("RuntimeError: no such file")
    assert headline(text) == "RuntimeError: no such file"


def test_a_launcher_does_not_hide_its_workers_error() -> None:
    text = last_error(TORCHRUN)
    assert "KeyError: 'lr'" in text and "ChildFailedError" not in text
    assert "[rank1]" not in text
    assert headline(text) == "KeyError: 'lr'"


LOST_PEER = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 5, in <module>
[rank0]:     loss.backward()
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:123
"""


def test_what_the_other_ranks_saw_of_its_end_does_not_hide_the_cause() -> None:
    for text in (LOST_PEER + TORCHRUN, TORCHRUN.replace("W1201", LOST_PEER + "W1201")):
        assert headline(last_error(text)) == "KeyError: 'lr'"
    assert "Connection closed by peer" in last_error(LOST_PEER)


def test_a_rank_that_was_killed_is_out_of_memory() -> None:
    launcher = TORCHRUN[TORCHRUN.index("W1201") :].replace("exitcode: 1", "exitcode: -9")
    ending = crash(code=1, number=None, stderr=LOST_PEER + launcher)
    assert ending.error == "OutOfMemory" and "one of its ranks" in ending.reason
    assert crash(code=1, number=None, stderr=LOST_PEER + TORCHRUN).error == "ProgramCrashed"


def test_when_it_failed_is_told() -> None:
    reasons = [
        crash(code=1, number=None, stderr=PLAIN, steps=steps).reason.partition(":")[0]
        for steps in (0, 1, 12, None)
    ]
    assert reasons == [
        "it failed on its own before its first step",
        "it failed on its own after 1 step",
        "it failed on its own after 12 steps",
        "it failed on its own",
    ]


def test_what_fails_under_a_plan_does_not_fail_on_its_own() -> None:
    reason = crash(code=1, number=None, stderr=PLAIN, steps=0, plan="bf16+sdpa").reason
    assert reason.startswith("under bf16+sdpa it failed before its first step: ValueError")
    frame = '  File "/x/agent/acts/bf16.py", line 1, in go\n    call()\n'
    text = f"Traceback (most recent call last):\n{frame}RuntimeError: BFloat16 != float\n"
    inside = crash(code=1, number=None, stderr=text, steps=3, plan="bf16", agent_folder="/x/agent")
    assert inside.error == "AgentError"
    assert inside.reason.startswith("under bf16 it failed after 3 steps: RuntimeError: BFloat16")


def test_no_line_of_an_error_is_endless() -> None:
    text = last_error(f"Traceback (most recent call last):\nValueError: bad batch {'7, ' * 100_000}\n")
    assert len(text) < 2000 and "ValueError: bad batch 7" in text and text.endswith("...")
    assert len(last_error("7, " * 100_000)) < 2000


def test_every_rank_failing_alike_is_told_once() -> None:
    both = TORCHRUN.split("W1201", maxsplit=1)[0]
    assert last_error(both + both.replace("rank1", "rank0")).count("KeyError: 'lr'") == 1


def test_without_a_traceback_the_last_lines_count() -> None:
    assert last_error("one\n\nusage: train.py\ntrain.py: error: unknown --x\n").endswith("unknown --x")
    assert last_error("") == "" and headline("") == ""


def test_very_long_tracebacks_are_shortened_in_the_middle() -> None:
    frames = "".join(f'  File "f.py", line {n}, in g\n    g({n})\n' for n in range(500))
    text = last_error(f"Traceback (most recent call last):\n{frames}RecursionError: too deep\n")
    assert len(text.splitlines()) < 80
    assert "left out" in text and text.endswith("RecursionError: too deep")


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "OutOfMemory"),
        (
            "RuntimeError: [alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory",
            "OutOfMemory",
        ),
        ("MemoryError", "OutOfMemory"),
        ("EOFError: EOF when reading a line", "NeedsInput"),
        ("AssertionError: Torch not compiled with CUDA enabled", "ProgramCrashed"),
        ("OSError: [Errno 28] No space left on device", "WroteTooMuch"),
        ("KeyError: 'x'", "ProgramCrashed"),
    ],
)
def test_kinds(stderr: str, error: str) -> None:
    ending = crash(code=1, number=None, stderr=stderr)
    assert ending.error == error
    assert ending.child_error == stderr and stderr[:20] in ending.reason


def test_no_cuda_says_what_to_do() -> None:
    text = "RuntimeError: Found no NVIDIA driver on your system."
    assert "no GPU" in crash(code=1, number=None, stderr=text, has_gpu=False).reason


def test_killed_for_memory_by_the_kernel() -> None:
    assert crash(code=None, number=9, stderr="", oom_killed=True).error == "OutOfMemory"
    assert crash(code=137, number=None, stderr="", oom_killed=True).error == "OutOfMemory"
    unseen = crash(code=None, number=9, stderr="", oom_killed=False)
    assert unseen.error == "OutOfMemory" and "flatout did not send it" in unseen.reason
    assert "SIGSEGV" in crash(code=None, number=11, stderr="").reason


def test_forbidden_writes_point_at_the_isolation() -> None:
    text = "PermissionError: [Errno 13] Permission denied: '/home/ann/x'"
    assert "redirect" in crash(code=1, number=None, stderr=text, isolation="landlock").reason
    assert "redirect" not in crash(code=1, number=None, stderr=text, isolation="overlay").reason


def test_the_agents_own_fault_is_not_called_the_programs() -> None:
    frame = '  File "/x/agent/guest.py", line 1, in go\n    die()\n'
    text = f"Traceback (most recent call last):\n{frame}KeyError: 1\n"
    assert crash(code=1, number=None, stderr=text, agent_folder="/x/agent").error == "AgentError"
    assert crash(code=1, number=None, stderr=text, agent_folder="/y/agent").error == "ProgramCrashed"
