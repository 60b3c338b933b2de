"""Which way of isolation works here, tried and not guessed, and why the stronger ones do not."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from flatout.errors import IsolationError, UsageError
from flatout.isolation import linux
from flatout.isolation.client import Supervised
from flatout.isolation.request import Request
from flatout.isolation.scratch import choose_place

WAYS = ("overlay", "landlock", "redirect")
"""Strongest first."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way that works here."""

    name: str
    detail: str
    """For a person: how it is done here."""
    whole: bool = True
    pid_namespace: bool = False
    scratch_base: str = ""
    in_memory: bool = False
    why_not: dict[str, str] = field(default_factory=dict)
    """Each stronger way -> why it does not work here."""


def available(
    *, cwd: str, out_dir: Path, scratch: str | None = None, home: str | None = None, asked: str = "auto"
) -> list[Way]:
    """The ways that work here, strongest first; ``redirect`` always does.

    The overlay is tried for real, in a process of its own that ends again (some 0.1 s). ``asked`` other
    than ``auto`` looks at that way only. Raises IsolationError when the one asked for does not work,
    UsageError when there is none of that name.
    """
    if asked not in ("auto", *WAYS):
        raise UsageError(
            f"no way of isolation is called {asked!r}", hint=f"Use one of: auto, {', '.join(WAYS)}."
        )
    if not linux.supported():
        raise IsolationError(
            f"flatout runs trials on Linux only; this is {sys.platform}",
            hint="Use a Linux machine or container.",
        )
    place = choose_place(scratch, out_dir)
    found: list[Way] = []
    why_not: dict[str, str] = {}
    if asked in ("auto", "overlay"):
        way = _try_overlay(cwd, home, place.base, place.in_memory, why_not)
        if way is not None:
            found.append(way)
    if asked in ("auto", "landlock"):
        reason = _why_no_landlock()
        if reason is None:
            detail = f"a copy of the working folder; Landlock {linux.landlock_abi()} forbids other writes"
            found.append(
                Way(name="landlock", detail=detail, scratch_base=place.base, why_not=dict(why_not))
            )
        else:
            why_not["landlock"] = reason
    if asked in ("auto", "redirect"):
        detail = "Python's own writers are redirected; native writers and child processes are not held"
        found.append(Way(name="redirect", detail=detail, scratch_base=place.base, why_not=dict(why_not)))
    if not found:
        raise IsolationError(
            f"isolation by {asked} does not work here: {why_not[asked]}",
            hint="Use --isolation auto, which takes the strongest way that works.",
        )
    return found


def _try_overlay(
    cwd: str, home: str | None, base: str, in_memory: bool, why_not: dict[str, str]
) -> Way | None:
    request = Request(
        command=[],
        cwd=cwd,
        environment={},
        stdout=os.devnull,
        stderr=os.devnull,
        way="overlay",
        scratch_base=base,
        in_memory=in_memory,
        cover=covered_places(cwd, {"HOME": home or ""}),
    )
    reasons = []
    shapes = [(False, True), (False, False)]
    if os.geteuid() == 0:
        shapes = [(True, True), (True, False), *shapes]
    for whole, pid_namespace in shapes:
        reason = _probe(replace(request, whole=whole, pid_namespace=pid_namespace))
        name = ("as root" if whole else "in a user namespace") + (
            "" if pid_namespace else ", without PID namespace"
        )
        if reason is None:
            where = "in memory" if in_memory else f"below {base}"
            return Way(
                name="overlay",
                detail=f"overlay {name}; writes go {where} and are thrown away",
                whole=whole,
                pid_namespace=pid_namespace,
                scratch_base=base,
                in_memory=in_memory,
            )
        reasons.append(f"{name}: {reason}")
    why_not["overlay"] = "; ".join(reasons)
    return None


def _probe(request: Request) -> str | None:
    """Why this shape does not work, or None when it was set up."""
    supervised = Supervised(request)
    try:
        answer = supervised.wait_for("ready", "refused", seconds=30)
        if answer is None:
            return "no answer from the process that tried"
        if answer["what"] == "refused":
            return str(answer["reason"]).removeprefix("CannotOverlay: ")
        supervised.wait_for("done", seconds=10)
        return None
    finally:
        supervised.kill()


def _why_no_landlock() -> str | None:
    try:
        linux.landlock_abi()
    except OSError as error:
        return f"the kernel offers no Landlock here ({error})"
    return None


def covered_places(cwd: str, environment: dict[str, str]) -> list[str]:
    """Where a program surely writes, working folder first; real paths that exist, each once."""
    places = [cwd, environment.get("HOME", ""), environment.get("TMPDIR", ""), "/tmp", "/var/tmp"]
    real = [os.path.realpath(place) for place in places if place and os.path.isdir(place)]
    return list(dict.fromkeys(real))
