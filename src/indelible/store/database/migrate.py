"""Bringing a database up to date, at the start of every process and by `indelible migrate`.

Alembic runs the revisions in migrations/versions, all of them in one transaction: a database is never half
migrated. Two processes that start together are safe: the first has the lock (SQLite's write lock, an advisory
lock on PostgreSQL), the second waits for it and then finds nothing to do. A database that is up to date is
only read.

There is no downgrade. A database that a newer Indelible has migrated is refused, because this version does not know
the rules of the new tables.

On SQLite, a table that has to be changed is built anew and the old one dropped; with foreign keys on, that would
delete every row that refers to it. So they are off while migrating, and checked before the commit.

Must stay true (tests/store/test_migrations.py): the migrations build exactly tables.py on both databases, and an
upgrade keeps what was there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.schema import SetColumnComment, SetTableComment

from indelible.store.database.address import describe
from indelible.store.database.engine import begin_read, is_sqlite, open_engine, translate_failures
from indelible.store.database.errors import DatabaseUnusable, SchemaTooNew
from indelible.store.database.tables import metadata

VERSION_TABLE: Final = "indelible_schema"
"""The table of the revision. Not Alembic's default name, which another program in the database may use."""

_ADVISORY_LOCK: Final = 0x1DE11B1E
_WAIT_FOR_MIGRATION_MS: Final = 600_000
_LOCKED_FIRST: Final = ("chats", "turns", "attempts", "messages", "queue", "events", "journal", "tool_runs")


class Migrated(NamedTuple):
    """The revisions that a database was at and is at. `before` is None for a new one."""

    before: str | None
    after: str


async def migrate(database: str | Path, *, target: str = "head") -> Migrated:
    """Upgrade the database; create it if the file is new. Safe to run concurrently."""
    engine = await open_engine(database, pool_size=1, is_patient=True)
    try:
        goal = find_revision(target)
        before = await load_revision(engine)
        _refuse_unknown(before, engine)
        if before != goal:
            before = await _upgrade(engine, goal)
        return Migrated(before, goal)
    finally:
        await engine.dispose()


async def load_revision(engine: AsyncEngine) -> str | None:
    """The revision of the database; None if Indelible has never used it."""
    async with begin_read(engine) as connection:
        return await connection.run_sync(_load_revision)


async def check_schema(engine: AsyncEngine) -> None:
    """Raise if the database is not at this program's revision: `SchemaTooNew`, or what to do about an old one."""
    revision = await load_revision(engine)
    _refuse_unknown(revision, engine)
    if revision != find_revision("head"):
        raise DatabaseUnusable(f"{describe(engine.url)} is not up to date. Run 'indelible migrate'.")


def find_revision(name: str) -> str:
    """The revision of this name; `head` is the newest."""
    script = _load_script().get_revision(name)
    return script.revision


def list_revisions() -> list[str]:
    """Every revision that this program knows, the oldest first."""
    return [script.revision for script in _load_script().walk_revisions()][::-1]


async def _upgrade(engine: AsyncEngine, goal: str) -> str | None:
    with translate_failures(engine.url):
        async with engine.connect() as connection:
            if is_sqlite(engine.url):
                await _prepare_sqlite(connection)
            async with connection.begin():
                if not is_sqlite(engine.url):
                    await connection.execute(text("SET LOCAL lock_timeout = 0"))  # another process may need long
                    await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
                before = await connection.run_sync(_load_revision)
                _refuse_unknown(before, engine)
                if before is not None and not is_sqlite(engine.url):
                    # In the order in which commands lock: a process that still runs waits, instead of a deadlock.
                    await connection.execute(text(f"LOCK TABLE {', '.join(_LOCKED_FIRST)} IN ACCESS EXCLUSIVE MODE"))
                await connection.run_sync(_run_revisions, goal)
            return before


async def _prepare_sqlite(connection: AsyncConnection) -> None:
    """What can only be set outside a transaction. The connection is not used for anything else afterwards."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    await driver.execute("PRAGMA foreign_keys=OFF")
    await driver.execute(f"PRAGMA busy_timeout={_WAIT_FOR_MIGRATION_MS}")


def _run_revisions(connection: Connection, goal: str) -> None:
    if _load_revision(connection) is None:
        _refuse_strangers(connection)
    command.upgrade(_make_config(connection), goal)
    if connection.dialect.name == "sqlite":
        _refuse_orphans(connection)
    elif goal == find_revision("head"):
        _write_comments(connection)


def _refuse_orphans(connection: Connection) -> None:
    broken = {row[0] for row in connection.exec_driver_sql("PRAGMA foreign_key_check")}
    if broken:
        raise DatabaseUnusable(
            f"{describe(connection.engine.url)} is damaged: rows of {', '.join(sorted(broken))} refer to rows that "
            "do not exist. Nothing was changed. Restore it from a backup."
        )


def _write_comments(connection: Connection) -> None:
    for table in metadata.tables.values():
        connection.execute(SetTableComment(table))
        for column in table.columns:
            if column.comment is not None:
                connection.execute(SetColumnComment(column))


def _refuse_unknown(revision: str | None, engine: AsyncEngine) -> None:
    if revision is not None and revision not in list_revisions():
        raise SchemaTooNew(
            f"{describe(engine.url)} was migrated by a newer Indelible (schema {revision}; this one knows up to "
            f"{find_revision('head')}). Upgrade Indelible, or restore an earlier backup."
        )


def _refuse_strangers(connection: Connection) -> None:
    tables = set(inspect(connection).get_table_names())
    if connection.dialect.name != "sqlite":
        tables &= set(metadata.tables)  # other applications may share the server
    if tables:
        raise DatabaseUnusable(
            f"{describe(connection.engine.url)} holds tables of another application ({', '.join(sorted(tables)[:3])}). "
            "Use a separate database for Indelible."
        )


def _load_revision(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _make_config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
    config.set_main_option("script_location", "indelible.store.database:migrations")
    return config


@cache
def _load_script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_make_config())
