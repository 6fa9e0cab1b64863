"""Copying a whole SQLite database into an empty PostgreSQL database, verified row by row.

What is copied is what the target has after its migrations, so a table or a column that a later one adds is copied too.
A table or a column that the target does not know stops the copy, because leaving it behind in silence would lose data.
What is derived and has another form on each database, as a search index has, is rebuilt by the target's workers.

Everything happens in one transaction of the target: each table is one COPY, so that rows may refer to later rows of
their own table. References to a table that comes later (a chat to its last message, a turn to its question) are checked
after the last one: they are deferred within the transaction, and at its end exactly as before. Then every table is
read back and compared, by the number of its rows and by a hash over every value. Only then is it committed. A copy
that fails or is killed leaves the target empty; repeat it.
The hash of a table is the sum of its rows' SHA-256, so it does not depend on their order, which the databases' text
collations may not agree on.

The source is locked against servers and workers and read in one snapshot: nothing is written behind the copy's back. It
is not changed; delete it when you have seen the new one work.

Must stay true (tests/store/test_copy.py, tests/app/test_copied_conversations.py): every table of the schema arrives
complete, whatever characters and bytes it holds, and conversations continue; a target that is not empty and a
difference are refused, with nothing written.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from indelible.store.database.address import Address, describe, parse_address
from indelible.store.database.errors import DatabaseUnusable, is_about_data, translate_error
from indelible.store.database.migrate import (
    HEAD,
    VERSION_TABLE,
    list_tables,
    load_revision,
    open_database,
    upgrade_schema,
)
from indelible.store.database.postgres import connect
from indelible.store.database.postgres_transaction import PostgresTransaction
from indelible.store.database.sqlite_file import exclusive_file_lock
from indelible.store.database.transaction import Transaction, to_time

CHUNK_ROWS: Final = 500
_TIMEOUT_S: Final = 24 * 3600.0
"""Of one table. The limits of everyday transactions are too short for one."""

_READ: Final[dict[str, Callable[[Any], Any]]] = {"timestamp with time zone": datetime.fromisoformat, "boolean": bool}
"""What SQLite has no type for, by the name of PostgreSQL's."""
_COLUMNS: Final = """
SELECT c.relname AS table_name, a.attname AS name, format_type(a.atttypid, NULL) AS type
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace AND a.attgenerated = ''
ORDER BY a.attnum
"""
_REFERENCES: Final = """
SELECT r.conname AS name, c.relname AS table_name, t.relname AS target
FROM pg_constraint r JOIN pg_class c ON c.oid = r.conrelid JOIN pg_class t ON t.oid = r.confrelid
WHERE r.contype = 'f' AND r.connamespace = current_schema()::regnamespace
"""
_encode_row: Final = msgspec.msgpack.Encoder().encode
DERIVED: Final = {"search_entries": "UPDATE chats SET indexed_seq = 0, unindexed_at = updated_at"}
"""Tables that are not copied, and the statement that has them rebuilt."""

Progress = Callable[[str, int, int], object]
"""Called with a table's name, how many of its rows are copied, and how many it has."""


class _Table(NamedTuple):
    """A table of the target: its columns, with what reads a value of each from SQLite, if that must be changed."""

    name: str
    columns: dict[str, Callable[[Any], Any] | None]

    @property
    def select(self) -> str:
        names = ", ".join(f'"{name}"' for name in self.columns)
        return f"SELECT {names} FROM {self.name}"


class CopiedTable(NamedTuple):
    name: str
    rows: int
    hash: str


class _Digest:
    """The number and the hash of a table's rows, in any order."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, row: Sequence[Any]) -> None:
        normal = [to_time(value) if isinstance(value, datetime) else value for value in row]
        self.rows += 1
        self._sum += int.from_bytes(hashlib.sha256(_encode_row(normal)).digest())

    def make(self, name: str) -> CopiedTable:
        return CopiedTable(name, self.rows, f"{self._sum % 2**256:064x}")


async def copy_database(
    source: str | Path, target: str, *, on_progress: Progress = lambda *_: None
) -> list[CopiedTable]:
    """Copy a SQLite database into an empty PostgreSQL database, and return what every table held."""
    origin, goal = _find_source(source), _find_target(target)
    with exclusive_file_lock(str(source)), closing(_open_snapshot(origin)) as reader:
        await _prepare_target(goal)
        try:
            writer = await connect(goal.make_postgres_options())
            try:
                copied = await _copy_all(reader, origin, writer, goal, on_progress)
                await writer.close()
            finally:
                writer.terminate()  # at once, if it was not closed
        except Exception as error:
            if is_about_data(error):
                reason = str(error).partition("\n")[0]
                raise DatabaseUnusable(
                    f"{origin} can't be copied, because PostgreSQL refuses a row: {reason}. "
                    "Nothing was written. Restore the file from a backup, or report this."
                ) from error
            raise translate_error(error, describe(goal)) from error
    return copied


def _find_source(source: str | Path) -> Path:
    address = parse_address(source)
    if not address.is_sqlite:
        raise DatabaseUnusable(
            f"{describe(address)} is not a SQLite file. Copy PostgreSQL with pg_dump and pg_restore."
        )
    if not address.path.is_file():
        raise DatabaseUnusable(f"Can't find the database {address.path}. Choose another file.")
    return address.path


def _find_target(target: str) -> Address:
    address = parse_address(target)
    if address.is_sqlite:
        raise DatabaseUnusable(
            f"{describe(address)} is a SQLite file. Choose a PostgreSQL database: postgresql://user@host/name."
        )
    return address


def _open_snapshot(path: Path) -> sqlite3.Connection:
    """A connection that sees the database as it is now. Several threads use it, one after the other."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("BEGIN")
        found = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
    except sqlite3.Error as error:
        connection.close()
        raise DatabaseUnusable(f"{path} is not an Indelible database. Choose another file.") from error
    if found != (HEAD,):
        connection.close()
        raise DatabaseUnusable(f"{path} has schema {found[0]}, not {HEAD}. Run “indelible migrate” on it first.")
    return connection


def _refuse_unknown(reader: sqlite3.Connection, tables: list[_Table], path: Path) -> None:
    """Indexes for search, which SQLite keeps in tables of its own kind, are rebuilt by the target."""
    listed = reader.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'").fetchall()
    found = {name for name, kind in listed if kind == "table" and not name.startswith("sqlite_")}
    unknown = sorted(found - {table.name for table in tables} - DERIVED.keys() - {VERSION_TABLE})
    for table in tables:
        columns = [name for (name,) in reader.execute("SELECT name FROM pragma_table_info(?)", (table.name,))]
        unknown += [f"{table.name}.{name}" for name in columns if name not in table.columns]
    if unknown:
        raise DatabaseUnusable(
            f"{path} has tables or columns that Indelible does not know: {', '.join(unknown)}. Remove them first."
        )


async def _prepare_target(target: Address) -> None:
    """Create the tables, and refuse a database that holds anything."""
    where = describe(target)
    database = await open_database(target)
    try:
        revision = await load_revision(database)
        if revision is None:
            await upgrade_schema(database, target)
        elif revision != HEAD:
            raise DatabaseUnusable(
                f"{where} already has an Indelible database (schema {revision}). Choose an empty one."
            )
        elif (filled := await database.read(_find_filled_table)) is not None:
            raise DatabaseUnusable(f"{where} is not empty: the table {filled} has rows. Choose an empty database.")
    finally:
        await database.close()


async def _find_filled_table(transaction: Transaction) -> str | None:
    for table in await _load_tables(transaction):
        if await transaction.one(f"SELECT 1 FROM {table.name} LIMIT 1") is not None:
            return table.name
    return None


async def _load_tables(transaction: Transaction) -> list[_Table]:
    """The tables of the target that are ours, each after those that it refers to, but for circular references."""
    columns: dict[str, dict[str, Callable[[Any], Any] | None]] = {}
    for row in await transaction.all(_COLUMNS):
        columns.setdefault(row["table_name"], {})[row["name"]] = _READ.get(row["type"])
    return [_Table(name, columns[name]) for name in list_tables() if name in columns and name != VERSION_TABLE]


async def _copy_all(
    reader: sqlite3.Connection, origin: Path, writer: Any, goal: Address, on_progress: Progress
) -> list[CopiedTable]:
    transaction = PostgresTransaction.within(writer)
    copied: list[CopiedTable] = []
    async with writer.transaction():
        await writer.execute("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
        tables = [table for table in await _load_tables(transaction) if table.name not in DERIVED]
        _refuse_unknown(reader, tables, origin)
        deferred = await _load_references_to_later(transaction, [table.name for table in tables])
        for name, reference in deferred:
            await writer.execute(f"ALTER TABLE {name} ALTER CONSTRAINT {reference} DEFERRABLE INITIALLY DEFERRED")
        for table in tables:
            digest = _Digest()
            rows = _read_rows(reader, table, digest, on_progress)
            await writer.copy_records_to_table(table.name, records=rows, columns=[*table.columns], timeout=_TIMEOUT_S)
            copied.append(digest.make(table.name))
        await writer.execute("SET CONSTRAINTS ALL IMMEDIATE", timeout=_TIMEOUT_S)
        for name, reference in deferred:
            await writer.execute(f"ALTER TABLE {name} ALTER CONSTRAINT {reference} NOT DEFERRABLE")
        for table, expected in zip(tables, copied, strict=True):
            found = await _read_back(writer, table)
            if found != expected:
                raise DatabaseUnusable(
                    f"{describe(goal)}: the copy of {table.name} differs ({found.rows:,} of {expected.rows:,} rows). "
                    "Nothing was written. Please report this."
                )
        for rebuild in DERIVED.values():
            await writer.execute(rebuild)
    await writer.execute("ANALYZE", timeout=_TIMEOUT_S)
    return copied


async def _load_references_to_later(transaction: Transaction, names: list[str]) -> list[tuple[str, str]]:
    """A table and its reference to one that is copied after it."""
    place = {name: number for number, name in enumerate(names)}
    return [
        (row["table_name"], row["name"])
        for row in await transaction.all(_REFERENCES)
        if place.get(row["table_name"], len(place)) < place.get(row["target"], 0)
    ]


async def _read_rows(
    reader: sqlite3.Connection, table: _Table, digest: _Digest, on_progress: Progress
) -> AsyncIterator[list[Any]]:
    """The rows as Python values, as the target's driver takes them."""
    converters = [*table.columns.values()]
    (total,) = reader.execute(f"SELECT count(*) FROM {table.name}").fetchone()
    cursor = reader.execute(table.select)
    on_progress(table.name, 0, total)
    while chunk := await asyncio.to_thread(cursor.fetchmany, CHUNK_ROWS):
        for stored in chunk:
            row = [
                value if convert is None or value is None else convert(value)
                for value, convert in zip(stored, converters, strict=True)
            ]
            digest.add(row)
            yield row
        on_progress(table.name, digest.rows, total)


async def _read_back(writer: Any, table: _Table) -> CopiedTable:
    digest = _Digest()
    async for row in writer.cursor(table.select, prefetch=CHUNK_ROWS):
        digest.add(list(row.values()))
    return digest.make(table.name)
