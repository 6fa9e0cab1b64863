"""A second way to a database, for tests that look at rows or write them by hand: an engine of SQLAlchemy.

It knows nothing of the store and shares no code with it, so what a test reads here is what is really in the tables.
`get_database` is the product's own way to the same database, for the store under test.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Pool, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from tests.support.inline_sqlite import connect_inline

from indelible.store.database.address import describe, parse_address
from indelible.store.database.postgres import PostgresDatabase
from indelible.store.database.sqlite import SqliteDatabase

T = TypeVar("T")
OpenDatabase = SqliteDatabase | PostgresDatabase

_DEFERRED: Final = "deferred"
_FLUSH: Final = "SELECT pg_stat_force_next_flush()"
_opened: Final[dict[tuple[int, int], tuple[Pool, OpenDatabase]]] = {}
"""By event loop, and by the pool, which an engine shares with those that are made of it with other options."""


async def open_engine(database: str | Path, *, pool_size: int = 10) -> AsyncEngine:
    """An engine on the database of this address. Dispose of it at the end."""
    address = parse_address(database)
    if address.is_sqlite:
        engine = create_async_engine(
            f"sqlite+aiosqlite:///{address.path}",
            pool_size=pool_size,
            async_creator=lambda: connect_inline(str(address.path)),
        )
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    return create_async_engine(make_url(str(database)).set(drivername="postgresql+asyncpg"), pool_size=pool_size)


def get_database(engine: AsyncEngine) -> OpenDatabase:
    """The product's own way to the database of this engine: the same one for a whole test."""
    pool = engine.sync_engine.pool
    key = id(asyncio.get_running_loop()), id(pool)
    if key not in _opened:
        address = parse_address(get_name(engine))
        opened: OpenDatabase = (
            SqliteDatabase(address.make_sqlite_name(), where=describe(address))
            if address.is_sqlite
            else PostgresDatabase(address.make_postgres_options(), where=describe(address))
        )
        _opened[key] = pool, opened
    return _opened[key][1]


async def transact(engine: AsyncEngine, work: Callable[..., Coroutine[Any, Any, T]], *given: Any, **named: Any) -> T:
    """Do a piece of the store's own work, a query or a part of a command, in a transaction of its own."""
    return await get_database(engine).write(lambda transaction: work(transaction, *given, **named))


async def flush_statistics(engine: AsyncEngine) -> None:
    """Have PostgreSQL count what every idle connection of both ways to the database has done until now."""
    for urgent in (False, True):
        await get_database(engine).write(lambda transaction: transaction.all(_FLUSH), urgent=urgent)
    async with begin_write(engine) as connection:
        await connection.execute(text(_FLUSH))


async def close_databases() -> None:
    """At the end of every test that has an engine."""
    own = [key for key in _opened if key[0] == id(asyncio.get_running_loop())]
    for key in own:
        await _opened.pop(key)[1].close()


def get_name(engine: AsyncEngine) -> str:
    """The address of a database, as a user would write it."""
    if is_sqlite(engine):
        return str(engine.url.database)
    return engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


def is_sqlite(engine: AsyncEngine) -> bool:
    return engine.dialect.name == "sqlite"


@asynccontextmanager
async def begin_write(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that may write; on SQLite it has the one write lock from the start."""
    async with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def begin_read(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that sees one moment of the database."""
    async with engine.connect() as connection:
        if is_sqlite(engine):
            await connection.execution_options(**{_DEFERRED: True})
        else:
            await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        async with connection.begin():
            yield connection


def run_on_sqlite(engine: AsyncEngine, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do some work on a connection to the file that is closed afterwards."""
    with closing(sqlite3.connect(str(engine.url.database), isolation_level=None)) as file:
        return work(file)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    deferred = connection.get_execution_options().get(_DEFERRED, False)
    connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")
