# SPDX-License-Identifier: MIT
"""The database of all records: one SQLite file, STATE_DIR/pal.db, with one writer.

It is an index over result files, which are also kept: every record is stored as its original
line, beside the columns for queries. It belongs on the controller's local disk: SQLite's locks
are unreliable on network file systems. Reading takes none of our locks and works for every
user (mode 0644, rollback journal: a WAL would need a writable directory), also while a killed
writer's transaction waits to be rolled back, which takes write permission.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from slurm_pal.base.errors import BusyError, DataError
from slurm_pal.base.files import locked, sweep_words, temporary_name
from slurm_pal.variability.power_limit import limit_text
from slurm_pal.variability.records import Record, from_json

FILE_NAME = "pal.db"
APPLICATION_ID = 0x70616C31  # "pal1": distinguishes our file from any other SQLite file
BUSY_TIMEOUT_S = 5.0
PAGE = 1024  # records read at once

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE records (
            run_id TEXT PRIMARY KEY,
            ts REAL NOT NULL,       -- Unix s; never later than when it was taken in
            uuid TEXT NOT NULL,
            node TEXT NOT NULL,
            slot INTEGER NOT NULL,  -- Slurm's GPU index
            bench TEXT NOT NULL,
            class TEXT NOT NULL,
            valid INTEGER NOT NULL,
            json TEXT NOT NULL
        )""",  # with rowids: rows of 1 KiB in a WITHOUT ROWID table take an overflow page each
        "CREATE INDEX records_by_time ON records (ts)",
        "CREATE INDEX records_by_node ON records (node, valid, ts)",
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    ),
    (
        "ALTER TABLE records ADD COLUMN sweep TEXT NOT NULL DEFAULT ''",
        "UPDATE records SET sweep = json_extract(json, '$.sweep_id')",
        "CREATE INDEX records_by_sweep ON records (sweep, uuid, ts)",
        "CREATE INDEX records_by_gpu ON records (uuid, ts)",
        """CREATE TABLE reduced (      -- derived from the records, see reduced.py
            sweep TEXT PRIMARY KEY,
            stamp TEXT NOT NULL,        -- of what it was derived from
            data BLOB NOT NULL
        )""",
    ),
)
"""Statements from one schema version to the next; the version is their number. Append only."""

SCHEMA_VERSION = len(MIGRATIONS)

JOURNAL = "-journal"
"""What SQLite appends to a file's name for its rollback journal."""
_BESIDE = (JOURNAL, "-wal", "-shm")
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510  # the bytes that SQLite's readers lock (its "unix" VFS)

REPAIR = "then move SPOOL/ingested/* to SPOOL/incoming/; the next ingest rebuilds it from the result files"


class Schema(NamedTuple):
    """What identifies one of our SQLite files, how its tables are made, and the advice in its errors."""

    application_id: int
    version: int  # user_version after all migrations
    migrations: tuple[tuple[str, ...], ...]
    what: str  # "a database of slurm-pal"
    elsewhere: str  # what to do about a file that is not ours
    renew: str  # the command that migrates it


class SweepSpan(NamedTuple):
    """One sweep as its records show it."""

    sweep_id: str
    first_s: float  # Unix s of its oldest record
    last_s: float
    records: int
    gpus: int


class Extent(NamedTuple):
    """Which records a sweep has; equal extents mean the same records."""

    sweep_id: str
    first_s: float  # Unix s of its oldest record
    last_s: float
    records: int
    newest_row: int  # the record that was added last


class Condition(NamedTuple):
    """The environment of one GPU at one time; "" for what was not reported."""

    uuid: str
    node: str
    slot: int  # Slurm's GPU index
    ts: float  # Unix s
    driver: str
    vbios: str
    power_limit_w: str


class Inserted(NamedTuple):
    """What became of a batch of records."""

    new: int
    known: int  # the same run_id with the same content: harmless
    conflicting: tuple[str, ...]  # run_ids known with another content; the older one is kept


class Opened:
    """An open SQLite file with its writer's lock; as a context manager it closes the file and releases the lock."""

    def __init__(self, path: str, connection: sqlite3.Connection, cleanup: contextlib.ExitStack) -> None:
        self.path = path
        self._connection = connection
        self._cleanup = cleanup

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and release the writer's lock."""
        self._cleanup.close()


class Database(Opened):
    """An open database. Use `open_database`."""

    def insert(self, records: Iterable[Record], now_s: float) -> Inserted:
        """Add records, all or none; those already known are not changed.

        A time in the future becomes `now_s` (Unix s) for good: otherwise a clock that was
        once wrong would make its records the newest ones for ever.

        Raises DataError if they cannot be stored.
        """
        new = known = 0
        conflicting: list[str] = []
        with said(self.path), self._connection:
            for record in records:
                line = record.to_json()
                row = (
                    record.run_id, min(record.ts_end, now_s), record.gpu.uuid, record.node_name, record.gpu.slurm_index,
                    record.bench.id, record.bench.sensitivity_class, int(record.valid), line, record.sweep_id,
                )  # fmt: skip
                cursor = self._connection.execute("INSERT OR IGNORE INTO records VALUES (?,?,?,?,?,?,?,?,?,?)", row)
                if cursor.rowcount:
                    new += 1
                    continue
                query = "SELECT json FROM records WHERE run_id = ?"
                if self._connection.execute(query, (record.run_id,)).fetchone()[0] == line:
                    known += 1
                else:
                    conflicting.append(record.run_id)
        return Inserted(new, known, tuple(conflicting))

    def records(self, since_s: float = 0.0) -> list[Record]:
        """All records not older than `since_s` (Unix s), by time.

        Raises DataError when the file is damaged.
        """
        return list(self.by_time(since_s))

    def by_time(self, since_s: float = 0.0) -> Iterator[Record]:
        """The same, one after another; only a page of them is in memory."""
        query = "SELECT ts, run_id, json FROM records WHERE (ts, run_id) > (?, ?) ORDER BY ts, run_id LIMIT ?"
        return (_record(ts, line) for ts, _, line in self._paged(query, (), (since_s, "")))

    def _paged(self, query: str, chosen: tuple[str, ...], after: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Rows that begin with the columns that order them. No lock is held between pages: writers need not wait."""
        while True:
            with said(self.path):
                rows = self._connection.execute(query, (*chosen, *after, PAGE)).fetchall()
            yield from rows
            if len(rows) < PAGE:
                return
            after = rows[-1][: len(after)]

    def records_of(self, uuid: str) -> list[Record]:
        """All records of one GPU, by time."""
        query = "SELECT ts, json FROM records WHERE uuid = ? ORDER BY ts, run_id"
        with said(self.path):
            return [_record(ts, line) for ts, line in self._connection.execute(query, (uuid,))]

    def uuids(self, prefix: str) -> list[str]:
        """The GPUs whose UUID begins with `prefix`, in order."""
        query = "SELECT DISTINCT uuid FROM records WHERE substr(uuid, 1, ?) = ? ORDER BY uuid"
        with said(self.path):
            return [row[0] for row in self._connection.execute(query, (len(prefix), prefix))]

    def sweeps(self) -> list[SweepSpan]:
        """All sweeps with a record, ordered by their newest record."""
        query = (
            "SELECT sweep, min(ts), max(ts), count(*), count(DISTINCT uuid) "
            "FROM records GROUP BY sweep ORDER BY max(ts), sweep"
        )
        with said(self.path):
            return [SweepSpan(*row) for row in self._connection.execute(query)]

    def records_in(self, span: SweepSpan) -> list[Record]:
        """The records of one sweep, by time."""
        query = "SELECT ts, json FROM records WHERE sweep = ? ORDER BY ts, run_id"
        with said(self.path):
            return [_record(ts, line) for ts, line in self._connection.execute(query, (span.sweep_id,))]

    def extents(self, since_s: float) -> list[Extent]:
        """All sweeps with a record not older than `since_s` (Unix s), ordered by their oldest one."""
        query = (
            "SELECT sweep, min(ts) AS first, max(ts), count(*), max(rowid) FROM records "
            "GROUP BY sweep HAVING max(ts) >= ? ORDER BY first, sweep"
        )
        with said(self.path):
            return [Extent(*row) for row in self._connection.execute(query, (since_s,))]

    def by_gpu(self, sweep_id: str) -> Iterator[list[Record]]:
        """The records of one sweep, GPU by GPU in order of UUID; only one GPU's records are in memory."""
        query = (
            "SELECT uuid, ts, rowid, json FROM records WHERE sweep = ? AND (uuid, ts, rowid) > (?, ?, ?) "
            "ORDER BY uuid, ts, rowid LIMIT ?"
        )
        rows = self._paged(query, (sweep_id,), ("", 0.0, 0))
        for _, mine in itertools.groupby(rows, key=lambda row: row[0]):
            yield [_record(ts, line) for _, ts, _, line in mine]

    def newest_cluster(self) -> str:
        """The cluster that the newest record names; "" without a record."""
        query = "SELECT json_extract(json, '$.cluster') FROM records ORDER BY ts DESC, run_id DESC LIMIT 1"
        with said(self.path):
            row = self._connection.execute(query).fetchone()
        return str(row[0]) if row else ""

    def kept(self, sweep_id: str, stamp: str) -> bytes | None:
        """What was derived from a sweep under this stamp, or None."""
        query = "SELECT data FROM reduced WHERE sweep = ? AND stamp = ?"
        with said(self.path):
            row = self._connection.execute(query, (sweep_id, stamp)).fetchone()
        return row[0] if row else None

    def keep(self, sweep_id: str, stamp: str, data: bytes) -> None:
        """Keep what was derived from a sweep, in place of what was kept before."""
        with said(self.path), self._connection:
            self._connection.execute("INSERT OR REPLACE INTO reduced VALUES (?,?,?)", (sweep_id, stamp, data))

    def keep_only(self, sweep_ids: Iterable[str]) -> None:
        """Forget what was derived from all other sweeps."""
        with said(self.path), self._connection:
            held = [row[0] for row in self._connection.execute("SELECT sweep FROM reduced")]
            gone = set(held).difference(sweep_ids)
            self._connection.executemany("DELETE FROM reduced WHERE sweep = ?", [(name,) for name in sorted(gone)])

    def conditions(self, valid: bool) -> list[Condition]:
        """The environment in which each GPU was last measured (`valid`), or last seen by any run."""
        query = (
            "SELECT uuid, node, slot, max(ts), json_extract(json, '$.env.driver'), json_extract(json, '$.gpu.vbios'), "
            f"json_extract(json, '$.env.power_limit_w') FROM records {'WHERE valid = 1' if valid else ''} GROUP BY uuid"
        )
        with said(self.path):
            return [
                Condition(uuid, node, slot, ts, driver or "", vbios or "", limit_text(limit))
                for uuid, node, slot, ts, driver, vbios, limit in self._connection.execute(query)
            ]

    def __len__(self) -> int:
        with said(self.path):
            return int(self._connection.execute("SELECT count(*) FROM records").fetchone()[0])

    def last_measured(self, until_s: float = math.inf) -> dict[str, float]:
        """Node -> Unix s of its newest valid record, of those until `until_s`."""
        asked = "SELECT node, max(ts) FROM records WHERE valid = 1 AND ts <= ? GROUP BY node"
        with said(self.path):
            return dict(self._connection.execute(asked, (until_s,)))

    def epoch(self) -> int:
        """The number of the last published snapshot; 0 before the first."""
        with said(self.path):
            row = self._connection.execute("SELECT value FROM counters WHERE name = 'epoch'").fetchone()
        return int(row[0]) if row else 0

    def next_epoch(self, at_least: int = 0) -> int:
        """Increase the epoch and return the new number, which is also larger than `at_least`."""
        number = max(self.epoch(), at_least) + 1
        with said(self.path), self._connection:
            self._connection.execute("INSERT OR REPLACE INTO counters VALUES ('epoch', ?)", (number,))
        return number


def _record(ts: float, line: str) -> Record:
    record = from_json(line)
    if ts == record.ts_end:
        return record
    flags = tuple(dict.fromkeys((*record.flags, "clock_skew")))
    return replace(record, ts_start=min(record.ts_start, ts), ts_end=ts, flags=flags)


def database_path(state_dir: str) -> str:
    """The path of the database."""
    return os.path.join(state_dir, FILE_NAME)


def open_database(state_dir: str, write: bool = False) -> Database:
    """Open STATE_DIR/pal.db; with `write` create or migrate it and hold the writer's lock.

    Raises BusyError if another writer is at work, DataError if the file is missing (for
    reading), damaged, not ours, of a newer schema, or cannot be opened or created.
    """
    path = database_path(state_dir)
    with contextlib.ExitStack() as stack:
        if write:
            make_directory(state_dir, 0o755)
            stack.enter_context(writer_lock(path, "another writer of the database"))
        elif not os.path.exists(path):
            raise DataError(f"no database at {path}: {sweep_words(path)}")
        _check_trust(path)
        if write:
            create(path, _schema(), 0o644)
        with said(path):
            connection = _settled(path, stack, write)
            if write:
                with contextlib.suppress(PermissionError):  # not ours, but writable: leave its mode
                    os.chmod(path, 0o644)
        return Database(path, connection, stack.pop_all())
    raise AssertionError("unreachable")


def interrupted(state_dir: str) -> bool:
    """Whether a writer is at work or was killed; after a kill, the next one to open the database repairs it."""
    return os.path.exists(database_path(state_dir) + JOURNAL)


def _settled(path: str, stack: contextlib.ExitStack, write: bool) -> sqlite3.Connection:
    """A connection that sees the last commit. Raises as `migrate` does."""
    # Anyone who may write rolls back what a killed writer left, even only to read.
    able = write or all(os.access(name, os.W_OK, effective_ids=True) for name in (path, os.path.dirname(path)))
    connection = _connect(path, "rw" if able else "ro")
    try:
        if not write:
            connection.execute("PRAGMA query_only = ON")
        migrate(connection, path, _schema(), write)
        if write and os.path.exists(path + JOURNAL):  # no longer anything to roll back: a commit removes it
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION:d}")
    except sqlite3.OperationalError as error:
        connection.close()
        if getattr(error, "sqlite_errorname", "") != "SQLITE_READONLY_ROLLBACK":
            raise
        connection = _connect(_copied(path, stack), "rw")
        stack.callback(connection.close)
        connection.execute("PRAGMA query_only = ON")
        migrate(connection, path, _schema(), write=False)
    except BaseException:
        connection.close()
        raise
    else:
        stack.callback(connection.close)
    return connection


def _connect(path: str, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(path)}?mode={mode}", uri=True, timeout=BUSY_TIMEOUT_S)


def _copied(path: str, stack: contextlib.ExitStack) -> str:
    """A copy of a database that a killed writer left, with its rollback journal; kept as long as `stack`.

    Meanwhile SQLite's own readers' lock is held: nobody changes the file, and a new journal holds only its
    current pages. Raises BusyError, or DataError if space or permission is missing.
    """
    import fcntl

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pal-db-"))
    copy = os.path.join(folder, FILE_NAME)
    try:
        with open(path, "rb") as source:
            fcntl.lockf(source, fcntl.LOCK_SH | fcntl.LOCK_NB, _SHARED_SIZE, _SHARED_FIRST)
            with contextlib.suppress(FileNotFoundError):  # rolled back meanwhile
                shutil.copyfile(path + JOURNAL, copy + JOURNAL)
            with open(copy, "xb") as target:
                shutil.copyfileobj(source, target)
    except BlockingIOError:
        raise BusyError(f"{path} is being repaired after a writer was killed: try again") from None
    except OSError as error:
        what = f"a writer of {path} was killed, and its last state cannot be copied to {folder} ({error.strerror})"
        raise DataError(
            f"{what}: its owner runs pal-profile publish-scores, or set TMPDIR to where there is room"
        ) from None
    return copy


def create(path: str, schema: Schema, mode: int) -> None:
    """Make the database where there is no file; call it under the writer's lock.

    It gets its name only when it is complete, so an empty file is never a new database. A journal left
    by an older database that is gone is removed: SQLite would roll it back into the new one.
    Raises DataError if it cannot be made.
    """
    if os.path.lexists(path):
        return
    temporary = temporary_name(path)
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        with said(path), contextlib.closing(_connect(temporary, "rw")) as connection:
            connection.execute("PRAGMA journal_mode = MEMORY")
            migrate(connection, path, schema, write=True, new=True)
        os.chmod(temporary, mode)
        for suffix in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)
        os.rename(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            why = f"({error.strerror}): see the disk, or run as the owner of its directory"
            raise DataError(f"{path} cannot be made {why}") from None
        raise


def _schema() -> Schema:
    elsewhere = "move it away or set paths.state_dir"
    renew = "pal-profile publish-scores"
    return Schema(APPLICATION_ID, SCHEMA_VERSION, MIGRATIONS, "a database of slurm-pal", elsewhere, renew)


@contextlib.contextmanager
def writer_lock(path: str, what: str) -> Iterator[None]:
    """Hold PATH.lock while the block runs; `what` names the other writer in the error.

    Raises BusyError if somebody else holds it, DataError if it cannot be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            # Anyone who can open a file, even only to read, can lock it and keep the writer out: 0600.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            os.close(os.open(f"{path}.lock", flags, 0o600))
            stack.enter_context(locked(f"{path}.lock", what))
        except OSError as error:
            raise DataError(
                f"{path}.lock cannot be written ({error.strerror}): see the disk, or run as the owner of {path}"
            ) from None
        yield


def make_directory(path: str, mode: int) -> None:
    """Make a state directory if it is missing. Raises DataError if it cannot be made."""
    try:
        os.makedirs(path, mode=mode, exist_ok=True)
    except OSError as error:
        raise DataError(f"state directory {path} cannot be made ({error.strerror}): set paths.state_dir") from None


def _check_trust(path: str) -> None:
    """By name, before SQLite opens it: closing a descriptor of ours would release SQLite's locks."""
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"{path} cannot be examined ({error.strerror}): run as its owner") from None
    if not stat.S_ISREG(info.st_mode):
        raise DataError(f"{path} is not a regular file: move it away")
    if info.st_mode & 0o002:
        raise DataError(f"{path} can be written by everyone: chmod o-w {path}")
    check_not_empty(path, info.st_size, REPAIR)


def check_not_empty(path: str, size: int, repair: str) -> None:
    """A database is completed under another name, so a file of 0 bytes has lost its content. Raises DataError."""
    if size == 0:
        aside = f"{path}.empty-{int(time.time())}"
        raise DataError(
            f"{path} has 0 bytes, so its content is lost: put a backup in its place, or mv {path} {aside}, {repair}"
        )


def migrate(connection: sqlite3.Connection, path: str, schema: Schema, write: bool, new: bool = False) -> None:
    """Check that the file is ours and of a known schema; with `write` migrate an older (or `new`) one.

    Raises DataError if it is not ours, newer, or older and only to be read; sqlite3.Error.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    owner = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if owner != schema.application_id and not new:
        raise DataError(f"{path} is not {schema.what}: {schema.elsewhere}")
    if version > schema.version:
        raise DataError(f"{path} has schema {version}, newer than {schema.version} known here: update slurm-pal")
    if version == schema.version:
        return
    if not write:
        raise DataError(f"{path} has schema {version}, older than {schema.version}: run {schema.renew} to migrate it")
    # One transaction, and the version last: a crash in between leaves the old schema.
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in (s for step in schema.migrations[version:] for s in step):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {schema.application_id:d}")
        connection.execute(f"PRAGMA user_version = {schema.version:d}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has already ended it
            connection.execute("ROLLBACK")
        raise
    connection.isolation_level = "DEFERRED"


@contextlib.contextmanager
def said(path: str, repair: str = REPAIR) -> Iterator[None]:
    """Explain SQLite's errors and what to do about them; `repair` is the step after moving a damaged file away.

    Raises BusyError if another program holds SQLite's lock, else DataError.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _told(path, repair, error) from None


def _told(path: str, repair: str, error: sqlite3.Error) -> DataError | BusyError:
    code = getattr(error, "sqlite_errorname", "")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return BusyError(f"{path} is locked by another program: try again, or see fuser {path}")
    if code.startswith("SQLITE_FULL"):
        free = os.path.dirname(path)
        return DataError(f"no space left for {path}, nothing was stored: free some on {free} and run again")
    if code == "SQLITE_READONLY_ROLLBACK":
        return BusyError(f"a writer of {path} was killed while it was read: try again")
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return DataError(f"{path} cannot be opened or written ({error}): run as its owner, or chown it")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        aside = f"{path}.damaged-{int(time.time())}"
        return DataError(f"{path} is damaged ({error}): mv {path} {aside}, {repair}")
    return DataError(f"{path} cannot be used ({code or type(error).__name__}: {error}): see disk, quota and dmesg")
