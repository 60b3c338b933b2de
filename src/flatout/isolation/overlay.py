"""First way of isolation: every folder that may be written is overlaid inside a mount namespace.

The program sees its files where they always were; what it writes lands in *upper* folders on a
scratch place and is thrown away. Nothing outside the namespace sees any of it: no library call is
patched, so native writers and child processes are held as well.

Two ways of laying the overlays:

``whole``
    With the right to mount (root): one overlay of ``/`` and one of each further writable mount, put
    together below the scratch place and made the root with ``pivot_root``.
``in place``
    In a user namespace the kernel refuses an overlay of a folder in which another mount lies
    (EINVAL: the child mount is locked, see mount_namespaces(7)). So each largest folder without a
    mount inside is overlaid where it is, and what is left between them is made read-only. The program
    stays the same user, so what it could not write before it cannot write now.

The agent's ``.pth`` file comes from a second lower layer over site-packages: it exists in the
namespace only, no permission on the folder is needed, and even ``python -I`` reads it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flatout.isolation import linux
from flatout.isolation.mounts import Mount, is_below, mount_of, visible_mounts
from flatout.isolation.shared import meeting_places, staged_in_shared_memory

MOST_OVERLAYS = 400
"""More would make the start slow; the folders left out are read-only then."""


class CannotOverlay(Exception):
    """Why this way does not hold here; the next one is tried."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One overlay: what was written below ``path`` lies in ``upper``."""

    path: str
    upper: str
    """Readable through this process's own descriptors, also after the root has changed."""
    lower: str
    user_xattrs: bool


@dataclass(kw_only=True)
class Layout:
    """What a namespace should look like. All paths absolute and real (no symbolic link in them)."""

    scratch: str
    """An empty folder of ours on a filesystem that can hold upper layers."""
    in_memory: bool = False
    """Put a tmpfs over ``scratch`` first: no filesystem here can be an upper layer."""
    pass_through: tuple[str, ...] = ()
    """Folders whose writes are kept."""
    hide: tuple[str, ...] = ()
    """Folders shown empty."""
    cover: tuple[str, ...] = ()
    """Where the program surely writes: working folder, home, temporary folder."""
    site_packages: tuple[str, ...] = ()
    pth_name: str = "flatout_agent.pth"
    pth_text: str = ""
    whole: bool = True
    fresh_proc: bool = True
    """This process is in a new PID namespace, whose own /proc must be mounted."""


@dataclass(kw_only=True)
class _Work:
    """Descriptors and results while the layers are laid."""

    layout: Layout
    prefix: str = ""
    options: str = ""
    layers: list[Layer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    scratch_fd: int = -1

    def target(self, path: str) -> str:
        return (self.prefix + path) if path != "/" else (self.prefix or "/")

    def overlay(self, path: str, lower_fd: int, *, over: str = "") -> None:
        """Lay an overlay of ``path``, whose own content is ``lower_fd``, with layer ``over`` above it.

        Raises OSError. The upper folder takes the mode and owner of the folder that it stands for, since
        those are what the program sees.
        """
        number = len(self.layers)
        base = f"/proc/self/fd/{self.scratch_fd}"
        upper, work = f"{base}/upper{number}", f"{base}/work{number}"
        Path(upper).mkdir(exist_ok=True)
        Path(work).mkdir(exist_ok=True)
        status = os.stat(f"/proc/self/fd/{lower_fd}")
        if self.layout.whole:
            os.chown(upper, status.st_uid, status.st_gid)
        mode = stat.S_IMODE(status.st_mode)
        if not os.access(f"/proc/self/fd/{lower_fd}", os.W_OK):
            mode &= ~0o200  # the upper folder is ours: keep what was closed to us closed
        os.chmod(upper, mode)
        lower = f"/proc/self/fd/{lower_fd}"
        lowers = f"{over}:{lower}" if over else lower
        # index and metacopy off: plain copies; volatile: no fsync for what will be thrown away;
        # redirect_dir: an existing folder can be renamed, as outside (not allowed in a user namespace)
        wishes = ["index=off,metacopy=off,volatile", "index=off,metacopy=off", ""]
        if self.layout.whole:
            wishes = [",".join(filter(None, (wish, "redirect_dir=on"))) for wish in wishes] + wishes
        if self.options:
            wishes = [self.options.strip(","), *wishes]
        problem: OSError | None = None
        for wish in wishes:
            extra = f",{wish}" if wish else ""
            if not self.layout.whole:
                extra += ",userxattr"
            try:
                linux.mount(
                    "overlay", self.target(path), "overlay", 0,
                    f"lowerdir={lowers},upperdir={upper},workdir={work}{extra}",
                )  # fmt: skip
            except OSError as error:
                problem = error
                continue
            self.options = wish
            self.layers.append(
                Layer(path=path, upper=upper, lower=lower, user_xattrs=not self.layout.whole)
            )
            return
        assert problem is not None
        raise problem

    def read_only(self, path: str, flags: int) -> None:
        linux.mount(
            None, self.target(path), None, linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | flags
        )

    def bind(self, path: str, source_fd: int) -> None:
        linux.mount(f"/proc/self/fd/{source_fd}", self.target(path), None, linux.MS_BIND)


def enter(layout: Layout) -> tuple[list[Layer], list[str]]:
    """Build the namespace around this process, which must already be alone in a new mount namespace.

    Returns the layers and notes for the report. Raises CannotOverlay with the reason; the process must
    then end, since its namespace is half built.
    """
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    work = _Work(layout=layout)
    mounts = visible_mounts()
    if layout.in_memory:
        linux.mount("flatout", layout.scratch, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=700")
    work.scratch_fd = os.open(layout.scratch, os.O_RDONLY | os.O_DIRECTORY)
    own = f"/proc/self/fd/{work.scratch_fd}"
    passed = {path: os.open(path, os.O_PATH) for path in layout.pass_through}
    sites = {path: os.open(path, os.O_PATH) for path in layout.site_packages}
    met = meeting_places()
    shared_memory = staged_in_shared_memory()
    handles = _open_all(mounts)
    try:
        if layout.whole:
            work.prefix = f"{layout.scratch}/root"
            Path(f"{own}/root").mkdir()
            _lay_whole(work, mounts, handles)
        else:
            _lay_in_place(work, mounts, handles)
        _fresh_shared_memory(work, shared_memory)
        if layout.pth_text and sites:
            Path(f"{own}/pth").mkdir()
            Path(f"{own}/pth", layout.pth_name).write_text(layout.pth_text, encoding="utf-8")
            os.chmod(f"{own}/pth", 0o755)
            for path, descriptor in sites.items():
                work.overlay(path, descriptor, over=f"{own}/pth")
        for path, descriptor in passed.items():
            work.bind(path, descriptor)
        for path in layout.hide:
            if Path(work.target(path)).is_dir():
                linux.mount("flatout", work.target(path), "tmpfs", linux.MS_RDONLY, "size=4k,mode=755")
        _reach_sockets(work, met)
        if not layout.whole:
            _close_gaps(work, mounts)
        if layout.fresh_proc:
            flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
            linux.mount("proc", work.target("/proc"), "proc", flags)
            _repeat_below_proc(work, mounts, handles)
        elif layout.whole:
            linux.mount("/proc", work.target("/proc"), None, linux.MS_BIND | linux.MS_REC)
        if layout.whole:
            linux.pivot_root(work.prefix)
    except OSError as error:
        raise CannotOverlay(str(error)) from error
    return work.layers, work.notes


def _open_all(mounts: list[Mount]) -> dict[str, int]:
    """A descriptor of each mount's root: reaches it also where the new tree covers its path."""
    handles = {}
    for mount in mounts:
        try:
            handles[mount.path] = os.open(mount.path, os.O_PATH)
        except OSError:
            continue  # not ours to enter (another user's FUSE mount), so not ours to write either
    return handles


def _is_kernel_place(mount: Mount) -> bool:
    return mount.pseudo or is_below(mount.path, "/dev") or is_below(mount.path, "/sys")


def _lay_whole(work: _Work, mounts: list[Mount], handles: dict[str, int]) -> None:
    for mount in mounts:
        path = mount.path
        if path not in handles or path in ("/dev/shm", "/proc"):
            continue
        try:
            if is_below(path, "/proc"):
                continue  # see _repeat_below_proc
            if _is_kernel_place(mount) or mount.read_only:
                work.bind(path, handles[path])
            elif mount.file:
                work.bind(path, handles[path])
                work.read_only(path, mount.flags)
            else:
                work.overlay(path, handles[path])
        except OSError as error:
            if path == "/" or any(mount_of(place, mounts).path == path for place in work.layout.cover):
                raise
            if not Path(work.target(path)).exists():
                work.notes.append(f"{path} is not visible to the program ({error})")
                continue
            work.bind(path, handles[path])
            work.read_only(path, mount.flags)
            work.notes.append(f"{path} ({mount.kind}) is read-only to the program: {error}")


def _reach_sockets(work: _Work, places: dict[str, int]) -> None:
    """Lay the real sockets over their copies, which nobody listens at."""
    for path, descriptor in places.items():
        with contextlib.suppress(OSError):
            work.bind(path, descriptor)


def _repeat_below_proc(work: _Work, mounts: list[Mount], handles: dict[str, int]) -> None:
    """What a container runtime laid over parts of /proc, laid over the fresh one as well.

    LXC shows its own /proc/meminfo so, and the NVIDIA container toolkit its own /proc/driver/nvidia. A
    place that the fresh /proc has not needs no cover.
    """
    for mount in mounts:
        if mount.path in handles and mount.path != "/proc" and is_below(mount.path, "/proc"):
            with contextlib.suppress(OSError):
                work.bind(mount.path, handles[mount.path])


def folders_to_overlay(mount: Mount, mount_points: frozenset[str], split: set[str]) -> Iterator[str]:
    """The largest folders of ``mount`` with no mount inside. Adds to ``split`` those with one."""

    def visit(folder: str) -> Iterator[str]:
        if not any(point != folder and is_below(point, folder) for point in mount_points):
            yield folder
            return
        split.add(folder)
        try:
            with os.scandir(folder) as found:
                entries = sorted(entry.path for entry in found if entry.is_dir(follow_symlinks=False))
        except OSError:
            return
        for path in entries:
            if path not in mount_points and os.access(path, os.X_OK):
                yield from visit(path)

    yield from visit(mount.path)


def _lay_in_place(work: _Work, mounts: list[Mount], handles: dict[str, int]) -> None:
    points = frozenset(mount.path for mount in mounts)
    split: set[str] = set()
    folders: list[str] = []
    for mount in mounts:
        skip = _is_kernel_place(mount) or mount.read_only or mount.file or is_below(mount.path, "/proc")
        if mount.path in handles and not skip:
            folders.extend(folders_to_overlay(mount, points, split))
    for place in work.layout.cover[:1]:
        if place in split and os.access(place, os.W_OK):
            inside = next(point for point in sorted(points) if point != place and is_below(point, place))
            raise CannotOverlay(
                f"{inside} is mounted inside the working folder {place}: no overlay in a user namespace"
            )
    # a folder of the program's own, however deep, gets its own overlay: an upper folder that is ours can
    # be written even where the folder above belongs to somebody else
    folders.extend(place for place in work.layout.cover if place not in folders and place not in split)
    folders.sort(key=lambda path: path.count("/") if path != "/" else 0)
    if len(folders) > MOST_OVERLAYS:
        wanted = work.layout.cover
        folders = [f for f in folders if os.access(f, os.W_OK) or any(is_below(w, f) for w in wanted)][
            :MOST_OVERLAYS
        ]
    descriptors = {}
    for folder in folders:
        try:
            descriptors[folder] = os.open(folder, os.O_PATH)
        except OSError:
            continue
    for folder, descriptor in descriptors.items():
        try:
            work.overlay(folder, descriptor)
        except OSError as error:
            if any(is_below(place, folder) for place in work.layout.cover):
                raise
            split.add(folder)
            work.notes.append(f"{folder} is read-only to the program: {error}")


def _close_gaps(work: _Work, mounts: list[Mount]) -> None:
    """Make read-only what no overlay covers: the folders between mounts, and files bound singly."""
    covered = [layer.path for layer in work.layers]
    for mount in mounts:
        skip = _is_kernel_place(mount) or mount.read_only or is_below(mount.path, "/proc")
        if skip or mount.path in covered or any(is_below(mount.path, path) for path in covered):
            continue
        try:
            work.read_only(mount.path, mount.flags)
        except OSError as error:
            if not os.access(mount.path, os.W_OK):
                continue
            if not mount.file:
                raise CannotOverlay(
                    f"{mount.path} can neither be overlaid nor made read-only: {error}"
                ) from error
            work.notes.append(
                f"writes of the program to {mount.path}, a file bound singly, are real: {error}"
            )


def _fresh_shared_memory(work: _Work, entries: dict[str, int]) -> None:
    """An empty /dev/shm as large as the old one, so that no object of the program outlives it."""
    if not os.path.isdir("/dev/shm"):
        return
    space = os.statvfs("/dev/shm")
    size = space.f_blocks * space.f_frsize
    target = work.target("/dev/shm")
    linux.mount(
        "flatout", target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=1777,size={size or '50%'}"
    )
    for name, descriptor in entries.items():
        source = f"/proc/self/fd/{descriptor}"
        place = f"{target}/{name}"
        try:
            if stat.S_ISDIR(os.stat(source).st_mode):
                os.mkdir(place)
                work.overlay(f"/dev/shm/{name}", descriptor)
            else:
                Path(place).touch()
                work.bind(f"/dev/shm/{name}", descriptor)
                work.read_only(f"/dev/shm/{name}", linux.MS_NOSUID | linux.MS_NODEV)
        except OSError as error:
            work.notes.append(f"/dev/shm/{name} is not visible to the program: {error}")
