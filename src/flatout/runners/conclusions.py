"""What the end of a program means, from everything that was seen of it. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flatout.runners import endings
from flatout.runners.endings import Ending


@dataclass(frozen=True, kw_only=True)
class Seen:
    """All that a session knows of its program when it wonders how it ended."""

    isolation: str
    steps: int = 0
    exited: dict[str, Any] | None = None
    """What the supervisor said of the first process: ``code`` or ``signal``, and ``seconds``."""
    ending: dict[str, Any] | None = None
    """Why the supervisor ended it: ``why`` is ``writes``, ``time``, ``left behind`` or ``asked``."""
    supervisor_refused: str = ""
    refused: dict[str, Any] | None = None
    """The agent's ``refused`` event."""
    agent_error: str = ""
    helloed: frozenset[str] = field(default_factory=frozenset)
    """Numbers of the processes that imported torch with the agent in them."""
    without_agent: str = ""
    """A live process that has torch loaded and no agent."""
    doing: str = ""
    """What it printed last and what its processes wait for."""
    interpreter: str = ""
    stderr: str = ""
    stdout: str = ""
    oom_killed: bool = False
    has_gpu: bool = True
    agent_folder: str = ""
    write_limit_bytes: int = 0
    time_limit_seconds: float = 0.0
    plan: str = ""
    """The techniques applied; empty: none."""
    known_to_train: bool = False
    """Another process of the same program has taken steps."""


def own_end(seen: Seen) -> Ending:
    """The program is over although more steps were wanted. No error: it came to its own good end."""
    if seen.refused is not None:
        text = f"{seen.refused['technique']} cannot act: {seen.refused['reason']}"
        return Ending(error="TechniqueInactive", reason=text)
    if seen.agent_error:
        return _with_stderr(seen, "AgentError", seen.agent_error)
    why = seen.ending["why"] if seen.ending is not None else ""
    if why == "writes":
        assert seen.ending is not None
        written, allowed = seen.ending["bytes"] / 2**30, seen.write_limit_bytes / 2**30
        text = f"it wrote {written:.1f} GiB, and a trial may write {allowed:.1f} GiB; let it write less"
        return Ending(error="WroteTooMuch", reason=text)
    if why == "time":
        return out_of_time(seen)
    if seen.exited is not None and (seen.exited["code"] or seen.exited["signal"]):
        return endings.crash(
            code=seen.exited["code"],
            number=seen.exited["signal"],
            stderr=seen.stderr,
            stdout=seen.stdout,
            oom_killed=seen.oom_killed,
            has_gpu=seen.has_gpu,
            isolation=seen.isolation,
            agent_folder=seen.agent_folder,
            steps=seen.steps,
            plan=seen.plan,
        )
    if why == "left behind" and _left_is_the_training(seen):
        assert seen.ending is not None
        # without their pids, which count from 1 inside the trial
        names = "; ".join(" ".join(row[1:]) for row in seen.ending["left"][:3])
        return Ending(
            error="DetachedProgram",
            reason=f"its first process left while its work went on in the background ({names}). "
            "Run it in the foreground: without `&`, nohup, setsid or its daemon option",
        )
    if seen.exited is None and not why:
        text = f"its supervisor is gone: {seen.supervisor_refused or 'it was ended'}"
        return Ending(error="IsolationError", reason=text)
    if seen.steps == 0:
        code = seen.exited["code"] if seen.exited is not None else None
        return no_steps(seen, f"it ended with exit code {code}")
    return Ending(error="", reason=f"the program ended by itself after {seen.steps} steps")


def out_of_time(seen: Seen) -> Ending:
    """The time allowed for one process is over."""
    limit = seen.time_limit_seconds
    if seen.steps == 0:
        return _no_first_step(seen, limit)
    text = f"the time allowed for one process, {limit:.0f} s, ended after {seen.steps} steps"
    return Ending(error="TooFewSteps", reason=text)


def hang(seen: Seen, limit_seconds: float) -> Ending:
    """No step came within the limit."""
    if seen.steps == 0:
        return _no_first_step(seen, limit_seconds)
    text = f"no step within {limit_seconds:.0f} s after step {seen.steps}; {seen.doing}"
    return _with_stderr(seen, "Hung", text)


def _no_first_step(seen: Seen, limit_seconds: float) -> Ending:
    how = f"it ran on for {limit_seconds:.0f} s"
    if seen.known_to_train:
        return _with_stderr(seen, "Hung", f"{how} without one training step; {seen.doing}")
    return no_steps(seen, how)


def no_steps(seen: Seen, how: str) -> Ending:
    """Never a step: the agent was not there, or the program does not train."""
    if seen.helloed:
        text = (
            f"{how} without one training step: torch was imported, but no optimiser step and no backward "
            "was seen. Is this the command that trains? Perhaps an option such as --do_train is missing. "
            "(A loop without an optimiser object that takes its gradients from torch.autograd.grad, or "
            "works them out itself, shows no step)"
        )
        return _with_stderr(seen, "NeverStepped", text)
    if seen.without_agent:
        text = (
            f"{how}, and a process that has torch loaded never let the agent in ({seen.without_agent}); it "
            f"is another Python than the one expected, {seen.interpreter}, or it is started with -S"
        )
        return _with_stderr(seen, "AgentDidNotEnter", text)
    text = f"{how} without one training step: torch was never imported. {seen.doing}"
    return _with_stderr(seen, "NeverStepped", text)


def held_back_by_landlock(seen: Seen, ending: Ending) -> bool:
    """A write outside the working folder, which Landlock forbids, may be what ended it."""
    if seen.isolation != "landlock" or ending.error not in ("ProgramCrashed", "AgentError"):
        return False
    return endings.is_about_permission(ending.child_error)


def _left_is_the_training(seen: Seen) -> bool:
    """Processes that outlive the first one train, or nothing has trained at all."""
    assert seen.ending is not None
    return seen.steps == 0 or any(str(row[0]) in seen.helloed for row in seen.ending["left"])


def _with_stderr(seen: Seen, error: str, reason: str) -> Ending:
    return Ending(error=error, reason=reason, child_error=endings.last_error(seen.stderr))
