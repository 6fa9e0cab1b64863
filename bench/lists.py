"""`python -m bench lists`: a list of 100,000 chats and a search over 1,000,000 messages, on both databases.

The messages are loaded in bulk, as the store would have written and indexed them: words with the frequencies of a
language (the n-th has a share of 1/n), 30 in a message, ten messages in a chat. Each query runs 100 times through the
store, with the statistics that PostgreSQL gathers by itself sooner or later (ANALYZE); the plan of each search is
printed.

BENCH_CHATS=10000 loads fewer chats. The default takes some minutes, most of which is loading.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate, islice
from typing import Any, Final

import asyncpg
from tests.support.engine import close_databases, get_database, open_engine

from bench.databases import OWNER_ID, add_owner, start_databases
from indelible.content import Text, encode
from indelible.store.database.address import parse_address
from indelible.store.database.sqlite import connect
from indelible.store.database.transaction import Transaction, format_time, spell_for_sqlite
from indelible.store.lists.indexing import name_owner, number_second, spell_insert
from indelible.store.lists.search import spell_search
from indelible.store.lists.words import parse_query, split_words
from indelible.store.queries.listing import ChatFilter, ListCursor
from indelible.store.sql_store import SqlStore

CHATS: Final = int(os.environ.get("BENCH_CHATS", "100000"))
MESSAGES: Final = 10
WORDS: Final = 30
RUNS: Final = 100
_VOCABULARY: Final = [f"{letters}{n}" for n in range(2000) for letters in ("ra", "ba", "to", "me", "ly")]
_WEIGHTS: Final = list(accumulate(1 / n for n in range(1, len(_VOCABULARY) + 1)))
_SINCE: Final = datetime(2025, 1, 1, tzinfo=UTC)
_QUERIES: Final = {
    "the most frequent word": _VOCABULARY[0],
    "a rare word": _VOCABULARY[-1],
    "two frequent words": f"{_VOCABULARY[1]} {_VOCABULARY[2]}",
    "a frequent and a rare word": f"{_VOCABULARY[0]} {_VOCABULARY[-2]}",
    "the beginning of a word, 2 letters": "ra",
    "the beginning of a word, 4 letters": "ra19",
    "a word that nobody wrote": "nowhere",
}
_CHAT: Final = ("id", "owner_id", "status", "title", "seq", "replied_seq", "created_at", "updated_at")
_MESSAGE: Final = ("chat_id", "id", "role", "blocks", "created_at")


async def measure() -> None:
    async with start_databases() as addresses:
        for name, address in addresses.items():
            engine = await open_engine(address)
            try:
                await add_owner(engine)
                started = time.perf_counter()
                if name == "SQLite":
                    await asyncio.to_thread(_load_sqlite, address)
                else:
                    await _load_postgres(address)
                took_s = time.perf_counter() - started
                print(f"\n{name}: {CHATS:,} chats, {CHATS * MESSAGES:,} messages, loaded in {took_s:.0f} s")
                store = SqlStore(get_database(engine))
                await _measure_lists(store)
                await _measure_searches(store)
            finally:
                await close_databases()
                await engine.dispose()


# --- loading ---


def _make_chats() -> Iterator[tuple[Any, ...]]:
    for number in range(CHATS):
        at = _SINCE + timedelta(seconds=60 * number)
        replied_seq = MESSAGES if number % 1000 == 0 else 0
        yield f"chat_{number:08}", OWNER_ID, "idle", f"Chat {number}", MESSAGES, replied_seq, at, at


def _make_messages() -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Messages, and their entries in the index."""
    chance = random.Random(1)  # noqa: S311  (the same words every time)
    owner = name_owner(OWNER_ID)
    for number in range(CHATS):
        at = _SINCE + timedelta(seconds=60 * number)
        for place in range(MESSAGES):
            text = " ".join(chance.choices(_VOCABULARY, cum_weights=_WEIGHTS, k=WORDS))
            chat_id, message_id = f"chat_{number:08}", f"message_{number:08}_{place}"
            role = "assistant" if place % 2 else "user"
            words = " ".join([owner, *split_words(text)])
            entry = (number_second(at) + place, chat_id, message_id, OWNER_ID, words)
            yield (chat_id, message_id, role, encode([Text(text)]), at), entry


def _load_sqlite(address: str) -> None:
    connection = connect(address)

    def insert(table: str, columns: tuple[str, ...]) -> str:
        return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608

    try:
        connection.execute("PRAGMA cache_size = -200000")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(insert("chats", _CHAT), map(_spell_times, _make_chats()))
        add_entry = spell_for_sqlite(spell_insert("sqlite"))
        for chunk in _batch(_make_messages(), 10_000):
            connection.executemany(insert("messages", _MESSAGE), (_spell_times(message) for message, _ in chunk))
            connection.executemany(add_entry, (entry for _, entry in chunk))
        connection.execute("COMMIT")
        connection.execute("ANALYZE")
    finally:
        connection.close()


def _batch(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while chunk := list(islice(rows, size)):
        yield chunk


def _spell_times(row: tuple[Any, ...]) -> list[Any]:
    return [format_time(value) if isinstance(value, datetime) else value for value in row]


async def _load_postgres(address: str) -> None:
    connection = await asyncpg.connect(**parse_address(address).make_postgres_options())
    try:
        await connection.copy_records_to_table("chats", records=list(_make_chats()), columns=_CHAT, timeout=3600)
        await connection.execute("DROP INDEX search_entries_words")
        await connection.execute(
            "CREATE TEMP TABLE staged (id BIGINT, chat TEXT, message TEXT, owner TEXT, words TEXT)"
        )
        for chunk in _batch(_make_messages(), 50_000):
            messages, entries = [message for message, _ in chunk], [entry for _, entry in chunk]
            await connection.copy_records_to_table("messages", records=messages, columns=_MESSAGE, timeout=3600)
            await connection.copy_records_to_table("staged", records=entries, timeout=3600)
        await connection.execute(
            "INSERT INTO search_entries (id, chat_id, message_id, owner_id, words) "
            "SELECT id, chat, message, owner, array_to_tsvector(string_to_array(words, ' ')) FROM staged",
            timeout=3600,
        )
        await connection.execute("CREATE INDEX search_entries_words ON search_entries USING gin (words)", timeout=3600)
        await connection.execute("VACUUM ANALYZE", timeout=3600)
    finally:
        await connection.close()


# --- measuring ---


async def _measure_lists(store: SqlStore) -> None:
    page = await store.list_chats(OWNER_ID, limit=50)
    after = ListCursor(page[-1].pinned, page[-1].updated_at, page[-1].id)
    lists: dict[str, Callable[[], Awaitable[object]]] = {
        "first page": lambda: store.list_chats(OWNER_ID, limit=50),
        "second page": lambda: store.list_chats(OWNER_ID, limit=50, after=after),
        "unread": lambda: store.list_chats(OWNER_ID, limit=50, wanted=ChatFilter(unread=True)),
        "label that no chat has": lambda: store.list_chats(OWNER_ID, limit=50, wanted=ChatFilter(label="x")),
    }
    for what, call in lists.items():
        await _report(f"list: {what}", call)


async def _measure_searches(store: SqlStore) -> None:
    for what, text in _QUERIES.items():
        found = await store.lists.search(OWNER_ID, text, limit=50)
        await _report(f"search: {what} ({text!r}, {len(found.items)} on the page)", _searching(store, text))
        await store.database.read(_printing_plan(store, text))


def _searching(store: SqlStore, text: str) -> Callable[[], Awaitable[object]]:
    return lambda: store.lists.search(OWNER_ID, text, limit=50)


def _printing_plan(store: SqlStore, text: str) -> Callable[[Transaction], Any]:
    query = parse_query(text)
    assert query is not None
    sql, values = spell_search(store.database.dialect, OWNER_ID, query, top=2**63 - 1)

    async def show(transaction: Transaction) -> None:
        explain = "EXPLAIN QUERY PLAN" if transaction.dialect == "sqlite" else "EXPLAIN (COSTS OFF)"
        if transaction.dialect == "postgresql":
            await transaction.run("SET LOCAL plan_cache_mode = force_custom_plan")
        for row in await transaction.all(f"{explain} {sql}", *values):
            print(f"        {row['detail'] if isinstance(row, sqlite3.Row) else row[0]}")

    return show


async def _report(what: str, call: Callable[[], Awaitable[object]]) -> None:
    await call()
    times_ms = []
    for _ in range(RUNS):
        started = time.perf_counter()
        await call()
        times_ms.append((time.perf_counter() - started) * 1e3)
    times_ms.sort()
    print(f"    {what}: p50 {times_ms[RUNS // 2]:.1f} ms, p99 {times_ms[RUNS * 99 // 100 - 1]:.1f} ms")
