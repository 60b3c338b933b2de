"""A file is written whole or not at all, and what stands in the way is told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from flatout.errors import DiskFull, UsageError
from flatout.writing import write_whole


def test_the_new_one_takes_the_old_ones_place(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for text in ("old", "new \udcff"):
        assert write_whole(path, text) == path
    assert path.read_text() == "new \\udcff"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EROFS, UsageError), (errno.EACCES, UsageError), (errno.ENOSPC, DiskFull)]
)
def test_where_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    path = tmp_path / "report.json"
    write_whole(path, "old")

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(kind, match=r"report\.json"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    monkeypatch.undo()
    with pytest.raises(UsageError):
        write_whole(tmp_path / "report.json" / "below", "new")
