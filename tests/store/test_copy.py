"""A SQLite database arrives on PostgreSQL complete, or not at all.

The rows are those with which test_migrations.py fills every table of the schema: a table that somebody adds is in that
list, or that test fails, so it is checked here as well.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.store.test_migrations import rows_of, rows_of_nobody
from tests.support.commands import run_indelible
from tests.support.tables import metadata

import indelible
from indelible.store.database import copy_to_postgres
from indelible.store.database.copy_to_postgres import DERIVED, CopiedTable, copy_database
from indelible.store.database.errors import DatabaseUnusable
from indelible.store.database.sqlite.file_lock import exclusive_file_lock

ODD = "NUL-free, but odd: \u00e9 \u2028 \U0001f469\u200d\U0001f680 \ufffd ' \" \\ \t"


@pytest.fixture
def source(migrated_sqlite: Path, tmp_path: Path) -> Path:
    """A database with two rows in every table of a chat, and one in every other."""
    path = tmp_path / "chats.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    with closing(sqlite3.connect(path)) as connection, connection:
        for rows in (rows_of_nobody(), rows_of("c"), rows_of("d")):
            for table, given in rows.items():
                known = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
                row = {name: value for name, value in given.items() if name in known}  # others were there once
                columns, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
                insert = f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608
                connection.execute(insert, list(row.values()))
        connection.execute("UPDATE chats SET head_id = 'reply_' || id")
        for chat, moment in {"c": "0001-01-01T00:00:00.000000Z", "d": "9999-12-31T23:59:59.999999Z"}.items():
            connection.execute("UPDATE messages SET created_at = ? WHERE chat_id = ?", (moment, chat))
        connection.execute("UPDATE chats SET title = ?, system_prompt = ? WHERE id = 'c'", (ODD, bytes(range(256))))
    return path


async def fetch(url: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def test_every_row_of_every_table_arrives_and_the_copy_can_be_used(source: Path, new_postgres: str) -> None:
    seen: list[tuple[str, int, int]] = []

    copied = await copy_database(source, new_postgres, on_progress=lambda *step: seen.append(step))

    rows = {table.name: table.rows for table in copied}
    assert rows.keys() == metadata.tables.keys() - DERIVED.keys()
    assert rows == {name: 1 if name in rows_of_nobody() else 2 for name in rows}
    assert ("messages", 2, 2) in seen
    for name, count in rows.items():
        assert await fetch(new_postgres, f"SELECT count(*) FROM {name}") == [(count,)]  # noqa: S608
    stored = await fetch(new_postgres, "SELECT title, system_prompt FROM chats WHERE id = 'c'")
    assert stored == [(ODD, bytes(range(256)))]
    async with indelible.open(new_postgres, worker=False) as app:
        assert await app.user("Ada").chats() != []
    deferrable = "SELECT conname FROM pg_constraint WHERE condeferrable AND connamespace = 'public'::regnamespace"
    assert await fetch(new_postgres, deferrable) == []  # references are checked as before
    unindexed = "SELECT count(*) FROM chats WHERE unindexed_at IS NOT NULL AND indexed_seq = 0"
    assert await fetch(new_postgres, unindexed) == [(2,)]  # its workers index what was copied

    with pytest.raises(DatabaseUnusable, match="is not empty: the table"):
        await copy_database(source, new_postgres)


async def test_a_difference_is_refused_and_nothing_is_written(
    source: Path, new_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that changes on the way, as with a faulty driver: what is read back is one row less."""
    read_back = copy_to_postgres._read_back

    async def lose_a_row(writer: Any, table: Any) -> CopiedTable:
        if table.name == "journal":
            await writer.execute("DELETE FROM journal WHERE chat_id = 'd'")
        return await read_back(writer, table)

    monkeypatch.setattr(copy_to_postgres, "_read_back", lose_a_row)

    with pytest.raises(DatabaseUnusable, match=r"the copy of journal differs \(1 of 2 rows\)"):
        await copy_database(source, new_postgres)

    assert await fetch(new_postgres, "SELECT count(*) FROM chats") == [(0,)]


async def test_a_row_that_refers_to_nothing_is_refused_and_nothing_is_written(source: Path, new_postgres: str) -> None:
    """As after a manual repair of the file: SQLite checks references only where a program asks for it."""
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("UPDATE chats SET head_id = 'message_gone' WHERE id = 'd'")

    refused = await asyncio.to_thread(run_indelible, "copy", str(source), "--to", new_postgres)

    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"indelible: {source} can't be copied, because PostgreSQL refuses a row: ")
    assert "chats_id_head_id_fk" in line
    assert await fetch(new_postgres, "SELECT count(*) FROM chats") == [(0,)]


async def test_a_table_that_the_schema_does_not_know_stops_the_copy(source: Path, new_postgres: str) -> None:
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("CREATE TABLE mine (id TEXT)")

    with pytest.raises(DatabaseUnusable, match="does not know: mine"):
        await copy_database(source, new_postgres)


def test_the_command_refuses_a_database_in_use_and_reports_what_it_copied(source: Path, new_postgres: str) -> None:
    with exclusive_file_lock(source):
        refused = run_indelible("copy", str(source), "--to", new_postgres)
    done = run_indelible("copy", str(source), "--to", new_postgres)

    assert refused.returncode == 1
    assert "is in use by another server or worker" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert f"rows in {len(metadata.tables.keys() - DERIVED.keys())} tables, all verified." in done.stdout


async def test_only_from_sqlite_to_postgresql(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnusable, match="Can't find the database"):
        await copy_database(tmp_path / "none.db", "postgresql://ada@127.0.0.1/none")
    with pytest.raises(DatabaseUnusable, match="pg_dump"):
        await copy_database("postgresql://ada@127.0.0.1/a", "postgresql://ada@127.0.0.1/b")
    sqlite3.connect(tmp_path / "a.db").close()
    with pytest.raises(DatabaseUnusable, match="is a SQLite file"):
        await copy_database(tmp_path / "a.db", str(tmp_path / "b.db"))
    assert not (tmp_path / "b.db").exists()
