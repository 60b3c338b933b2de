"""The text of a file in blocks: inflated where it is compressed, as UTF-8, with what was broken about it.

What a file is follows from its first bytes, never from its name. Memory stays at a few blocks, however
large the file and however far it inflates.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from flatout.errors import BadCapture

BLOCK_BYTES = 4 << 20
"""Of text handed out at a time."""
_READ_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"SQLite format 3": "an SQLite database, as nsys exports them",
    b"PK\x03\x04": "a ZIP archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard: unpack it first (zstd -d FILE)",
    b"BZh": "compressed with bzip2: unpack it first",
    b"\xfd7zXZ": "compressed with xz: unpack it first",
}


class Stream:
    """One pass over a file's text.

    ``damage`` fills while it is read: sentences on what was lost. ``progress`` is called with the bytes
    of the file that were read, and with its size.
    """

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None = None) -> None:
        self.path = path
        self.damage: list[str] = []
        self._progress = progress
        self._done = 0
        self._size = 0

    def blocks(self) -> Iterator[bytes]:
        """UTF-8 text (not yet checked to be such), some MiB at a time, none empty.

        BadCapture where the file cannot be opened, is empty, or is of a kind that holds no text.
        """
        try:
            with self.path.open("rb") as file:
                self._size = self.path.stat().st_size
                yield from self._text(file)
        except OSError as error:
            raise BadCapture(
                f"cannot read {self.path}: {error.strerror or error}",
                hint="Check that the file is there and that you may read it.",
            ) from error

    def _text(self, file: BinaryIO) -> Iterator[bytes]:
        first = file.read(16)
        file.seek(0)
        if not first:
            raise BadCapture(
                f"{self.path} is empty", hint="The profiler may have been killed as it wrote it."
            )
        for magic, what in _FOREIGN.items():
            if first.startswith(magic):
                raise BadCapture(
                    f"{self.path} is no trace of the PyTorch profiler: it is {what}",
                    hint="Give a .json or .json.gz file of torch.profiler.",
                )
        blocks = self._inflated(file) if first.startswith(_GZIP) else self._plain(file, BLOCK_BYTES)
        yield from _as_utf8(blocks)

    def _plain(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        while block := file.read(size):
            self._done += len(block)
            if self._progress:
                self._progress(self._done, self._size)
            yield block

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        """Of a gzip file of one or several members."""
        inflate = zlib.decompressobj(wbits=31)
        members = 0
        for given in self._plain(file, _READ_BYTES):
            data = given
            while data:
                if inflate.eof:
                    data = data.lstrip(b"\0")  # padding, as tapes and block devices leave it
                    if not data:
                        break
                    inflate, members = zlib.decompressobj(wbits=31), members + 1
                try:
                    text = inflate.decompress(data, BLOCK_BYTES)
                except zlib.error as error:
                    self._broken(data, members, error)
                    return
                data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
                if text:
                    yield text
        while not inflate.eof and (text := inflate.decompress(b"", BLOCK_BYTES)):
            yield text
        if not inflate.eof:
            self.damage.append("the compressed data is cut off: its end is missing")

    def _broken(self, data: bytes, members: int, error: zlib.error) -> None:
        if members and not data.startswith(_GZIP):
            left = self._size - self._done + len(data)
            self.damage.append(f"{left} bytes after the compressed data are not part of it: left out")
        else:
            self.damage.append(
                f"the compressed data is broken before byte {self._done} of {self._size} ({error}): "
                "what comes after could not be read"
            )


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Without a byte order mark; UTF-16 (PowerShell's redirection writes it) turned into UTF-8."""
    first = next(blocks, b"")
    if first.startswith(codecs.BOM_UTF8):
        first = first[len(codecs.BOM_UTF8) :]
    for mark, name in (
        (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
        (b"{\0", "utf-16-le"), (b"[\0", "utf-16-le"), (b"\0{", "utf-16-be"), (b"\0[", "utf-16-be"),
    ):  # fmt: skip
        if first.startswith(mark):
            decode = codecs.getincrementaldecoder(name)(errors="replace").decode
            yield decode(first).lstrip("\ufeff").encode(errors="replace")
            for block in blocks:
                yield decode(block).encode(errors="replace")
            return
    if first:
        yield first
    yield from blocks
