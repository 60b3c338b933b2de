"""The few Linux calls that Python 3.11 does not offer, through the C library.

Every function raises OSError with what was asked for in its text. Numbers are those of the kernel's
user interface, which never changes: ``linux/mount.h``, ``linux/sched.h``, ``linux/prctl.h`` and
``linux/landlock.h``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from functools import cache

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_RELATIME = 1 << 21
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (
    1 << bit for bit in range(6, 13)
)
REFER = 1 << 13
"""ABI 2, Linux 5.19."""
TRUNCATE = 1 << 14
"""ABI 3, Linux 6.2."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({what})")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags``; with CLONE_NEWPID, the next child enters the new one."""
    _check(_libc().unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def mount(
    source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None
) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    _check(
        _libc().mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)),
        f"mount {kind or 'bind'} {source or ''} on {target}",
    )


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    _check(_libc().umount2(os.fsencode(target), ctypes.c_int(flags)), f"umount {target}")


def pivot_root(new_root: str) -> None:
    """Make the mount ``new_root`` the root of this mount namespace and let go of the old one.

    ``pivot_root(".", ".")`` stacks the old root over the new one, from where it is detached: see
    the manual page pivot_root(2).
    """
    os.chdir(new_root)
    number = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}[os.uname().machine]
    _check(_libc().syscall(ctypes.c_long(number), b".", b"."), f"pivot_root {new_root}")
    unmount(".")
    os.chdir("/")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Be sent signal ``number`` when the *thread* that started this process ends."""
    _check(_libc().prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0), "prctl PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _check(_libc().prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0), "prctl SUBREAPER")


def map_identity(uid: int, gid: int) -> None:
    """In a new user namespace: stay who we were. Others' files show as nobody's, as closed as before."""
    for path, text in (
        ("/proc/self/setgroups", "deny"),
        ("/proc/self/uid_map", f"{uid} {uid} 1"),
        ("/proc/self/gid_map", f"{gid} {gid} 1"),
    ):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def landlock_abi() -> int:
    """Version of Landlock that this kernel offers; raises OSError where it offers none.

    ENOSYS: built without it; EOPNOTSUPP: built with it and switched off at boot; EPERM: a container's
    system-call filter forbids it.
    """
    return _check(
        int(
            _libc().syscall(
                ctypes.c_long(_LANDLOCK_CREATE_RULESET),
                None,
                ctypes.c_size_t(0),
                _LANDLOCK_CREATE_RULESET_VERSION,
            )
        ),
        "landlock version",
    )


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def landlock_restrict(handled: int, rules: Iterable[tuple[str, int]]) -> None:
    """Forbid this process and its children every access in ``handled`` except below the paths of ``rules``.

    ``rules`` pairs an existing path with the accesses allowed there. Cannot be undone.
    """
    attribute = _Ruleset(handled_access_fs=handled)
    ruleset = _check(
        _libc().syscall(
            ctypes.c_long(_LANDLOCK_CREATE_RULESET),
            ctypes.byref(attribute),
            ctypes.c_size_t(ctypes.sizeof(attribute)),
            0,
        ),
        "landlock ruleset",
    )
    try:
        for path, allowed in rules:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = _PathBeneath(allowed_access=allowed & handled, parent_fd=descriptor)
                _check(
                    _libc().syscall(
                        ctypes.c_long(_LANDLOCK_ADD_RULE),
                        ctypes.c_int(ruleset),
                        _LANDLOCK_RULE_PATH_BENEATH,
                        ctypes.byref(rule),
                        0,
                    ),
                    f"landlock rule for {path}",
                )
            finally:
                os.close(descriptor)
        _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0), "prctl NO_NEW_PRIVS")
        _check(
            _libc().syscall(ctypes.c_long(_LANDLOCK_RESTRICT_SELF), ctypes.c_int(ruleset), 0), "landlock"
        )
    finally:
        os.close(ruleset)


def supported() -> bool:
    """These calls exist on Linux only; elsewhere only redirection is possible."""
    return sys.platform == "linux"
