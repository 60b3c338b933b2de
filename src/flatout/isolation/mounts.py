"""What is mounted where, read from ``/proc/self/mountinfo``, and what to do with each in a trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flatout.isolation import linux

PSEUDO = frozenset(
    [
        *("autofs", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "cpuset", "debugfs"),
        *("devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore"),
        *("resctrl", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
    ]
)
"""Filesystem types that show the kernel, not anybody's files."""

NOT_AN_UPPER = frozenset(
    ["overlay", "nfs", "nfs4", "cifs", "smb3", "fuse", "vfat", "exfat", "9p", "lustre", "ecryptfs"]
)
"""Types that the kernel refuses as an upper layer, or that lack the attributes it needs."""

_FLAGS = {
    "ro": linux.MS_RDONLY,
    "nosuid": linux.MS_NOSUID,
    "nodev": linux.MS_NODEV,
    "noexec": linux.MS_NOEXEC,
    "noatime": linux.MS_NOATIME,
    "nodiratime": linux.MS_NODIRATIME,
    "relatime": linux.MS_RELATIME,
}


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One visible mount."""

    path: str
    kind: str
    options: tuple[str, ...]
    super_options: tuple[str, ...]

    @property
    def read_only(self) -> bool:
        return "ro" in self.options or "ro" in self.super_options

    @property
    def pseudo(self) -> bool:
        return self.kind in PSEUDO

    @property
    def flags(self) -> int:
        """The per-mount flags as mount(2) takes them; a remount must repeat those that are locked."""
        flags = 0
        for option in self.options:
            flags |= _FLAGS.get(option, 0)
        return flags

    @property
    def file(self) -> bool:
        """A single file bound over another, as container runtimes do with driver libraries."""
        return not Path(self.path).is_dir()


def is_below(path: str, folder: str) -> bool:
    """``path`` is ``folder`` or lies in it; both absolute and normal."""
    return folder in ("/", path) or path.startswith(folder + "/")


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def parse_mountinfo(text: str) -> list[Mount]:
    """Visible mounts, in an order in which parents come before children.

    A mount that a later one covers (at the same place, or at a folder above it) cannot be reached and
    is left out. Later is told by the parent's number: a child of a covered mount is covered as well.
    """
    rows: dict[str, tuple[str, Mount]] = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 6 or len(tail) < 2:
            continue
        mount = Mount(
            path=_unescape(fields[4]),
            kind=tail[0].split(".")[0],
            options=tuple(fields[5].split(",")),
            super_options=tuple(tail[2].split(",")) if len(tail) > 2 else (),
        )
        rows[fields[0]] = (fields[1], mount)
    visible = [number for number in rows if not _covered(number, rows)]
    return sorted(
        (rows[number][1] for number in visible), key=lambda mount: (mount.path.count("/"), mount.path)
    )


def _covered(number: str, rows: dict[str, tuple[str, Mount]], above: str = "") -> bool:
    """Some mount sits over ``number`` or over a place between it and the root.

    ``above`` is the mount that is asked about when it is stacked straight on ``number``.
    """
    parent, mount = rows[number]
    for other, (other_parent, other_mount) in rows.items():
        if other in (number, above):
            continue
        if other_parent == number and other_mount.path == mount.path:
            return True  # stacked straight on top of it
        if (
            other_parent == parent
            and other_mount.path != mount.path
            and is_below(mount.path, other_mount.path)
        ):
            return True  # its sibling covers a folder above its place
    if parent not in rows or parent == number:
        return False
    stacked = rows[parent][1].path == mount.path
    return _covered(parent, rows, number if stacked else "")


def visible_mounts() -> list[Mount]:
    return parse_mountinfo(
        Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    )


def mount_of(path: str, mounts: list[Mount]) -> Mount:
    """The mount that holds ``path``."""
    holding = [mount for mount in mounts if is_below(path, mount.path)]
    return max(holding, key=lambda mount: len(mount.path))
