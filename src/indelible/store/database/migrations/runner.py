"""Running the revisions: Alembic, in one transaction, on a connection of its own.

SQLAlchemy and Alembic are imported here and nowhere else in the product, and only if a database has to be upgraded:
importing them takes longer than everything else that a process does before it listens.

On SQLite, changing a table means rebuilding it and dropping the old one; with foreign keys on, that would
delete every row that refers to it. So they are off during a migration, and checked before the commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import SetColumnComment, SetTableComment

from indelible.concurrency.tasks import run_to_completion
from indelible.store.database import migrate
from indelible.store.database.address import Address, describe
from indelible.store.database.errors import DatabaseUnusable, is_about_data, read_failure
from indelible.store.database.postgres import connect
from indelible.store.database.tables import accounts, files, lists
from indelible.store.database.tables.chats import metadata

# The imports add their tables.
assert accounts.sessions.metadata is metadata
assert files.files.metadata is metadata
assert lists.search_entries.metadata is metadata

_ADVISORY_LOCK: Final = 0x1DE11B1E
_WAIT_FOR_MIGRATION_MS: Final = 600_000
_LOCKED_FIRST: Final = ("chats", "turns", "attempts", "messages", "queue", "events", "journal", "tool_runs")


@run_to_completion
async def upgrade(address: Address, goal: str) -> str | None:
    """Upgrade the database to this revision; returns the previous one. Safe to run concurrently."""
    try:
        if address.is_sqlite:
            return await asyncio.to_thread(_upgrade_sqlite, address, goal)
        return await _upgrade_postgres(address, goal)
    except (DBAPIError, sqlite3.Error, OSError) as error:
        if is_about_data(error):
            raise
        raise read_failure(error, describe(address)) from error


def _upgrade_sqlite(address: Address, goal: str) -> str | None:
    engine = _make_sqlite_engine(address)
    try:
        with engine.begin() as connection:
            return _run_revisions(connection, goal, describe(address))
    finally:
        engine.dispose()


def _make_sqlite_engine(address: Address) -> Engine:
    def open_file() -> sqlite3.Connection:
        file = sqlite3.connect(address.make_sqlite_name(), uri=address.mode is not None, isolation_level=None)
        file.execute(f"PRAGMA busy_timeout={_WAIT_FOR_MIGRATION_MS}")
        file.execute("PRAGMA synchronous=FULL")
        file.execute("PRAGMA foreign_keys=OFF")
        return file

    engine = create_engine("sqlite://", creator=open_file, poolclass=NullPool, hide_parameters=True)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


async def _upgrade_postgres(address: Address, goal: str) -> str | None:
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415  (it comes with the extra `postgres`)

    # A migration may rewrite tables for many minutes, so no statement has a limit.
    open_connection: Any = partial(connect, address.make_postgres_options(), command_timeout_s=None)
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=open_connection, poolclass=NullPool, hide_parameters=True
    )
    try:
        async with engine.begin() as connection:
            for limit in ("lock_timeout", "statement_timeout"):  # another process may take long, and so may this one
                await connection.execute(text(f"SET LOCAL {limit} = 0"))
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
            return await connection.run_sync(_run_revisions, goal, describe(address))
    finally:
        await engine.dispose()


def _run_revisions(connection: Connection, goal: str, where: str) -> str | None:
    is_sqlite = connection.dialect.name == "sqlite"
    before = MigrationContext.configure(
        connection, opts={"version_table": migrate.VERSION_TABLE}
    ).get_current_revision()
    migrate.refuse_unknown(before, where)
    if before is None:
        _refuse_strangers(connection, where)
    elif not is_sqlite:
        # In the order in which commands lock, so that a running process waits and does not deadlock.
        connection.execute(text(f"LOCK TABLE {', '.join(_LOCKED_FIRST)} IN ACCESS EXCLUSIVE MODE"))
    command.upgrade(make_config(connection), goal)
    if is_sqlite:
        _refuse_orphans(connection, where)
    elif goal == migrate.HEAD:
        _write_comments(connection)
    return before


def make_config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection, "version_table": migrate.VERSION_TABLE})
    config.set_main_option("script_location", "indelible.store.database:migrations")
    return config


def _refuse_orphans(connection: Connection, where: str) -> None:
    broken = {row[0] for row in connection.exec_driver_sql("PRAGMA foreign_key_check")}
    if broken:
        raise DatabaseUnusable(
            f"{where} is damaged: rows of {', '.join(sorted(broken))} refer to rows that do not exist. "
            "Nothing was changed. Restore it from a backup."
        )


def _refuse_strangers(connection: Connection, where: str) -> None:
    tables = set(inspect(connection).get_table_names())
    if connection.dialect.name != "sqlite":
        tables &= set(metadata.tables)  # other applications may share the server
    if tables:
        raise DatabaseUnusable(
            f"{where} holds tables of another application ({', '.join(sorted(tables)[:3])}). "
            "Use a separate database for Indelible."
        )


def _write_comments(connection: Connection) -> None:
    """All in one statement: there are hundreds, and a round trip for each would take longer than the migration."""
    comments: list[SetTableComment | SetColumnComment] = []
    for table in metadata.tables.values():
        comments.append(SetTableComment(table))
        comments += [SetColumnComment(column) for column in table.columns if column.comment is not None]
    statements = [str(comment.compile(dialect=connection.dialect)) for comment in comments]
    connection.exec_driver_sql(f"DO $comments$ BEGIN {'; '.join(statements)}; END $comments$")
