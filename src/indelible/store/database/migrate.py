"""Opening a database, and creating and upgrading it: at the start of every process and by `indelible migrate`.

A new database gets schema.sql, which is schema 0015, and then every file in migrations/, which are numbered from 0016;
an older one gets those that it lacks. All of it is one transaction: a database is never half migrated, and a crash
changes nothing. Processes that start together are safe: the first has the lock (SQLite's write lock, an advisory lock
on PostgreSQL), the others wait for it and then find nothing to do. A database that is up to date is only read.

The files are PostgreSQL's SQL. `translate_for_sqlite` has the few rules that make SQLite's of it. To change the schema,
add a file with the next number; what SQL cannot do is a function in migration_steps.py, with the same number. A file
that was released never changes (docs/where-things-go.md).

There is no downgrade. A database that a newer Indelible has migrated is refused, because this version does not know
the rules of the new tables; one from before 0015 is refused with the commit that upgrades it. An upgrade is refused
while a process of an earlier version works on the database, which does not know the new rules: on PostgreSQL while its
worker beats, on SQLite while it also holds the file. A process of this version cannot be meant: it beats after the
upgrade, and both are read in one snapshot.

On SQLite, foreign keys are off during a migration, because one that builds a table anew drops the old one, and that
would delete every row that refers to it. So they are checked before the commit.

Must stay true (tests/store/test_migrations.py): a new database and an upgraded one have the same schema, that of
Alembic's 0015 and the later files; an upgrade preserves existing data; nothing is migrated under a running process.
A faulty database is reported in one sentence (test_open.py).
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from indelible.concurrency.tasks import run_to_completion
from indelible.errors import StoreFailed
from indelible.store.database.address import Address, describe, parse_address
from indelible.store.database.errors import DatabaseUnusable, SchemaTooNew, read_failure, translate_error
from indelible.store.database.migration_steps import STEPS
from indelible.store.database.postgres import PostgresDatabase
from indelible.store.database.postgres import connect as connect_postgres
from indelible.store.database.postgres_transaction import PostgresTransaction
from indelible.store.database.sqlite import SqliteDatabase, SqliteTransaction
from indelible.store.database.sqlite import connect as connect_sqlite
from indelible.store.database.sqlite_file import is_held_elsewhere, refuse_special_file
from indelible.store.database.sqlite_jobs import drive
from indelible.store.database.transaction import Database, Transaction

_FOLDER: Final = Path(__file__).parent
FIRST: Final = "0015"
"""The schema that schema.sql builds."""
_FILES: Final = {
    FIRST: _FOLDER / "schema.sql",
    **{path.name[:4]: path for path in sorted((_FOLDER / "migrations").glob("*.sql"))},
}
HEAD: Final = max(_FILES)
"""The newest schema."""
VERSION_TABLE: Final = "indelible_schema"
"""The table with the number of the schema."""
LEASE_TIMEOUT_S: Final = 8.0
"""How long a worker without a heartbeat counts as alive, if no setting says otherwise."""

_LAST_WITH_OLDER: Final = "456663b6d007"
"""The commit that still upgrades databases from before `FIRST`."""
_ADVISORY_LOCK: Final = 0x1DE11B1E
_WAIT_FOR_MIGRATION_MS: Final = 600_000
_LOCKED_FIRST: Final = ("chats", "turns", "attempts", "messages", "queue", "events", "journal", "tool_runs")
"""In the order in which commands lock, so that a running process waits and does not deadlock."""
_NO_TIMEOUTS: Final = "; ".join(
    f"SET LOCAL {name} = 0" for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
)
"""Another process may take many minutes to rewrite its tables, and so may this one."""


class Migrated(NamedTuple):
    """The schemas before and after an upgrade. `before` is None for a new database."""

    before: str | None
    after: str


class OldProcessesRunning(DatabaseUnusable):
    """Processes of an earlier version work on the database, so it is not migrated under them."""


# --- opening ---------------------------------------------------------------------------------


async def open_database(database: str | Path | Address) -> SqliteDatabase | PostgresDatabase:
    """Connect to a database, new or not. Raises `StoreFailed` with the reason. Close it at the end."""
    address = database if isinstance(database, Address) else parse_address(database)
    try:
        if not address.is_sqlite:
            return await PostgresDatabase.open(address.make_postgres_options(), where=describe(address))
        refuse_missing_directory(address)
        refuse_special_file(address.path)
        return await SqliteDatabase.open(address.make_sqlite_name(), where=describe(address))
    except StoreFailed:
        raise
    except Exception as error:
        raise read_failure(error, describe(address)) from error


def refuse_missing_directory(address: Address) -> None:
    directory = address.path.absolute().parent
    if not directory.is_dir():
        raise DatabaseUnusable(
            f"Can't create the database: the directory {directory} does not exist. Create it, or choose another file."
        )


# --- creating and upgrading -------------------------------------------------------------------


async def migrate(
    database: str | Path, *, target: str = HEAD, lease_timeout_s: float = LEASE_TIMEOUT_S, force: bool = False
) -> Migrated:
    """Upgrade the database; create it if the file is new. Safe to run concurrently.

    Raises `OldProcessesRunning` if a worker of an earlier version is alive, unless `force`.
    """
    address = parse_address(database)
    opened = await open_database(address)
    try:
        return await upgrade_schema(opened, address, target=target, lease_timeout_s=lease_timeout_s, force=force)
    finally:
        await opened.close()


async def upgrade_schema(
    database: Database,
    address: Address,
    *,
    target: str = HEAD,
    lease_timeout_s: float = LEASE_TIMEOUT_S,
    force: bool = False,
) -> Migrated:
    """Upgrade an open database. See `migrate`."""
    before = await load_revision(database)
    refuse_unknown(before, describe(address))
    if before != target:
        if before is not None and not force:
            await _refuse_running(database, address, target, lease_timeout_s)
        before = await _upgrade(address, target)
    return Migrated(before, target)


async def load_revision(database: Database) -> str | None:
    """The schema of the database; None if Indelible has never used it."""
    return await database.read(_load_revision)


def list_revisions() -> list[str]:
    """The number of every schema that this program knows, oldest first."""
    return list(_FILES)


@cache
def read_scripts() -> dict[str, str]:
    """The SQL of every schema by its number, in PostgreSQL's spelling. The first call reads files, so it blocks."""
    return {number: path.read_text(encoding="utf-8") for number, path in _FILES.items()}


def list_tables() -> list[str]:
    """The names of all tables that were ever ours, each after those that it refers to, as far as that is possible."""
    return re.findall(r"^CREATE TABLE (\w+)", "\n".join(read_scripts().values()), re.MULTILINE)


def refuse_unknown(number: str | None, where: str) -> None:
    if number is None or number in _FILES:
        return
    if number < FIRST:
        raise DatabaseUnusable(
            f"{where} has schema {number}, from before {FIRST}. Check out commit {_LAST_WITH_OLDER} of Indelible and "
            "run its “indelible migrate” first; then start this one."
        )
    raise SchemaTooNew(
        f"{where} was migrated by a newer Indelible (schema {number}; this one knows up to {HEAD}). "
        "Upgrade Indelible, or restore an earlier backup."
    )


# --- processes of an earlier version ---------------------------------------------------------


async def _refuse_running(database: Database, address: Address, target: str, lease_timeout_s: float) -> None:
    """On SQLite a heartbeat alone proves nothing: it may be of a process that was killed a moment ago."""
    number, count = await database.read(partial(_count_beating, lease_timeout_s=lease_timeout_s))
    if number == target or not count or (address.is_sqlite and not is_held_elsewhere(address.path)):
        return
    processes = "1 process" if count == 1 else f"{count} processes"
    raise OldProcessesRunning(
        f"{describe(address)} has schema {number}, and {processes} of an earlier Indelible may be working on it. "
        f"Stop every old process and repeat this; after a crash, wait {lease_timeout_s:g} s. "
        "To upgrade nevertheless, run “indelible migrate --force”."
    )


async def _count_beating(transaction: Transaction, *, lease_timeout_s: float) -> tuple[str | None, int]:
    """The schema, and how many workers are alive, at one moment."""
    since = await transaction.now() - timedelta(seconds=lease_timeout_s)
    row = await transaction.one("SELECT count(*) AS beating FROM workers WHERE heartbeat_at > $1", since)
    return await _load_revision(transaction), row["beating"]


# --- under the lock ---------------------------------------------------------------------------


@run_to_completion
async def _upgrade(address: Address, target: str) -> str | None:
    """Upgrade under the lock; returns the schema that was found there."""
    await asyncio.to_thread(read_scripts)
    try:
        if address.is_sqlite:
            return await asyncio.to_thread(_upgrade_sqlite, address, target)
        return await _upgrade_postgres(address, target)
    except Exception as error:
        translated = translate_error(error, describe(address))
        if translated is error:
            raise
        raise translated from error


def _upgrade_sqlite(address: Address, target: str) -> str | None:
    with closing(connect_sqlite(address.make_sqlite_name())) as connection:
        connection.execute(f"PRAGMA busy_timeout={_WAIT_FOR_MIGRATION_MS}")
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("BEGIN IMMEDIATE")
        before = drive(_run_files(SqliteTransaction(connection, None), target, describe(address)))
        connection.execute("COMMIT")
        return before


async def _upgrade_postgres(address: Address, target: str) -> str | None:
    driver = await connect_postgres(address.make_postgres_options(), command_timeout_s=None)
    try:
        async with driver.transaction():
            await driver.execute(_NO_TIMEOUTS)
            await driver.execute(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            transaction = PostgresTransaction.within(driver)
            before = await _run_files(transaction, target, describe(address))
            await transaction.flush()
        await driver.close()
    finally:
        driver.terminate()  # at once, if it was not closed
    return before


async def _run_files(transaction: Transaction, target: str, where: str) -> str | None:
    before = await _load_revision(transaction)
    refuse_unknown(before, where)
    if before is not None and before >= target:  # another process was quicker
        return before
    if before is None:
        await _refuse_strangers(transaction, where)
    elif transaction.dialect == "postgresql":
        await transaction.run(f"LOCK TABLE {', '.join(_LOCKED_FIRST)} IN ACCESS EXCLUSIVE MODE")
    for number, script in read_scripts().items():
        if (before or "") < number <= target:
            await _run_script(transaction, script)
            if number in STEPS:
                await STEPS[number](transaction)
    await transaction.run(f"DELETE FROM {VERSION_TABLE}")
    await transaction.run(f"INSERT INTO {VERSION_TABLE} (version_num) VALUES ($1)", target)
    if transaction.dialect == "sqlite":
        await _refuse_orphans(transaction, where)
    return before


async def _load_revision(transaction: Transaction) -> str | None:
    is_sqlite = transaction.dialect == "sqlite"
    named = "SELECT name FROM sqlite_schema WHERE name = $1" if is_sqlite else "SELECT to_regclass($1) AS name"
    there = await transaction.one(named, VERSION_TABLE)
    if there is None or there["name"] is None:
        return None
    row = await transaction.one(f"SELECT version_num FROM {VERSION_TABLE}")
    return None if row is None else str(row["version_num"])


async def _refuse_strangers(transaction: Transaction, where: str) -> None:
    """On PostgreSQL, other applications may share the database, as long as no table has a name of ours."""
    if transaction.dialect == "sqlite":
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        listed = await transaction.all(f"{sql} ORDER BY name LIMIT 3")
    else:
        sql = "SELECT tablename AS name FROM pg_tables WHERE schemaname = current_schema() AND tablename = ANY($1)"
        listed = await transaction.all(f"{sql} ORDER BY name LIMIT 3", list_tables())
    if listed:
        raise DatabaseUnusable(
            f"{where} holds tables of another application ({', '.join(row['name'] for row in listed)}). "
            "Use a separate database for Indelible."
        )


async def _refuse_orphans(transaction: Transaction, where: str) -> None:
    broken = {row["table"] for row in await transaction.all("PRAGMA foreign_key_check")}
    if broken:
        raise DatabaseUnusable(
            f"{where} is damaged: rows of {', '.join(sorted(broken))} refer to rows that do not exist. "
            "Nothing was changed. Restore it from a backup."
        )


# --- SQL for both databases -------------------------------------------------------------------

_SQLITE_WORDS: Final = {
    "TIMESTAMPTZ": "TEXT",
    "TSVECTOR": "TEXT",
    "BYTEA": "BLOB",
    ' COLLATE "C"': "",
    "DEFAULT false": "DEFAULT 0",
}


async def _run_script(transaction: Transaction, script: str) -> None:
    """PostgreSQL takes it whole, in one round trip. Its driver does not take a file of comments alone."""
    if transaction.dialect == "sqlite":
        for statement in translate_for_sqlite(script):
            await transaction.run(statement)
    elif re.search(r"^[A-Z]", script, re.MULTILINE):
        await transaction.run(script)


def translate_for_sqlite(script: str) -> Iterator[str]:
    """The statements of a file as SQLite knows them: the marks of schema.sql, its words, and no comments."""
    script = re.sub(r"^( *)-- sqlite: ", r"\1", script, flags=re.MULTILINE)
    script = re.sub(r"^.*-- postgresql$|^COMMENT ON .*;$|^ *--.*$", "", script, flags=re.MULTILINE)
    for word, ours in _SQLITE_WORDS.items():
        script = script.replace(word, ours)
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if statement.strip():
        raise ValueError(f"a statement has no end: {statement.strip()}")
