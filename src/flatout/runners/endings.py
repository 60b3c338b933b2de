"""How a program ended, told from its exit status and what it printed. Pure functions."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

TAIL_BYTES = 64 << 10
"""Of a program's output that is looked at."""
SHOWN_LINES = 30
SHOWN_CHARACTERS = 1000
"""Of one line: some errors print a whole tensor or batch."""

_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^(\[(?:default|rank|\d+)[^\]]*\]:?\s?|\[rank\d+\]:\s?|Process .*:$)")
_LAUNCHER_ERRORS = (
    "ChildFailedError",
    "subprocess.CalledProcessError",
    "ProcessRaisedException",
    "ProcessExitedException",
)
_LOST_PEER = re.compile(
    r"remote worker crashing|Connection (closed|reset) by (remote )?peer|remote process exited"
    r"|Broken pipe|failed to recv, got 0 bytes|Watchdog caught collective|ncclRemoteError|DistBackendError"
    r"|DistNetworkError",
    re.I,
)
"""A rank's complaint about another one that is gone: a consequence, printed before or after the cause."""
_RANK_KILLED = re.compile(r"failed \(exitcode: -9\)")
"""torchrun's words."""
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)

_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|CUDA error: out of memory|DefaultCPUAllocator: (can't|not enough)|^MemoryError"
    r"|Cannot allocate memory|std::bad_alloc|HIP out of memory",
    re.M,
)
_NO_CUDA = re.compile(
    r"Found no NVIDIA driver|Torch not compiled with CUDA enabled|No CUDA GPUs are available"
    r"|CUDA driver version is insufficient"
    r"|no CUDA-capable device|CUDA is not available"
    r"|invalid device ordinal|Attempting to deserialize object on a CUDA device"
    r"|libcuda\.so[.0-9]*: cannot open",
    re.I,
)
_NEEDS_INPUT = re.compile(
    r"EOFError: EOF when reading a line|EOFError$|termios\.error: \(25|Inappropriate ioctl for device"
    r"|click\.exceptions\.Abort|^Aborted!$|input device is not a TTY|stdin is not a terminal",
    re.M,
)
_NO_SPACE = re.compile(r"No space left on device|OSError: \[Errno 28\]|Disk quota exceeded")
_FORBIDDEN = re.compile(r"PermissionError: \[Errno 13\]|Read-only file system|Permission denied")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What an end means. ``error`` names a class of errors.py."""

    error: str
    reason: str
    child_error: str = ""


def last_error(text: str) -> str:
    """The program's true error out of what it wrote to standard error.

    The last traceback that is not a launcher's complaint about its workers, with the chain that led to
    it; else the last lines. Prefixes that launchers put before each line are taken off.
    """
    lines = [_PREFIX.sub("", line.rstrip()) for line in text.splitlines()]
    starts = [number for number, line in enumerate(lines) if line.strip() == _TRACEBACK]
    found: list[list[str]] = []
    for start in starts:
        end = start + 1
        while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t|+"):
            end += 1
        block = lines[start : end + 1]
        # a message of several lines, up to the next empty line
        more = end + 1
        while (
            more < len(lines)
            and lines[more].strip()
            and lines[more].strip() != _TRACEBACK
            and more - end < 12
        ):
            block.append(lines[more])
            more += 1
        found.append(block)
    own = [block for block in found if not any(name in line for line in block for name in _LAUNCHER_ERRORS)]
    # of several ranks that failed, the first one's own error and not what the others saw of its end
    own = [block for block in own if not _LOST_PEER.search("\n".join(block[-12:]))] or own
    if own:
        return _shorten(_with_chain(own, lines, text))
    last = [line for line in lines if line.strip()]
    return _shorten(last[-SHOWN_LINES:])


def _with_chain(own: list[list[str]], lines: list[str], text: str) -> list[str]:
    """The last traceback; with the one before it where Python says that they belong together."""
    chosen = own[-1]
    if len(own) > 1:
        first, second = "\n".join(own[-2]), "\n".join(own[-1])
        whole = "\n".join(lines)
        between = whole[whole.rfind(first) + len(first) : whole.rfind(second)]
        if any(sentence in between or sentence in own[-2][-1] for sentence in _CHAINED):
            chosen = [*own[-2], "", between.strip() or _CHAINED[0], "", *own[-1]]
        elif own[-2][-1] == own[-1][-1]:
            chosen = own[-2]  # every rank failed alike: once is enough
    return chosen


def _shorten(lines: list[str]) -> str:
    if len(lines) > 2 * SHOWN_LINES:
        lines = [
            *lines[:4],
            f"  ... {len(lines) - 4 - 2 * SHOWN_LINES + 4} lines left out ...",
            *lines[-(2 * SHOWN_LINES - 4) :],
        ]
    return "\n".join(
        f"{line[:SHOWN_CHARACTERS]} ..." if len(line) > SHOWN_CHARACTERS else line for line in lines
    )


def headline(child_error: str) -> str:
    """The line that names the error, such as ``ValueError: bad batch``."""
    lines = [line for line in child_error.splitlines() if line.strip()]
    for line in reversed(lines):
        if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit|Abort)\b", line):
            return line.strip()[:300]
    return lines[-1].strip()[:300] if lines else ""


def is_about_permission(text: str) -> bool:
    """It tells of a write that was forbidden."""
    return _FORBIDDEN.search(text) is not None


def crash(
    *,
    code: int | None,
    number: int | None,
    stderr: str,
    stdout: str = "",
    oom_killed: bool = False,
    has_gpu: bool = True,
    isolation: str = "overlay",
    agent_folder: str = "",
    steps: int | None = None,
    plan: str = "",
) -> Ending:
    """What a bad exit means. ``code`` is the exit code, ``number`` the signal that ended it instead;
    ``steps`` those that it had taken, where that is known; ``plan`` the techniques applied, if any."""
    shown = last_error(stderr) or "\n".join(stdout.splitlines()[-SHOWN_LINES:])
    line = headline(shown)
    how = f"ended by signal {number} ({_signal_name(number)})" if number else f"exit code {code}"
    told = f"{line} ({how})" if line else how
    when = ""
    if steps is not None:
        when = f" after {steps} step{'' if steps == 1 else 's'}" if steps else " before its first step"
    frames = [row for row in shown.splitlines() if row.lstrip().startswith("File ")]
    if agent_folder and frames and f'"{agent_folder}/' in frames[-1]:
        # what a technique wraps ends in the agent whoever is at fault
        reason = f"under {plan} it failed{when}" if plan else "the agent failed in the program"
        return Ending(error="AgentError", reason=f"{reason}: {told}", child_error=shown)
    killed = number == signal.SIGKILL or code == 128 + signal.SIGKILL
    if not killed and _LOST_PEER.search(shown) and _RANK_KILLED.search(stderr):
        killed, how = True, "one of its ranks was ended by signal 9 (SIGKILL)"
    if _OUT_OF_MEMORY.search(shown):
        return Ending(error="OutOfMemory", reason=f"out of memory: {told}", child_error=shown)
    if killed:
        # who else ends a program so: the kernel for want of memory, or a container's guard of it
        seen = "the kernel ended a process for want of memory" if oom_killed else "flatout did not send it"
        return Ending(
            error="OutOfMemory",
            reason=f"out of memory: {how}, and {seen}. Give it less to hold, or more memory",
            child_error=shown,
        )
    if _NEEDS_INPUT.search(shown):
        return Ending(
            error="NeedsInput",
            reason=f"it waits for standard input, which a trial has not: {told}. "
            "Give it the answer on its command line or in its environment",
            child_error=shown,
        )
    if _NO_CUDA.search(shown):
        where = "" if has_gpu else "; this machine has no GPU that NVML names"
        return Ending(
            error="ProgramCrashed",
            reason=f"it asks for CUDA, which it does not get here: {told}{where}. Run it where a GPU is, "
            "or with its own option for the CPU",
            child_error=shown,
        )
    if _NO_SPACE.search(shown):
        return Ending(
            error="WroteTooMuch", reason=f"no space is left for what it writes: {told}", child_error=shown
        )
    reason = f"under {plan} it failed{when}: {told}" if plan else f"it failed on its own{when}: {told}"
    if isolation != "overlay" and is_about_permission(shown):
        reason += (
            f". Isolation by {isolation} forbids writing outside the working folder; if that is the cause, "
            "write below it, or use --isolation redirect"
        )
    return Ending(error="ProgramCrashed", reason=reason, child_error=shown)


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return "unknown"
