"""SQLite: one thread that writes, a few that read, and one durable commit for all concurrent writes (group commit).

A transaction is one visit to a thread. Work that writes is queued, and its caller waits for a future. The writer
takes everything in the queue, runs it in one transaction, each job in its own savepoint so that a refused job does not
affect the others, and commits once: a commit costs an fsync, and the work of a hundred users shares it. Callers get
their results only after the commit. Urgent work (the journal, heartbeats) goes first, and a group ends after a few
milliseconds, so no caller waits long behind others (sqlite_jobs.py).

Python's `sqlite3` is called directly, because a layer with a thread hop per call cost ten times as much as the
statements themselves (docs/decisions/0010).

Every connection is configured before its first use: write-ahead log, `synchronous=FULL` (with the log, NORMAL would
lose commits on a power cut), foreign keys on, and a busy timeout for other processes. A write transaction begins
IMMEDIATE, because one that reads first and then writes fails at once if another process wrote meanwhile (R12).

The writer notices that the file was deleted or replaced under the process before it reports anything as written
(sqlite_file.py).

If the database itself ends a transaction (a full disk, an I/O error), the job that met the error gets it, and the
rest of the group runs again. If the commit fails, every job in the group gets the error.

Must stay true (tests/store/test_sqlite.py, test_open.py): a result arrives only after its commit; a refused job leaves
nothing behind and affects no other; a cancelled caller leaves no transaction open (test_run_to_completion.py); `close`
leaves no thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import msgspec

from indelible.concurrency.tasks import run_to_completion
from indelible.logs import get_logger
from indelible.store.database.errors import DatabaseUnreachable, DatabaseUnusable
from indelible.store.database.sqlite_file import SqliteFile, create_private_file
from indelible.store.database.sqlite_jobs import Job, ReaderQueue, ServingThread, WriterQueue, deliver, drive, fail
from indelible.store.database.transaction import (
    Dialect,
    Owner,
    Row,
    Transaction,
    Work,
    bind,
    clean_label,
    clean_list,
    format_time,
    make_closed,
    translate_statement,
)

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 5_000
READERS: Final = 3
"""The most threads that read. One thread reads until a read has waited too long behind a slow one, and again when no
read is slow: Python's threads share one lock, and three readers cost a fifth more CPU per turn than one."""
SLOW_READ_S: Final = 0.1
"""How long a read waits before another thread comes to read."""

LOWER: Final = "indelible_lower"
"""A function for all of Unicode; SQLite's own `lower` handles only ASCII."""

_log: Final = get_logger(__name__)
_CACHED_STATEMENTS: Final = 400
_SWITCH_TRIES: Final = 100
_encode_list: Final = msgspec.json.Encoder().encode


class SqliteTransaction:
    """See transaction.py. No method suspends: work runs without a break in the connection's thread."""

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, connection: sqlite3.Connection, observe: Callable[[str], object] | None) -> None:
        self._connection = connection
        self._observe = observe

    async def run(self, sql: str, *values: Any) -> int:
        return self._execute(sql, values).rowcount

    async def one(self, sql: str, *values: Any) -> Row:
        cursor = self._execute(sql, values)
        row = cursor.fetchone()
        cursor.close()  # an open one would keep the read transaction alive for as long as it is referenced
        return row

    async def all(self, sql: str, *values: Any) -> list[Row]:
        return self._execute(sql, values).fetchall()

    async def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int | None:
        if self._observe is not None:
            self._observe(sql)
        statement = translate_statement(sql)
        arranged = rows if statement.order is None else map(statement.arrange, rows)
        return self._connection.executemany(statement.sql, map(_bind, arranged)).rowcount

    async def defer(self, sql: str, *values: Any) -> None:
        self._execute(sql, values)

    async def lock(self, sql: str, *values: Any) -> bool:  # noqa: ARG002 - the whole file is locked
        return True

    async def now(self) -> datetime:
        return datetime.now(UTC)

    def _execute(self, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
        if self._observe is not None:
            self._observe(sql)
        statement = translate_statement(sql)
        return self._connection.execute(statement.sql, _bind(statement.arrange(values)))


class SqliteDatabase:
    """See `Database` in transaction.py. `path` is a file, or SQLite's URI of one.

    `observe` is called with every statement, in the thread that runs it; tests count statements with it.
    """

    dialect: Final[Dialect] = "sqlite"

    def __init__(self, path: str, *, where: str) -> None:
        self.observe: Callable[[str], object] | None = None
        self._path = path
        self._where = where
        self._is_closed = False
        self._owner = Owner(where)
        self._file = SqliteFile(where)
        self._writing: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._writer: ServingThread | None = None
        self._reading = ReaderQueue(READERS)
        self._urgent_reading = ReaderQueue(1)

    @classmethod
    async def open(cls, path: str, *, where: str) -> SqliteDatabase:
        """Connect and try to write, so that a faulty file is reported now and not by the first user's message."""
        database = cls(path, where=where)
        try:
            # A long write by another process, perhaps a migration, does not mean that the file is faulty.
            with suppress(_Undone, DatabaseUnreachable):
                await database.write(_try_to_write)
        except BaseException:
            await database.close()
            raise
        return database

    async def write(
        self,
        work: Work[T],
        *,
        urgent: bool = False,
        slow: bool = False,
        single: bool = False,
        on_committed: Callable[[T], object] | None = None,
    ) -> T:
        self._check_usable()
        if self._writer is None:
            self._writer = ServingThread("sqlite writer", self._serve_writes)
        job: Job[T] = Job(work, urgent=urgent, slow=slow, single=single, on_committed=on_committed)
        self._writing.put(job)
        return await job.result

    async def read(self, work: Work[T], *, urgent: bool = False, single: bool = False) -> T:
        self._check_usable()
        line = self._urgent_reading if urgent else self._reading
        job: Job[T] = Job(work, single=single)
        line.jobs.put(job)
        if not line.threads:
            self._add_reader(line)
        timer = job.loop.call_later(SLOW_READ_S, self._help, line, job)
        try:
            return await job.result
        finally:
            timer.cancel()

    def _help(self, line: ReaderQueue, job: Job[Any]) -> None:
        """Nobody has begun to read for this one yet: those before it are slow."""
        line.threads = [thread for thread in line.threads if not thread.has_ended]
        if not job.has_begun and len(line.threads) < line.size and not self._is_closed:
            self._add_reader(line)

    def _add_reader(self, line: ReaderQueue) -> None:
        serve = partial(self._serve_reads, line, is_helper=bool(line.threads))
        line.threads.append(ServingThread("sqlite reader", serve))

    @run_to_completion
    async def close(self) -> None:
        self._is_closed = True
        for line in (self._reading, self._urgent_reading):
            for _ in line.threads:
                line.jobs.put(None)
            while line.threads:
                await line.threads.pop().wait_for_end()
        # The writer closes last and alone. The last connection moves the log into the file and removes it; if two
        # closed at the same time, each would leave that to the other.
        if self._writer is not None:
            self._writing.put(None)
            await self._writer.wait_for_end()
            self._writer = None

    def _check_usable(self) -> None:
        if self._is_closed:
            raise make_closed(self._where)
        self._owner.check()

    # --- the reading threads ---

    def _serve_reads(self, line: ReaderQueue, *, is_helper: bool) -> None:
        connection: sqlite3.Connection | None = None
        while (job := line.jobs.get()) is not None:
            line.reading.add(job)
            job.has_begun = True
            try:
                self._file.check_sometimes()
                connection = connection or self._connect(is_writer=False)
                self._read(connection, job)
            except BaseException as error:
                job.error = error
            line.reading.discard(job)
            deliver([job], self._where)
            if is_helper and not line.reading:  # nothing slow is being read any more
                break
        if connection is not None:
            connection.close()

    def _read(self, connection: sqlite3.Connection, job: Job[Any]) -> None:
        if not job.single:
            self._execute(connection, "BEGIN")
        try:
            job.value = drive(job.work(SqliteTransaction(connection, self.observe)))
        finally:
            if connection.in_transaction:
                self._execute(connection, "ROLLBACK")

    # --- the writing thread ---

    def _serve_writes(self) -> None:
        line = WriterQueue(self._writing)
        try:
            self._write_all(line)
        except BaseException as error:  # a bug, or no memory: no caller may wait for a dead thread
            self._is_closed = True
            _log.critical("the writer of %s has ended; restart the process", self._where, exc_info=error)
            line.drain()
            deliver(fail(line.pop_all(), make_closed(self._where)), self._where)

    def _write_all(self, line: WriterQueue) -> None:
        connection: sqlite3.Connection | None = None
        while line.wait():
            try:
                self._file.check()
                connection = connection or self._connect(is_writer=True)
                self._execute(connection, "BEGIN IMMEDIATE")
            except BaseException as error:
                answered = fail(line.pop_all(), error)
            else:
                answered = self._write_group(connection, line)
                connection = _reset(connection)
            deliver(answered, self._where)
        if connection is not None:
            connection.close()

    def _write_group(self, connection: sqlite3.Connection, line: WriterQueue) -> list[Job[Any]]:
        """Run the queued jobs in the open transaction; returns the jobs to answer now."""
        transaction = SqliteTransaction(connection, self.observe)
        group: list[Job[Any]] = []
        is_alone = len(line) == 1
        try:
            for job in line.pop_group():
                group.append(job)
                self._perform(connection, transaction, job, is_alone=is_alone)
                if not connection.in_transaction:  # the database ended it, and undid the other jobs
                    line.put_back(group[:-1])
                    return fail([job], RuntimeError("The database ended the transaction, and nothing was written."))
            self._execute(connection, "COMMIT" if any(job.error is None for job in group) else "ROLLBACK")
            self._file.check()
        except BaseException as error:  # in any case this thread must keep serving later jobs
            return fail(group, error)
        return group

    def _perform(
        self, connection: sqlite3.Connection, transaction: SqliteTransaction, job: Job[Any], *, is_alone: bool
    ) -> None:
        """A job alone in its transaction needs no savepoint: if it fails, the transaction is rolled back."""
        job.error = None
        if not is_alone:
            connection.execute("SAVEPOINT job")
        try:
            job.value = drive(job.work(transaction))
        except BaseException as error:
            job.error = error
            if not is_alone and connection.in_transaction:
                connection.execute("ROLLBACK TO job")
        if not is_alone and connection.in_transaction:
            connection.execute("RELEASE job")

    def _connect(self, *, is_writer: bool) -> sqlite3.Connection:
        if is_writer:
            create_private_file(self._path)
        connection = connect(self._path)
        try:
            self._file.note_connected(connection, is_writer=is_writer)
        except BaseException:
            connection.close()
            raise
        return connection

    def _execute(self, connection: sqlite3.Connection, sql: str) -> None:
        if self.observe is not None:
            self.observe(sql)
        connection.execute(sql)


# --- connections and values ----------------------------------------------------------------


def connect(path: str) -> sqlite3.Connection:
    """A connection with durable commits, for the calling thread."""
    connection = sqlite3.connect(
        path, uri=path.startswith("file:"), isolation_level=None, cached_statements=_CACHED_STATEMENTS
    )
    try:
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        _switch_log_on(connection)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.create_function(LOWER, 1, _lower, deterministic=True)
        connection.row_factory = sqlite3.Row
    except BaseException:
        connection.close()
        raise
    return connection


def _reset(connection: sqlite3.Connection) -> sqlite3.Connection | None:
    """The connection without a transaction; None if the rollback failed and a new connection is needed."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except BaseException:
        with suppress(Exception):
            connection.close()
        return None
    return connection


def _switch_log_on(connection: sqlite3.Connection) -> None:
    """If several processes do this on a new file, all but one get SQLITE_BUSY at once, without the timeout."""
    for _ in range(_SWITCH_TRIES):
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            connection.execute("BEGIN IMMEDIATE")  # which does wait
            connection.execute("ROLLBACK")
        else:
            if mode == "wal":
                return
            break
    raise DatabaseUnusable(
        "The database's file system does not support shared memory, which SQLite's write-ahead log needs."
    )


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


class _Undone(Exception):
    """Raised to roll back a trial transaction."""


async def _try_to_write(transaction: Transaction) -> None:
    """Fails if the file is read-only, which BEGIN IMMEDIATE does not report."""
    await transaction.run("PRAGMA user_version = 0")
    raise _Undone


def _bind(values: Sequence[Any]) -> list[Any]:
    return bind(values, _BINDERS)


def _bind_list(values: Sequence[Any]) -> str:
    return _encode_list(clean_list(values)).decode()


_BINDERS: Final[dict[type, Callable[[Any], Any]]] = {
    str: clean_label,
    datetime: format_time,
    list: _bind_list,
    tuple: _bind_list,
}
