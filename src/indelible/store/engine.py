"""Opening a database so that a commit is durable.

Every connection is set up before anybody uses it:

* SQLite: write-ahead log, `synchronous=FULL` (with the log, NORMAL would lose commits on a power cut), foreign
  keys on, and a busy timeout. A transaction begins IMMEDIATE, because one that reads first and then wants
  to write fails at once when somebody else wrote meanwhile (R12); only `begin_read` begins without the lock.
* PostgreSQL: `synchronous_commit=on` even where the server's default is another, and READ COMMITTED, which R1 and
  R2 are built on; `begin_read` is one snapshot that cannot write (R9).

`open_engine` connects before it returns, so that whatever is wrong with a database is told at the start, in one
sentence (failures.py), and not by the first user's message.

Must stay true (tests/store/test_engine.py): `read_durability` says so for every connection of the pool; a write
never fails for having read first.
"""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from indelible.store.address import describe, get_sqlite_path, parse_address
from indelible.store.failures import DatabaseUnusable, read_failure

BUSY_TIMEOUT_MS: Final = 5_000
CONNECT_TIMEOUT_S: Final = 10
POOL_SIZE: Final = 10

_DEFERRED: Final = "indelible_deferred"
_SWITCH_TRIES: Final = 100
_SQLITE_PRAGMAS: Final = ("busy_timeout", "journal_mode", "synchronous", "foreign_keys")
_POSTGRES_SETTINGS: Final = {
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "application_name": "indelible",
}


async def open_engine(database: str | Path, *, pool_size: int = POOL_SIZE) -> AsyncEngine:
    """Connect to a database, new or not. Raises a `StoreFailed` that says what is wrong. Dispose of it at the end."""
    url = parse_address(database)
    engine = _make_sqlite_engine(url, pool_size) if is_sqlite(url) else _make_postgres_engine(url, pool_size)
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
    """A transaction that may write; on SQLite it has the one write lock from the start."""
    async with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def begin_read(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that only reads, and sees one moment of the database however long it takes."""
    async with engine.connect() as connection:
        if is_sqlite(engine.url):
            await connection.execution_options(**{_DEFERRED: True})
        else:
            await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        async with connection.begin():
            yield connection


async def read_durability(connection: AsyncConnection) -> dict[str, str]:
    """What this connection really does, asked of the database itself. It begins no transaction."""
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
        raise DatabaseUnusable(f"There is no directory {directory} for the database. Create it, or name another file.")
    # Without an isolation level the driver begins nothing by itself, and `_begin_sqlite` decides.
    engine = create_async_engine(url, pool_size=pool_size, connect_args={"isolation_level": None})
    event.listen(engine.sync_engine, "connect", _set_up_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    _switch_log_on(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _switch_log_on(cursor: Any) -> None:
    """Of several that do this to a new file at once, all but one are told at once that it is busy, without waiting."""
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
        raise DatabaseUnusable("The database's file system has no shared memory, which SQLite's log needs.")


def _begin_sqlite(connection: Connection) -> None:
    deferred = connection.get_execution_options().get(_DEFERRED, False)
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")


async def _try_to_write_sqlite(connection: AsyncConnection) -> None:
    """Fails if the file is read-only, of which BEGIN IMMEDIATE says nothing. It is never committed."""
    await connection.execute(text("PRAGMA user_version = 0"))


# --- PostgreSQL ----------------------------------------------------------------------------


def _make_postgres_engine(url: URL, pool_size: int) -> AsyncEngine:
    if importlib.util.find_spec("asyncpg") is None:
        raise DatabaseUnusable("PostgreSQL needs a driver: pip install 'indelible[postgres]'.")
    # asyncpg wants a number, and a URL holds only text.
    timeout_s = float(str(url.query.get("timeout", CONNECT_TIMEOUT_S)))
    engine = create_async_engine(url, pool_size=pool_size, connect_args={"timeout": timeout_s})
    event.listen(engine.sync_engine, "connect", _set_up_postgres)
    return engine


def _set_up_postgres(connection: Any, _record: object) -> None:
    # Not as parameters of the connection: poolers refuse those they do not know.
    settings = "; ".join(f"SET {name} = '{value}'" for name, value in _POSTGRES_SETTINGS.items())
    connection.run_async(lambda driver: driver.execute(settings))


async def _refuse_read_only_server(connection: AsyncConnection) -> None:
    if (await connection.execute(text("SHOW transaction_read_only"))).scalar_one() == "on":
        where = describe(connection.engine.url)
        raise DatabaseUnusable(f"{where} is read-only. Name the primary server, not a replica.")
