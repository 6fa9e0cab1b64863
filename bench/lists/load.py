"""Filling a database in bulk with what the store would have written and indexed: by commands it would take hours.

SQLite's entries go through the table's own triggers into FTS5, with a larger buffer than usual (`hashsize`), which
saves it most of the merging. PostgreSQL's come by COPY, and its GIN index is built afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

import asyncpg

from bench.lists.corpus import CHAT_COLUMNS, MESSAGE_COLUMNS, OTHERS, OWNER, Message, Row, make_chats, make_messages
from indelible.store.database.address import parse_address
from indelible.store.database.sqlite import connect
from indelible.store.database.transaction import format_time, translate_statement
from indelible.store.search_index import build_insert

Advance = Callable[[int], None]
"""Tells how many more messages are loaded."""

_USER_COLUMNS: Final = ("id", "name", "created_at")
_CHUNK: Final = 20_000
_LARGE_BUFFER: Final = 64 * 2**20
_USUAL_BUFFER: Final = 2**20
_TIMEOUT_S: Final = 3600


async def load(address: str, advance: Advance) -> None:
    if parse_address(address).is_sqlite:
        await asyncio.to_thread(_load_sqlite, address, advance)
    else:
        await _load_postgres(address, advance)


def _make_users() -> list[Row]:
    at = datetime.fromisoformat("2023-01-01T00:00:00+00:00")
    names = [OWNER, *(f"user_{number:03}" for number in range(OTHERS))]
    return [(name, name, at) for name in names]


def _batch(messages: Iterator[Message]) -> Iterator[list[Message]]:
    while chunk := list(islice(messages, _CHUNK)):
        yield chunk


def _load_sqlite(address: str, advance: Advance) -> None:
    connection = connect(address)

    def insert(table: str, columns: tuple[str, ...], rows: Iterator[Row] | list[Row]) -> None:
        places = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608  (names of ours)
        connection.executemany(statement, map(_build_times, rows))

    def set_buffer(size: int) -> None:
        connection.execute("INSERT INTO search_index (search_index, rank) VALUES ('hashsize', ?)", (size,))

    try:
        connection.execute("PRAGMA cache_size = -400000")
        connection.execute("BEGIN IMMEDIATE")
        set_buffer(_LARGE_BUFFER)
        insert("users", _USER_COLUMNS, _make_users())
        insert("chats", CHAT_COLUMNS, make_chats())
        add_entry = translate_statement(build_insert("sqlite")).sql
        for chunk in _batch(make_messages()):
            insert("messages", MESSAGE_COLUMNS, [message.row for message in chunk])
            connection.executemany(add_entry, [message.entry for message in chunk])
            advance(len(chunk))
        set_buffer(_USUAL_BUFFER)
        connection.execute("COMMIT")
        connection.execute("ANALYZE")
    finally:
        connection.close()


def _build_times(row: Row) -> list[Any]:
    return [format_time(value) if isinstance(value, datetime) else value for value in row]


async def _load_postgres(address: str, advance: Advance) -> None:
    connection = await asyncpg.connect(**parse_address(address).make_postgres_options())

    async def copy(table: str, records: list[Any], columns: tuple[str, ...] | None = None) -> None:
        await connection.copy_records_to_table(table, records=records, columns=columns, timeout=_TIMEOUT_S)

    async def run(statement: str) -> None:
        await connection.execute(statement, timeout=_TIMEOUT_S)

    try:
        await copy("users", _make_users(), _USER_COLUMNS)
        await copy("chats", list(make_chats()), CHAT_COLUMNS)
        await run("DROP INDEX search_entries_words")
        await run("CREATE TEMP TABLE staged (id BIGINT, chat TEXT, message TEXT, owner TEXT, words TEXT)")
        for chunk in _batch(make_messages()):
            await copy("messages", [message.row for message in chunk], MESSAGE_COLUMNS)
            await copy("staged", [message.entry for message in chunk])
            advance(len(chunk))
        await run(
            "INSERT INTO search_entries (id, chat_id, message_id, owner_id, words) "
            "SELECT id, chat, message, owner, array_to_tsvector(string_to_array(words, ' ')) FROM staged ORDER BY id"
        )
        await run("SET maintenance_work_mem = '512MB'")
        await run("CREATE INDEX search_entries_words ON search_entries USING gin (words)")
        await run("VACUUM ANALYZE")
    finally:
        await connection.close()
