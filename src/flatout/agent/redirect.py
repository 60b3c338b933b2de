"""The third way of isolation: Python's own writers go to a mirror folder, and reads see what they wrote.

``/home/ann/run/last.pt`` is written as ``MIRROR/home/ann/run/last.pt``. A file is copied into the
mirror when it is opened for update or appended to; what is removed is marked as gone. Not reached:
writers in native code other than torch's and safetensors', and child processes that are not Python.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import stat
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

_GONE = ".flatout-gone"
_PASS = ("/dev/", "/proc/", "/sys/", "/run/")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_real: dict[str, Any] = {
    name: getattr(os, name)
    for name in (
        *("open", "mkdir", "rename", "replace", "remove", "unlink", "rmdir", "stat", "lstat", "listdir"),
        *("scandir", "access", "chmod", "utime", "link", "symlink", "truncate", "readlink"),
    )
}
_real_io_open = io.open
_real_rmtree = shutil.rmtree


class Mirror:
    """Which path stands for which."""

    def __init__(self, folder: str, keep: tuple[str, ...] = ()) -> None:
        self.folder = os.path.abspath(folder)
        temporary = os.path.realpath(tempfile.gettempdir())
        cwd = os.path.realpath(os.getcwd())
        home = os.path.realpath(os.path.expanduser("~"))
        self.keep = tuple(
            os.path.realpath(one)
            for one in (
                self.folder,
                os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""),
                os.environ.get("TRITON_CACHE_DIR", ""),
                *keep,
            )
            if one
        )
        if not _below(cwd, temporary) and not _below(home, temporary):
            # Sockets, compilers and child processes meet there; the user's own files are elsewhere.
            self.keep += (temporary,)

    def passes(self, path: str) -> bool:
        """Written in place: devices, and flatout's own folders."""
        if path.startswith(_PASS):
            return True
        return any(_below(path, one) for one in self.keep)

    def real(self, path: Any) -> str | None:
        """``path`` in full, or None for what is no path below the mirror's care (a descriptor, bytes)."""
        if isinstance(path, int):
            return None
        text = os.fspath(path)
        if isinstance(text, bytes):
            text = os.fsdecode(text)
        text = os.path.abspath(text)
        folder, name = os.path.split(text)
        # Links in the folders lead elsewhere; the last part may be the link itself.
        text = os.path.join(_realpath(folder), name)
        return None if self.passes(text) else text

    def shadow(self, real: str) -> str:
        return self.folder + real

    def hidden(self, real: str) -> bool:
        """The real one was removed, or a folder above it; something new may stand in its place."""
        while len(real) > 1:
            if _exists(self.shadow(real) + _GONE):
                return True
            real = os.path.dirname(real)
        return False

    def gone(self, real: str) -> bool:
        return not _exists(self.shadow(real)) and self.hidden(real)

    def reading(self, path: Any) -> Any:
        """Where to read ``path``."""
        real = self.real(path)
        if real is None:
            return path
        shadow = self.shadow(real)
        if _exists(shadow) or self.gone(real):
            return shadow  # gone: not there either, so the error is the right one
        return path

    def writing(self, path: Any, *, copy: bool = False) -> Any:
        """Where to write ``path``; with ``copy``, its present content is there already."""
        real = self.real(path)
        if real is None:
            return path
        shadow = self.shadow(real)
        parent = os.path.dirname(real)
        if not _exists(self.shadow(parent)):
            if not _exists(parent) or self.gone(parent):
                return shadow  # no such folder: the error is the right one
            _makedirs(self.shadow(parent))
        if copy and not _exists(shadow) and _exists(real) and not self.hidden(real):
            with _real_io_open(real, "rb") as source, _real_io_open(shadow, "wb") as target:
                shutil.copyfileobj(source, target)
        return shadow

    def bring(self, path: Any) -> Any:
        """The whole of ``path``, a folder too, copied into the mirror."""
        real = self.real(path)
        if real is None:
            return path
        if _is_folder(real) and not self.hidden(real):
            shadow = self.shadow(real)
            _makedirs(shadow)
            for name in _real["listdir"](real):
                if not _exists(os.path.join(shadow, name) + _GONE):
                    self.bring(os.path.join(real, name))
            return shadow
        return self.writing(path, copy=True)

    def mark_gone(self, real: str) -> None:
        if not _exists(real):
            return
        shadow = self.shadow(real)
        _makedirs(os.path.dirname(shadow))
        os.close(_real["open"](shadow + _GONE, os.O_CREAT | os.O_WRONLY, 0o600))


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _exists(path: str) -> bool:
    try:
        _real["lstat"](path)
    except (OSError, ValueError):
        return False
    return True


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(_real["lstat"](path).st_mode)
    except OSError:
        return False


def _realpath(folder: str) -> str:
    """Like os.path.realpath, by the real lstat and readlink whatever is patched."""
    parts, path = [one for one in folder.split("/") if one], "/"
    for _ in range(400):
        if not parts:
            break
        following = os.path.join(path, parts.pop(0))
        try:
            target = _real["readlink"](following)
        except OSError:
            path = following
            continue
        joined = os.path.normpath(os.path.join(path, target))
        parts = [one for one in joined.split("/") if one] + parts
        path = "/"
    return path


def _makedirs(path: str) -> None:
    if _exists(path):
        return
    _makedirs(os.path.dirname(path))
    try:
        _real["mkdir"](path, 0o755)
    except FileExistsError:
        return


_mirror: Mirror | None = None


def install(folder: str, keep: tuple[str, ...] = ()) -> None:
    """Put the redirected writers in, once."""
    global _mirror
    if _mirror is not None:
        return
    _makedirs(os.path.abspath(folder))
    mirror = _mirror = Mirror(folder, keep)

    def io_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, int) and kwargs.get("opener") is None:
            if any(letter in mode for letter in "wax+"):
                if "x" in mode and mirror.reading(file) is file and os.path.lexists(file):
                    raise FileExistsError(17, "File exists", os.fspath(file))
                file = mirror.writing(file, copy="w" not in mode and "x" not in mode)
            else:
                file = mirror.reading(file)
        return _real_io_open(file, mode, *args, **kwargs)

    functools.update_wrapper(io_open, _real_io_open)
    builtins.open = io_open
    io.open = _Unbound(io_open)

    def os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is None:
            if flags & _WRITING:
                path = mirror.writing(path, copy=not flags & os.O_TRUNC)
            else:
                path = mirror.reading(path)
        return _real["open"](path, flags, *args, **kwargs)

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        if dir_fd is None:
            if _visible(mirror, path):
                raise FileExistsError(17, "File exists", os.fspath(path))
            path = mirror.writing(path)
        _real["mkdir"](path, mode, dir_fd=dir_fd)

    def remove(path: Any, *, dir_fd: Any = None) -> None:
        real = mirror.real(path) if dir_fd is None else None
        if real is None:
            _real["unlink"](path, dir_fd=dir_fd)
            return
        if not _visible(mirror, path):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        if _exists(mirror.shadow(real)):
            _real["unlink"](mirror.shadow(real))
        mirror.mark_gone(real)

    def rmdir(path: Any, *, dir_fd: Any = None) -> None:
        real = mirror.real(path) if dir_fd is None else None
        if real is None:
            _real["rmdir"](path, dir_fd=dir_fd)
            return
        if listdir(path):
            raise OSError(39, "Directory not empty", os.fspath(path))
        if _exists(mirror.shadow(real)):
            _real_rmtree(mirror.shadow(real))
        mirror.mark_gone(real)

    def replace(src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        real = mirror.real(src) if src_dir_fd is None else None
        if real is None and mirror.real(dst) is None:
            _real["replace"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        if not _visible(mirror, src):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(src))
        source, target = mirror.bring(src), mirror.writing(dst)
        try:
            _real["replace"](source, target)
        except OSError:
            shutil.move(source, target)
        if real is not None:
            mirror.mark_gone(real)

    def listdir(path: Any = ".") -> list[Any]:
        if isinstance(path, int) or mirror.real(path) is None:
            return list(_real["listdir"](path))
        return [entry.name for entry in _entries(mirror, path)]

    def scandir(path: Any = ".") -> Any:
        if isinstance(path, int) or mirror.real(path) is None:
            return _real["scandir"](path)
        return _Scan(_entries(mirror, path))

    def rmtree(path: Any, ignore_errors: bool = False, *args: Any, **kwargs: Any) -> None:
        real = mirror.real(path)
        if real is None:
            _real_rmtree(path, ignore_errors, *args, **kwargs)
            return
        if not _visible(mirror, path):
            if ignore_errors:
                return
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        if _exists(mirror.shadow(real)):
            with _originals():
                _real_rmtree(mirror.shadow(real), ignore_errors=True)
        mirror.mark_gone(real)

    os.open = os_open
    os.mkdir = mkdir
    os.remove = os.unlink = remove
    os.rmdir = rmdir
    os.rename = os.replace = replace
    os.listdir = listdir
    os.scandir = scandir
    setattr(shutil, "rmtree", rmtree)  # noqa: B010
    for name in ("stat", "lstat", "access", "readlink"):
        setattr(os, name, _first_path(_real[name], mirror.reading))
    for name in ("chmod", "utime", "truncate"):
        setattr(os, name, _first_path(_real[name], lambda path: mirror.writing(path, copy=True)))

    def link(src: Any, dst: Any, **kwargs: Any) -> None:
        shutil.copyfile(src, dst)

    def symlink(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
        _real["symlink"](src, mirror.writing(dst), *args)

    os.link = link
    os.symlink = symlink
    for name in _real:
        setattr(os, name, _Unbound(getattr(os, name)))


class _Unbound:
    """A function that stays one as a class attribute: pathlib before Python 3.11 keeps ``os.open``,
    ``io.open`` and others so, which would make methods of functions written in Python."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _originals:  # noqa: N801
    """os as it was, for a library function that works inside the mirror by descriptors."""

    def __enter__(self) -> None:
        self._patched = {name: getattr(os, name) for name in _real}
        for name, function in _real.items():
            setattr(os, name, function)

    def __exit__(self, *error: Any) -> None:
        for name, function in self._patched.items():
            setattr(os, name, function)


class _Scan:
    """What os.scandir gives: an iterator that is closed."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _visible(mirror: Mirror, path: Any) -> bool:
    real = mirror.real(path)
    if real is None:
        return os.path.lexists(path)
    return _exists(mirror.shadow(real)) or (_exists(real) and not mirror.gone(real))


def _entries(mirror: Mirror, path: Any) -> list[Any]:
    """Directory entries of both, the mirror's own first in case of doubt."""
    real = mirror.real(path)
    if real is None:
        return list(_real["scandir"](path))
    found: dict[str, Any] = {}
    shadow = mirror.shadow(real)
    there = False
    hidden: set[str] = set()
    if _exists(shadow):
        there = True
        for entry in _real["scandir"](shadow):
            if entry.name.endswith(_GONE):
                hidden.add(entry.name[: -len(_GONE)])
            else:
                found[entry.name] = entry
    if _exists(real) and not mirror.hidden(real):
        there = True
        for entry in _real["scandir"](path):
            if entry.name not in found and entry.name not in hidden:
                found[entry.name] = entry
    if not there:
        raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
    return list(found.values())


def _first_path(function: Callable[..., Any], place: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is None:
            path = place(path)
        return function(path, *args, **kwargs)

    return call


def patch_library(name: str, module: Any) -> None:
    """Writers and readers in native code that take a path."""
    mirror = _mirror
    if mirror is None:
        return
    if name == "torch":
        _redirect(module, "save", 1, "f", mirror.writing)
        _redirect(module, "load", 0, "f", mirror.reading)
        _redirect(module.jit, "save", 1, "f", mirror.writing)
        _redirect(module.jit, "load", 0, "f", mirror.reading)
    elif name == "safetensors.torch":
        _redirect(module, "save_file", 1, "filename", mirror.writing)
        _redirect(module, "load_file", 0, "filename", mirror.reading)


def _redirect(module: Any, function: str, place: int, keyword: str, where: Callable[[Any], Any]) -> None:
    original = getattr(module, function)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = list(args)
        if len(arguments) > place and _is_path(arguments[place]):
            arguments[place] = where(arguments[place])
        elif _is_path(kwargs.get(keyword)):
            kwargs[keyword] = where(kwargs[keyword])
        return original(*arguments, **kwargs)

    call._flatout_original = original  # type: ignore[attr-defined]
    setattr(module, function, call)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))
