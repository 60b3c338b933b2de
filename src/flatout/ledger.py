"""The ledger: every search, trial, verdict and raw block of step times, in one SQLite file.

Write-ahead logging, one short transaction per record: a kill at any moment loses at most what was
being written. A trial, verdict or block is written once; triggers refuse to change or delete it. One
process writes at a time (a lock file that the kernel releases with the process, however it ends); any
number may read. Names of environment variables are stored, never their values.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flatout.codec import from_plain, to_plain
from flatout.errors import DiskFull, LedgerError
from flatout.host import Host, Interpreter
from flatout.search.options import SearchOptions
from flatout.trial import Block, Trial, Verdict
from flatout.workload import Workload

SCHEMA = 1
APPLICATION_ID = 0x464C4154  # "FLAT"

_TABLES = """
CREATE TABLE search (
    id INTEGER PRIMARY KEY,
    started REAL NOT NULL,
    fingerprint TEXT NOT NULL,
    resume_key TEXT NOT NULL,
    workload TEXT NOT NULL,
    interpreter TEXT NOT NULL,
    host TEXT NOT NULL,
    options TEXT NOT NULL,
    version TEXT NOT NULL,
    state TEXT NOT NULL
);
CREATE TABLE trial (
    id INTEGER PRIMARY KEY,
    search INTEGER NOT NULL REFERENCES search (id),
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    at REAL NOT NULL,
    data TEXT NOT NULL,
    UNIQUE (search, key)
);
CREATE TABLE verdict (
    id INTEGER PRIMARY KEY,
    search INTEGER NOT NULL REFERENCES search (id),
    key TEXT NOT NULL,
    at REAL NOT NULL,
    data TEXT NOT NULL,
    UNIQUE (search, key)
);
CREATE TABLE block (
    id INTEGER PRIMARY KEY,
    search INTEGER NOT NULL REFERENCES search (id),
    trial TEXT NOT NULL,
    comparison TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    search INTEGER NOT NULL REFERENCES search (id),
    time REAL NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX event_of ON event (search, kind);
"""
_FROZEN = ("trial", "verdict", "block")

_SECRET_NAME = r"(?:^|.*[\W_])(?:(?:api|access)?key|token|secret|passw(?:or)?d|credentials?|auth)"
_SECRET = re.compile(rf"(?i)({_SECRET_NAME}[=:])(\S+)|(://[^/\s:@]*:)([^@\s/]+)(?=@)")
_SECRET_OPTION = re.compile(rf"(?i)-{_SECRET_NAME}")


def redact(text: str) -> str:
    """``text`` with what looks like a secret (``--api-key=...``, ``user:password@``) replaced by ***."""

    def hide(match: re.Match[str]) -> str:
        return (match[1] or match[3]) + "***"

    return _SECRET.sub(hide, text)


def redact_command(words: Sequence[str]) -> list[str]:
    """The words of a command, each redacted, and so is what follows an option such as ``--api-key``."""
    hidden = []
    for place, word in enumerate(words):
        named = place > 0 and _SECRET_OPTION.fullmatch(words[place - 1]) is not None
        hidden.append("***" if named and not word.startswith("-") else redact(word))
    return hidden


@dataclass(frozen=True, kw_only=True)
class SearchRow:
    """One search as stored."""

    id: int
    started: float
    fingerprint: str
    workload: Workload
    """Its environment holds names only: every value is ``***``."""
    interpreter: Interpreter
    host: Host
    options: SearchOptions
    version: str
    """Of flatout."""
    state: str
    """``running`` (or killed), ``interrupted``, ``failed`` or ``finished``."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something noted while searching that is neither a trial nor a verdict."""

    kind: str
    time: float
    """Unix seconds."""
    at: float
    """Seconds of search spent, earlier sittings included."""
    data: dict[str, Any]


class _EventData(dict[str, Any]):
    """What lacks, in a ledger that was damaged or edited, is the ledger's fault."""

    def __init__(self, data: dict[str, Any], *, of: str, path: Path) -> None:
        super().__init__(data)
        self._of = of
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise LedgerError(
            f"{self._path} is damaged: its record of {self._of!r} has no {key!r}",
            hint="Move it away and search again.",
        )


class Ledger:
    """An open ledger. Use as a context manager, or call ``close``."""

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        """Open or make the file. LedgerError when it is not a ledger, newer, or held by another search;
        DiskFull when there is no room. Reading needs no right to write and takes no lock."""
        self.path = path
        self.writable = writable
        self._lock: IO[str] | None = None
        self._database: sqlite3.Connection | None = None
        try:
            if writable:
                self._take_lock()
            self._database = self._connect()
            with self._translated():
                self._check()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Safe to call twice."""
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # opening

    def _take_lock(self) -> None:
        lock = self.path.with_name(self.path.name + ".lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = lock.open("a+", encoding="ascii")
        except OSError as error:
            raise _from_os(error, self.path) from error
        try:
            # a record lock: unlike flock, children that the search forks do not hold it after its death
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            self._lock = None
            raise LedgerError(
                f"another search is writing {self.path} (process {holder})",
                hint=f"Wait for it, stop it (kill {holder}), or give this one its own folder with --out.",
            ) from None
        try:
            self._lock.truncate(0)
            self._lock.write(f"{os.getpid()}\n")
            self._lock.flush()
        except OSError as error:
            raise _from_os(error, self.path) from error

    def _connect(self) -> sqlite3.Connection:
        if self.writable:
            with self._translated():
                database = sqlite3.connect(self.path, timeout=10.0, isolation_level=None)
                # DatabaseError here when the file is something else
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                return database
        if not self.path.is_file():
            raise LedgerError(
                f"there is no ledger at {self.path}",
                hint="Give the folder that `flatout train` wrote to (--out), or run a search first.",
            )
        uri = self.path.resolve().as_uri()
        for mode in ("?mode=ro", "?mode=ro&immutable=1"):
            # a WAL file in a folder without write permission opens only as immutable
            database = sqlite3.connect(uri + mode, timeout=10.0, isolation_level=None, uri=True)
            try:
                database.execute("SELECT count(*) FROM sqlite_master").fetchone()
                return database
            except sqlite3.OperationalError as error:
                database.close()
                if "immutable" in mode:
                    raise self._error(error) from error
            except sqlite3.Error as error:
                database.close()
                raise self._error(error) from error
        raise AssertionError("not reached")

    def _check(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == APPLICATION_ID and version > SCHEMA:
            raise LedgerError(
                f"{self.path} was written by a newer flatout "
                f"(ledger format {version}, this one reads {SCHEMA})",
                hint="Update flatout, or give another folder with --out.",
            )
        if tables and application != APPLICATION_ID:
            raise LedgerError(
                f"{self.path} is an SQLite database, but not a ledger of flatout's",
                hint="Give another folder with --out; the file was left as it is.",
            )
        if not tables:
            if not self.writable:
                raise LedgerError(f"{self.path} is an empty ledger: no search has started in it")
            self._create()

    def _create(self) -> None:
        frozen = "".join(
            f"CREATE TRIGGER {table}_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'a {table} is written once'); END;\n"
            for table in _FROZEN
            for verb in ("UPDATE", "DELETE")
        )
        self._db.executescript(
            f"BEGIN IMMEDIATE;\n{_TABLES}{frozen}PRAGMA application_id = {APPLICATION_ID};\n"
            f"PRAGMA user_version = {SCHEMA};\nCOMMIT;"
        )

    @property
    def _db(self) -> sqlite3.Connection:
        if self._database is None:
            raise LedgerError(f"{self.path} has been closed")
        return self._database

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> LedgerError | DiskFull:
        text = str(error)
        if "disk is full" in text or getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            return DiskFull(
                f"no space left for {self.path}",
                hint="Free some space and run the same command again: it goes on where it was.",
            )
        if "not a database" in text:
            return LedgerError(
                f"{self.path} is not a ledger (it is not an SQLite database)",
                hint="Move it away or give another folder with --out; the file was left as it is.",
            )
        if "malformed" in text:
            return LedgerError(
                f"{self.path} is damaged: {text}",
                hint="Move it away and search again; `sqlite3 FILE .recover` may save its trials.",
            )
        return LedgerError(f"{self.path}: {text}", hint="Check the folder's permissions, or give --out.")

    # writing

    def start_search(
        self,
        *,
        fingerprint: str,
        workload: Workload,
        host: Host,
        interpreter: Interpreter,
        options: SearchOptions,
        version: str,
    ) -> int:
        """A new search, running; its id."""
        stored = {
            "command": redact_command(workload.command),
            "cwd": workload.cwd,
            "environment": dict.fromkeys(sorted(workload.environment), "***"),
        }
        with self._translated():
            cursor = self._db.execute(
                "INSERT INTO search (started, fingerprint, resume_key, workload, interpreter, host, "
                "options, version, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'running')",
                (
                    time.time(),
                    fingerprint,
                    _dump(options.resume_key),
                    _dump(stored),
                    _dump(to_plain(interpreter)),
                    _dump(to_plain(host)),
                    _dump(to_plain(options)),
                    version,
                ),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def resume_search(self, *, fingerprint: str, options: SearchOptions) -> int | None:
        """The newest unfinished search of this workload with these options, set running again; or None."""
        with self._translated():
            row = self._db.execute(
                "SELECT id FROM search WHERE fingerprint = ? AND resume_key = ? "
                "AND state IN ('running', 'interrupted') ORDER BY id DESC LIMIT 1",
                (fingerprint, _dump(options.resume_key)),
            ).fetchone()
            if row is None:
                return None
            self._db.execute(
                "UPDATE search SET state = 'running', options = ? WHERE id = ?",
                (_dump(to_plain(options)), row[0]),
            )
        return int(row[0])

    def set_state(self, search: int, state: str) -> None:
        """``interrupted``, ``failed`` or ``finished``."""
        with self._translated():
            self._db.execute("UPDATE search SET state = ? WHERE id = ?", (state, search))

    def add_trial(self, search: int, trial: Trial, *, at: float) -> None:
        """Write a trial once. LedgerError when its key is taken."""
        with self._translated():
            self._db.execute(
                "INSERT INTO trial (search, key, state, at, data) VALUES (?, ?, ?, ?, ?)",
                (search, trial.key, str(trial.outcome.state), at, _dump(to_plain(trial))),
            )

    def add_verdict(self, search: int, verdict: Verdict, *, at: float) -> None:
        """Write a verdict once. LedgerError when its key is taken."""
        with self._translated():
            self._db.execute(
                "INSERT INTO verdict (search, key, at, data) VALUES (?, ?, ?, ?)",
                (search, verdict.key, at, _dump(to_plain(verdict))),
            )

    def add_block(self, search: int, *, trial: str, comparison: str, block: Block) -> None:
        """Raw step times of one block, before any statistic is taken of them."""
        with self._translated():
            self._db.execute(
                "INSERT INTO block (search, trial, comparison, data) VALUES (?, ?, ?, ?)",
                (search, trial, comparison, _dump(to_plain(block))),
            )

    def add_event(self, search: int, kind: str, data: dict[str, Any], *, at: float) -> None:
        with self._translated():
            self._db.execute(
                "INSERT INTO event (search, time, at, kind, data) VALUES (?, ?, ?, ?, ?)",
                (search, time.time(), at, kind, _dump(to_plain(data))),
            )

    # reading

    def searches(self) -> list[int]:
        """Ids, oldest first."""
        with self._translated():
            return [row[0] for row in self._db.execute("SELECT id FROM search ORDER BY id")]

    def search(self, search: int) -> SearchRow:
        with self._translated():
            row = self._db.execute(
                "SELECT id, started, fingerprint, workload, interpreter, host, options, version, state "
                "FROM search WHERE id = ?",
                (search,),
            ).fetchone()
        if row is None:
            raise LedgerError(f"{self.path} has no search {search}")
        with self._decoded(f"search {search}"):
            return SearchRow(
                id=row[0],
                started=row[1],
                fingerprint=row[2],
                workload=from_plain(Workload, json.loads(row[3])),
                interpreter=from_plain(Interpreter, json.loads(row[4])),
                host=from_plain(Host, json.loads(row[5])),
                options=from_plain(SearchOptions, json.loads(row[6])),
                version=row[7],
                state=row[8],
            )

    def trials(self, search: int) -> dict[str, Trial]:
        """Key -> trial, in the order written."""
        return {key: self._decode(Trial, data, f"trial {key}") for key, data in self._rows("trial", search)}

    def verdicts(self, search: int) -> dict[str, Verdict]:
        """Key -> verdict, in the order written."""
        return {
            key: self._decode(Verdict, data, f"verdict {key}")
            for key, data in self._rows("verdict", search)
        }

    def blocks(self, search: int, comparison: str | None = None) -> list[tuple[str, str, Block]]:
        """(trial key, comparison key, block), in the order measured."""
        with self._translated():
            rows = self._db.execute(
                "SELECT trial, comparison, data FROM block WHERE search = ? ORDER BY id", (search,)
            ).fetchall()
        return [
            (trial, key, self._decode(Block, data, f"a block of {key}"))
            for trial, key, data in rows
            if comparison is None or key == comparison
        ]

    def events(self, search: int, kind: str | None = None) -> list[Event]:
        with self._translated():
            rows = self._db.execute(
                "SELECT kind, time, at, data FROM event WHERE search = ? ORDER BY id", (search,)
            ).fetchall()
        with self._decoded("an event"):
            return [
                Event(
                    kind=row[0],
                    time=row[1],
                    at=row[2],
                    data=_EventData(
                        from_plain(dict[str, object], json.loads(row[3])), of=row[0], path=self.path
                    ),
                )
                for row in rows
                if kind is None or row[0] == kind
            ]

    def spent_seconds(self, search: int) -> float:
        """Search time spent until the last record, over all sittings."""
        with self._translated():
            (spent,) = self._db.execute(
                "SELECT max(at) FROM (SELECT max(at) AS at FROM trial WHERE search = ?1 "
                "UNION ALL SELECT max(at) FROM verdict WHERE search = ?1 "
                "UNION ALL SELECT max(at) FROM event WHERE search = ?1)",
                (search,),
            ).fetchone()
        return float(spent or 0.0)

    def _rows(self, table: str, search: int) -> list[tuple[str, str]]:
        with self._translated():
            return self._db.execute(
                f"SELECT key, data FROM {table} WHERE search = ? ORDER BY id",
                (search,),
            ).fetchall()

    def _decode(self, kind: Any, data: str, what: str) -> Any:
        with self._decoded(what):
            return from_plain(kind, json.loads(data))

    @contextlib.contextmanager
    def _decoded(self, what: str) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise LedgerError(f"{self.path}: {what} cannot be read: {error}") from error


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=False, separators=(",", ":"), allow_nan=False)


def _from_os(error: OSError, path: Path) -> LedgerError | DiskFull:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space left for {path}", hint="Free some space and run the same command again.")
    return LedgerError(
        f"{path} cannot be written: {error.strerror or error}",
        hint="Check the folder's permissions, or give another with --out.",
    )
