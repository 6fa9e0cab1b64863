"""Opening a database so that a commit is durable.

Every connection is set up before anybody uses it:

* SQLite: write-ahead log, `synchronous=FULL` (with the log, NORMAL would lose commits on a power cut), foreign
  keys on, and a busy timeout. A transaction begins IMMEDIATE, because one that reads first and then wants
  to write fails at once when somebody else wrote meanwhile (R12); only `begin_read` begins without the lock.
* PostgreSQL: `synchronous_commit=on` even where the server's default is another, and READ COMMITTED, which R1 and
  R2 are built on; `begin_read` is one snapshot that cannot write (R9).

`open_engine` connects before it returns, so that a faulty database is reported at startup, in one sentence
(errors.py), and not by the first user's message. Later failures are reported in the same way, and no caller has to
know a driver's errors, except those about the data itself.

A SQLite connection lives on a thread of its own, and a visit there costs more than a small statement. Frequent work
makes one visit (`run_on_sqlite`), to a connection that the engine keeps for this outside its pool: checking one out
and returning it took longer than a commit on a fast disk. A connection of the pool with nothing to roll back
returns there without any visit.

Must stay true (tests/store/test_engine.py): `read_durability` says so for every connection of the pool, and the one
beside it is set up alike; a write never fails for having read first; no caller gets a connection with a transaction
open; a disposed engine leaves no connection behind.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, Engine, ExceptionContext, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import PoolResetState
from sqlalchemy.util import await_only

from indelible.concurrency.tasks import UncancellableFuture, run_to_completion
from indelible.store.database.address import describe, get_sqlite_path, parse_address
from indelible.store.database.errors import DatabaseUnusable, is_about_data, read_failure

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 5_000
CONNECT_TIMEOUT_S: Final = 10
POOL_SIZE: Final = 10

LOWER: Final = "indelible_lower"
"""A function of SQLite that knows every alphabet."""

_DEFERRED: Final = "indelible_deferred"
_COMMAND_TIMEOUT_S: Final = 30
_kept: Final[WeakKeyDictionary[Engine, Any]] = WeakKeyDictionary()
_lines: Final[WeakKeyDictionary[AsyncEngine, asyncio.Lock]] = WeakKeyDictionary()
_doors: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]]] = WeakKeyDictionary()
_SWITCH_TRIES: Final = 100
_SQLITE_PRAGMAS: Final = ("busy_timeout", "journal_mode", "synchronous", "foreign_keys")
_POSTGRES_SETTINGS: Final = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "application_name": "indelible",
    # A worker that freezes in the middle of a transaction must not hold its locks for longer than its lease, and
    # nobody waits for a lock for ever.
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "5s",
}


async def open_engine(database: str | Path, *, pool_size: int = POOL_SIZE, is_patient: bool = False) -> AsyncEngine:
    """Connect to a database, new or not. Raises `StoreFailed` with the reason. Dispose of the engine at the end.

    `is_patient`: a statement may take as long as it needs. Only for a migration.
    """
    url = parse_address(database)
    if is_sqlite(url):
        engine = _make_sqlite_engine(url, pool_size)
    else:
        engine = _make_postgres_engine(url, pool_size, is_patient=is_patient)
    try:
        async with engine.connect() as connection:
            await (_try_to_write_sqlite if is_sqlite(url) else _refuse_read_only_server)(connection)
    except Exception as error:
        await engine.dispose()
        raise read_failure(error, describe(url)) from error
    return engine


def is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


@asynccontextmanager
async def begin_write(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that may write; on SQLite it has the one write lock from the start.

    A failing database raises a `StoreFailed`; an error about the data is the driver's own.
    """
    with translate_failures(engine.url):
        async with _wait_for_turn(engine), engine.begin() as connection:
            yield connection


@asynccontextmanager
async def _wait_for_turn(engine: AsyncEngine) -> AsyncIterator[None]:
    """SQLite has one writer at a time and picks the next one at random; within this process writers queue in order.

    Every engine has its own queue, and only the first of each queue competes for the file. So an engine with a short
    queue, like the journal's, never waits behind a long one.
    """
    if not is_sqlite(engine.url):
        yield
        return
    async with _find_line(engine), _find_door(engine):
        yield


def _find_line(engine: AsyncEngine) -> asyncio.Lock:
    return _lines.setdefault(engine, asyncio.Lock())


def _find_door(engine: AsyncEngine) -> asyncio.Lock:
    doors = _doors.setdefault(asyncio.get_running_loop(), {})
    return doors.setdefault(str(engine.url.database), asyncio.Lock())


@asynccontextmanager
async def begin_read(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A read-only transaction that sees one moment of the database. It fails as `begin_write` does."""
    with translate_failures(engine.url):
        async with engine.connect() as connection:
            if is_sqlite(engine.url):
                await connection.execution_options(**{_DEFERRED: True})
            else:
                await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            async with connection.begin():
                yield connection


async def run_on_sqlite(engine: AsyncEngine, work: Callable[[sqlite3.Connection], T]) -> T:
    """Visit the thread of the reserved connection once, and do all the work there.

    The work begins and commits its own transaction; one that it leaves open is rolled back. A cancelled caller waits
    until the work has ended (whole.py). It fails as `begin_write` does.
    """
    with translate_failures(engine.url):
        async with _find_line(engine), _find_door(engine):
            driver: Any = _kept.get(engine.sync_engine) or await _keep_connection(engine)
            done: UncancellableFuture[T] = UncancellableFuture()
            driver._tx.put_nowait((done, partial(_visit, driver._conn, work)))
            return await done


@run_to_completion
async def _keep_connection(engine: AsyncEngine) -> Any:
    """Detach a connection from the pool for good; the pool opens another when it needs one."""
    connection = await engine.raw_connection()
    driver = _kept[engine.sync_engine] = connection.driver_connection
    connection.detach()
    return driver


def _visit(file: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    try:
        return work(file)
    finally:
        if file.in_transaction:
            file.rollback()


@contextmanager
def translate_failures(url: URL) -> Iterator[None]:
    """Translate a failure of the database into `StoreFailed`. Refused data is not a failure of the database."""
    try:
        yield
    except (DBAPIError, PoolExhausted, sqlite3.Error, OSError) as error:
        if is_about_data(error):
            raise
        raise read_failure(error, describe(url)) from error


async def read_durability(connection: AsyncConnection) -> dict[str, str]:
    """The durability settings of this connection, read from the database itself. It begins no transaction."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    if is_sqlite(connection.engine.url):
        return {name: str((await _fetch_one(driver, f"PRAGMA {name}"))[0]) for name in _SQLITE_PRAGMAS}
    return {name: await driver.fetchval(f"SHOW {name}") for name in _POSTGRES_SETTINGS}


async def _fetch_one(driver: Any, statement: str) -> Any:
    async with driver.execute(statement) as cursor:
        return await cursor.fetchone()


# --- SQLite --------------------------------------------------------------------------------


def _make_sqlite_engine(url: URL, pool_size: int) -> AsyncEngine:
    directory = get_sqlite_path(url).absolute().parent
    if not directory.is_dir():
        raise DatabaseUnusable(
            f"Can't create the database: the directory {directory} does not exist. Create it, or choose another file."
        )
    # Without an isolation level the driver begins nothing by itself, and `_begin_sqlite` decides.
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        pool_reset_on_return=None,
        hide_parameters=True,  # user content must not reach the log
        connect_args={"isolation_level": None},
    )
    event.listen(engine.sync_engine, "connect", _set_up_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    event.listen(engine.sync_engine, "reset", _reset_sqlite)
    event.listen(engine.sync_engine, "engine_disposed", _close_kept)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    _switch_log_on(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
    connection.run_async(lambda driver: driver.create_function(LOWER, 1, _lower, deterministic=True))


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def _switch_log_on(cursor: Any) -> None:
    """When several processes do this to a new file, all but one get SQLITE_BUSY at once, without the timeout."""
    for _ in range(_SWITCH_TRIES):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            cursor.execute("BEGIN IMMEDIATE")  # which does wait
            cursor.execute("ROLLBACK")
        else:
            break
    cursor.execute("PRAGMA journal_mode")
    if cursor.fetchone() != ("wal",):
        raise DatabaseUnusable(
            "The database's file system does not support shared memory, which SQLite's write-ahead log needs."
        )


def _begin_sqlite(connection: Connection) -> None:
    deferred = connection.get_execution_options().get(_DEFERRED, False)
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")


def _reset_sqlite(connection: Any, _record: object, state: PoolResetState) -> None:
    """Roll back what was left open, before the connection goes back into the pool."""
    if not state.terminate_only and connection.driver_connection.in_transaction:
        connection.rollback()


def _close_kept(engine: Engine) -> None:
    kept = _kept.pop(engine, None)
    if kept is not None:
        await_only(kept.close())


async def _try_to_write_sqlite(connection: AsyncConnection) -> None:
    """Fails if the file is read-only, which BEGIN IMMEDIATE does not report. It is never committed."""
    await connection.execute(text("PRAGMA user_version = 0"))


# --- PostgreSQL ----------------------------------------------------------------------------


def _make_postgres_engine(url: URL, pool_size: int, *, is_patient: bool) -> AsyncEngine:
    if importlib.util.find_spec("asyncpg") is None:
        raise DatabaseUnusable("PostgreSQL needs a driver: pip install 'indelible[postgres]'.")
    # asyncpg wants a number, and a URL holds only text.
    timeout_s = float(str(url.query.get("timeout", CONNECT_TIMEOUT_S)))
    # Without the second one a silent network would block for ever. A migration may rewrite tables for many minutes.
    limits = {"timeout": timeout_s, "command_timeout": None if is_patient else _COMMAND_TIMEOUT_S}
    engine = create_async_engine(url, pool_size=pool_size, hide_parameters=True, connect_args=limits)
    event.listen(engine.sync_engine, "connect", _set_up_postgres)
    event.listen(engine.sync_engine, "handle_error", _give_up_all_after_silence)
    return engine


def _set_up_postgres(connection: Any, _record: object) -> None:
    # Not as connection parameters: poolers refuse those that they do not know.
    settings = "; ".join(f"SET {name} = '{value}'" for name, value in _POSTGRES_SETTINGS.items())
    connection.run_async(lambda driver: driver.execute(settings))


def _give_up_all_after_silence(context: ExceptionContext) -> None:
    """If one connection is silent, the others are too, and each would be waited for in turn."""
    if isinstance(context.original_exception, TimeoutError):
        context.invalidate_pool_on_disconnect = True


async def _refuse_read_only_server(connection: AsyncConnection) -> None:
    if (await connection.execute(text("SHOW transaction_read_only"))).scalar_one() == "on":
        where = describe(connection.engine.url)
        raise DatabaseUnusable(f"{where} is read-only. Use the primary server, not a replica.")
