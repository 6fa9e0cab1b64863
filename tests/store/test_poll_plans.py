"""What a worker asks all the time costs nothing for chats in which nothing happens (S101).

No time is measured: SQLite is asked how it would find the rows, and none of its ways may read a whole table that grows
with the number of chats.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Final

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, settle_in
from tests.support.engine import get_database

from indelible.machine import commands
from indelible.store.database.sqlite import connect
from indelible.store.database.transaction import translate_statement
from indelible.store.payloads import NewChat
from indelible.store.store import Store
from indelible.testing import ManualClock

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

GROWING: Final = ("chats", "turns", "attempts", "messages", "events", "journal", "queue", "tool_runs", "files")
_SCAN: Final = re.compile(r"SCAN (\w+)")
_ALIAS: Final = re.compile(r"\b(?:FROM|JOIN) (\w+) (?:AS )?(\w+)")


@pytest.fixture
async def store(engine: AsyncEngine) -> AsyncIterator[Store]:
    await settle_in(engine)
    store = Store(get_database(engine))
    for number in range(3):
        await store.execute(f"chat_{number}", commands.Create(), NewChat(owner_id=OWNER))
    yield store
    get_database(engine).observe = None


async def poll(store: Store) -> None:
    """All that a worker does without anybody asking for it."""
    await store.beat("worker_a")
    await store.held("worker_a")
    await store.acquire("worker_a", limit=10, per_user=5)
    await store.probe("worker_a", ["chat_0", "chat_1"], per_user=5)
    await store.expired(limit=10)
    await store.unheld_stops(limit=10)
    await store.pack(ended_before=datetime.now(UTC), clock=ManualClock())
    await store.positions(["chat_0", "chat_1"])


def find_scans(file: str, sql: str) -> set[str]:
    """The growing tables that this statement reads from beginning to end."""
    spelled = translate_statement(sql).sql
    names: dict[str, str] = {alias: table for table, alias in _ALIAS.findall(spelled)}
    values = ["[]"] * spelled.count("?")
    with closing(connect(file)) as connection:
        plan = [row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {spelled}", values)]
    scanned: set[str] = {found[1] for line in plan if (found := _SCAN.match(line))}
    return {names.get(table, table) for table in scanned} & set(GROWING)


@pytest.mark.parametrize("analyzed", [False, True])
async def test_s101_a_poll_reads_no_table_that_grows_with_idle_chats(
    store: Store, engine: AsyncEngine, analyzed: bool
) -> None:
    file = str(engine.url.database)
    if analyzed:
        with closing(connect(file)) as connection:
            connection.execute("ANALYZE")
    statements: list[str] = []
    get_database(engine).observe = statements.append
    await poll(store)
    asked = {sql for sql in statements if sql.lstrip().upper().startswith(("SELECT", "INSERT", "UPDATE", "DELETE"))}
    assert len(asked) >= 7
    assert {sql: scanned for sql in asked if (scanned := find_scans(file, sql))} == {}


async def test_a_scan_is_found(store: Store, engine: AsyncEngine) -> None:
    assert find_scans(str(engine.url.database), "SELECT c.id FROM chats AS c WHERE c.holder = $1") == {"chats"}
