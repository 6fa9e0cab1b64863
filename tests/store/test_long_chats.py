"""A send into a long chat reads its end and no more, also on a server that knows nothing of its tables yet.

PostgreSQL plans by its statistics, and a new database has none. A connection even keeps the plans with which it checks
foreign keys, and made them when there was hardly a row. What counts is how many rows were looked at, not the time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import insert, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import SAID_AT, Driver, settle_in

from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.database.engine import begin_read, begin_write, open_engine
from indelible.store.database.migrate import migrate
from indelible.store.database.tables import chats, messages
from indelible.store.sql_store import SqlStore

LENGTH = 600
MOST_READ = 100
"""The chunk of the path that every command climbs, and the message itself for each of the rows that name it."""


@pytest.fixture
async def unknown(new_postgres: str) -> AsyncIterator[AsyncEngine]:
    """A server without statistics, on one connection."""
    await migrate(new_postgres)
    engine = await open_engine(new_postgres, pool_size=1)
    async with begin_write(engine) as connection:
        await connection.execute(text("ALTER TABLE messages SET (autovacuum_enabled = off)"))
    await settle_in(engine)
    yield engine
    await engine.dispose()


async def lengthen(engine: AsyncEngine, chat: Driver) -> None:
    """Let a long conversation follow what was said."""
    names = [f"message_{number}" for number in range(LENGTH)]
    said = {"chat_id": chat.id, "role": "user", "blocks": b"[]", "created_at": SAID_AT}
    above = [(await chat.row()).head_id, *names]
    rows = [{**said, "id": name, "parent_id": parent} for name, parent in zip(names, above, strict=False)]
    async with begin_write(engine) as connection:
        await connection.execute(insert(messages), rows)
        await connection.execute(update(chats).where(chats.c.id == chat.id).values(head_id=names[-1]))


async def count_read(engine: AsyncEngine) -> int:
    """How many messages were looked at until now."""
    async with begin_write(engine) as connection:
        await connection.execute(text("SELECT pg_stat_force_next_flush()"))
    async with begin_read(engine) as connection:
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'messages'"
        return int((await connection.execute(text(read))).scalar_one())


async def test_a_send_into_a_long_chat_reads_its_end_only_though_the_server_has_no_statistics(
    unknown: AsyncEngine,
) -> None:
    chat = await Driver(SqlStore(unknown), unknown).create()
    await chat.do(c.Interrupt())
    await lengthen(unknown, chat)
    before = await count_read(unknown)
    await chat.do(c.Send(), "And now?")
    assert await chat.state() == State.RUNNING
    assert 0 < await count_read(unknown) - before < MOST_READ
