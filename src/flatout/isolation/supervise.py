"""The supervisor: starts one program inside its isolation and ends everything that it started.

    flatout ──pipe──▶ outer ──fork──▶ inner ──fork──▶ the program and whatever it starts

*outer* enters the new user and PID namespaces and, when *inner* is gone, removes the scratch folder.
*inner* is process 1 of the PID namespace: it lays the overlays, starts the program, watches its end,
the time and what it writes, and lists the writes. When inner ends, in whatever way, the kernel ends every
process of the namespace; no daemon escapes. Without a PID namespace both adopt orphans and find
descendants through /proc.

The pipe is the lifeline. Its first line is the request; then ``end`` asks for an orderly end. When
flatout dies, by kill -9 too, the pipe closes and everything is ended. inner dies with outer and the
program with inner (PDEATHSIG; both are single-threaded, since that signal follows the *thread*).

Answers are JSON lines on standard output: ``ready`` or ``refused``, ``started`` or
``cannot_execute``, ``exited``, ``ending``, ``thrown_away``, ``done``. Only the standard library is
imported here, and nothing of this file runs in the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from flatout.isolation import landlock, linux, overlay, processes, scratch, thrown, trackers
from flatout.isolation.meter import WriteMeter
from flatout.isolation.request import Lines, Request

_TICK_SECONDS = 0.1
_AFTER_EXIT_SECONDS = 2.0
"""What the program left behind may end on its own for this long before it is ended."""
_PRINT_LIMIT_BYTES = 1 << 30
_OOM_SCORE = 700
"""Under want of memory the kernel ends a trial before anything of the user's."""


def main() -> None:
    """Entry point of the outer process; never returns to a shell with anything on standard error."""
    pipe = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    lines = Lines(pipe)
    text = lines.wait_for_line()
    if text is None:
        return
    request = Request(**json.loads(text))
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    _supervise(request, lines)


def _say(what: str, **values: Any) -> None:
    """One answer; a flatout that is gone no longer listens, and the pipe's end is seen elsewhere."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps({"what": what, **values}).encode() + b"\n")


def _supervise(request: Request, lines: Lines) -> None:
    try:
        folder, _lock = scratch.make(
            request.scratch_base
        )  # the descriptor lives as long as we and inner do
    except OSError as error:
        _say("refused", reason=f"no scratch folder in {request.scratch_base}: {error.strerror or error}")
        return
    try:
        if not request.pid_namespace:
            linux.adopt_orphans()
        elif request.way == "overlay":
            user, group = os.getuid(), os.getgid()
            linux.unshare(linux.CLONE_NEWPID | (0 if request.whole else linux.CLONE_NEWUSER))
            if not request.whole:
                linux.map_identity(user, group)
        child = os.fork()
        if child == 0:
            _inner_and_exit(request, lines, folder)
        _wait_for(child)
        if not request.pid_namespace:
            processes.end_all_below(os.getpid())
    except OSError as error:
        _say("refused", reason=str(error))
    finally:
        scratch.remove(folder)
        if request.redirect_dir:
            scratch.remove(request.redirect_dir)
        _say("done")


def _wait_for(child: int) -> None:
    while True:
        with contextlib.suppress(InterruptedError):
            pid, _ = os.waitpid(-1, 0)
            if pid == child:
                return


def _inner_and_exit(request: Request, lines: Lines, folder: str) -> NoReturn:
    status = 0
    try:
        linux.die_with_parent(signal.SIGKILL if request.pid_namespace else signal.SIGTERM)
        _Inner(request, lines, folder).run()
    except BaseException as error:
        status = 1
        _say("refused", reason=f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


class _Inner:
    """The process that holds the program. ``run`` returns when nothing of it is left."""

    def __init__(self, request: Request, lines: Lines, folder: str) -> None:
        self.request = request
        self.lines = lines
        self.folder = folder
        self.notes: list[str] = []
        self.layers: list[overlay.Layer] = []
        self.watched: list[tuple[str, str, dict[str, landlock.Stamp] | None]] = []
        """Folders (path, shown as, content before) whose changes are what the program wrote."""
        self.writable: list[str] = []
        self.meter = WriteMeter(folder, request.write_limit_bytes)
        self._terminated = False

    def run(self) -> None:
        begun = time.monotonic()
        signal.signal(signal.SIGTERM, self._on_terminate)
        command, cwd, environment = self._prepare()
        _say("ready", seconds=time.monotonic() - begun, notes=self.notes)
        if not command:
            return  # only whether it can be set up was asked
        stdout = os.open(self.request.stdout, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        stderr = os.open(self.request.stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        started = time.monotonic()
        program = self._spawn(command, cwd, environment, stdout, stderr)
        if program is None:
            return
        _say("started", pid=program, at=time.time())
        listed = self._watch(program, started)
        self._end_all()
        if listed:
            summary = thrown.summarise(self._writes())
            _say("thrown_away", **dataclasses.asdict(summary))

    def _on_terminate(self, _number: int, _frame: object) -> None:
        self._terminated = True

    # -- before the start

    def _prepare(self) -> tuple[list[str], str, dict[str, str]]:
        request = self.request
        environment = dict(request.environment)
        if not request.pid_namespace:
            linux.adopt_orphans()
        if request.way == "overlay":
            linux.unshare(linux.CLONE_NEWNS)
            layout = overlay.Layout(
                scratch=self.folder,
                in_memory=request.in_memory,
                pass_through=tuple(request.pass_through),
                hide=tuple(request.hide),
                cover=tuple(request.cover),
                site_packages=tuple(request.site_packages),
                pth_text=request.pth_text,
                whole=request.whole,
                fresh_proc=request.pid_namespace,
            )
            self.layers, self.notes = overlay.enter(layout)
            self.meter.watch([layer.upper for layer in self.layers])
            self._trackers_offline(environment, "/tmp/flatout-trackers")
            return request.command, request.cwd, environment
        self._trackers_offline(environment, os.path.join(self.folder, "trackers"))
        temporary = os.path.join(self.folder, "tmp")
        os.mkdir(temporary, 0o700)
        self.watched.append((temporary, "$TMPDIR", None))
        environment.update(TMPDIR=temporary, TMP=temporary, TEMP=temporary)
        cwd = request.cwd
        if request.way == "landlock":
            cwd = self._copy_working_folder()
            variables, laid = landlock.shadow_caches(environment, os.path.join(self.folder, "caches"))
            environment.update(variables)
            environment["PWD"] = cwd
            self.watched += [
                (shadow, f"${os.path.basename(shadow).upper()}", stamps) for shadow, stamps in laid.items()
            ]
            self.writable = [self.folder, *request.pass_through]
        elif request.redirect_dir:
            self.watched.append((request.redirect_dir, "/", None))
            self.meter.watch([request.redirect_dir, self.folder])
        return request.command, cwd, environment

    def _trackers_offline(self, environment: dict[str, str], folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        quiet = environment.get("WANDB_MODE") in ("disabled", "offline", "dryrun")
        for name, value in trackers.offline(folder).items():
            if not (quiet and name == "WANDB_MODE"):
                environment[name] = value
        if self.request.way != "overlay":
            self.watched.append((folder, "$trackers", None))

    def _copy_working_folder(self) -> str:
        copy = os.path.join(self.folder, "work")
        copied = landlock.copy_tree(
            self.request.cwd,
            copy,
            leave_out=(*self.request.leave_out, self.folder, self.request.scratch_base),
        )
        self.watched.append((copy, self.request.cwd, copied.stamps))
        self.meter.allowance = copied.bytes
        if any(".." in word.split("/") for word in self.request.command):
            self.notes.append(
                "paths of the command that start with .. are taken from the copy, and may not be there"
            )
        self.notes.append(
            f"the program runs in a copy of {self.request.cwd} ({copied.bytes >> 20:,} MiB); "
            "it may read everything and write only there"
        )
        return copy

    def _spawn(
        self, command: list[str], cwd: str, environment: dict[str, str], stdout: int, stderr: int
    ) -> int | None:
        """Start the program in a session of its own; None, said, when it cannot be executed."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._become_program(command, cwd, environment, stdout, stderr, writing)
        os.close(writing)
        os.close(stdout)
        os.close(stderr)
        with open(reading, encoding="utf-8") as file:
            problem = file.read()
        if problem:
            os.waitpid(child, 0)
            _say("cannot_execute", **json.loads(problem))
            return None
        return child

    def _become_program(
        self,
        command: list[str],
        cwd: str,
        environment: dict[str, str],
        stdout: int,
        stderr: int,
        report: int,
    ) -> NoReturn:
        try:
            os.setsid()
            if not self.request.pid_namespace:
                linux.die_with_parent(signal.SIGKILL)
            for number in range(1, signal.NSIG):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(_OOM_SCORE))
            # a dying trial must not fill the disk with its memory
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
            os.chdir(cwd)
            if self.writable:
                landlock.restrict_writes(tuple(self.writable))
            os.execvpe(command[0], command, environment)
        except OSError as error:
            text = json.dumps(
                {"number": error.errno or errno.EIO, "reason": error.strerror or str(error), "cwd": cwd}
            )
            os.write(report, text.encode())
        finally:
            os._exit(127)

    # -- while it runs

    def _watch(self, program: int, started: float) -> bool:
        """Until the program is over, or must be; False when nobody is left to hear what was written."""
        exited_at: float | None = None
        while True:
            for line in self.lines.poll(_TICK_SECONDS):
                if line == "end":
                    _say("ending", why="asked")
                    return True
            if self.lines.closed or self._terminated:
                return False
            ended = processes.reap()
            if program in ended:
                exited_at = time.monotonic()
                _say("exited", **_exit(ended[program]), seconds=exited_at - started)
            if exited_at is not None:
                left = self._left()
                if not left:
                    return True
                if time.monotonic() - exited_at > _AFTER_EXIT_SECONDS:
                    _say(
                        "ending",
                        why="left behind",
                        left=[[pid, *processes.command_line(pid)[:6]] for pid in left],
                    )
                    return True
            if time.monotonic() - started > self.request.time_limit_seconds:
                _say("ending", why="time")
                return True
            written = self._printed_too_much() or self.meter.exceeded()
            if written is not None:
                _say("ending", why="writes", bytes=written)
                return True

    def _printed_too_much(self) -> int | None:
        """Bytes printed, when more than the limit: what it prints goes to files that are kept."""
        printed = 0
        for path in (self.request.stdout, self.request.stderr):
            with contextlib.suppress(OSError):
                printed += os.stat(path).st_size
        return printed if printed > min(self.request.write_limit_bytes, _PRINT_LIMIT_BYTES) else None

    def _left(self) -> list[int]:
        return [entry.pid for entry in processes.descendants(os.getpid()) if entry.state != "Z"]

    # -- at the end

    def _end_all(self) -> None:
        if self.request.pid_namespace and os.getpid() == 1:
            # -1 is every process of the namespace except ourselves; until even the reparented are reaped
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
                processes.reap()
                try:
                    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                except ChildProcessError:
                    return
                time.sleep(0.005)
        processes.end_all_below(os.getpid())

    def _writes(self) -> Iterator[thrown.Write]:
        for layer in self.layers:
            yield from thrown.written_in_layer(layer)
        for folder, shown_as, before in self.watched:
            yield from thrown.written_in_folder(folder, shown_as, before)


def _exit(status: int) -> dict[str, int | None]:
    code = os.waitstatus_to_exitcode(status)
    return {"code": code if code >= 0 else None, "signal": -code if code < 0 else None}


if __name__ == "__main__":
    main()
    sys.exit(0)
