"""Deleting a chat while its journal is packed, in either order: nothing of it stays behind, and nobody waits for ever.

The journal has no foreign key (R7), so nothing but the order of the locks keeps a packed row from outliving its chat.
On PostgreSQL the one that comes first is stopped in its middle, by a row that somebody else has locked, until
`pg_blocking_pids` says that the other one stands where it should. SQLite has one writer at a time, so that there one
comes after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Select, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from tests.databases import EMPTY, FREE, execute
from tests.store.driver import Driver, settle_in
from tests.support.engine import begin_read, get_database, open_engine
from tests.support.stored import load_journal
from tests.support.tables import events, journal

from indelible.clock import SystemClock
from indelible.content import Finish, TextDelta
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.store import Store

DEADLINE_S = 100
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"


async def finish_reply(engine: AsyncEngine) -> Driver:
    """A chat at rest, whose journal is due to be packed."""
    chat = await (await Driver(Store(get_database(engine)), engine).create()).work()
    await chat.say(TextDelta("1", " raining."), Finish())
    await chat.end(c.FinishTurn)
    return chat


async def pack(engine: AsyncEngine) -> int:
    return await Store(get_database(engine)).pack(
        ended_before=datetime.now(UTC) + timedelta(days=1), clock=SystemClock()
    )


async def count_rows(engine: AsyncEngine) -> int:
    async with begin_read(engine) as connection:
        return int((await connection.execute(select(func.count()).select_from(journal))).scalar_one())


@pytest.mark.parametrize("first", ["delete", "pack"])
async def test_one_after_the_other_leaves_nothing_behind(engine: AsyncEngine, first: str) -> None:
    await settle_in(engine)
    chat = await finish_reply(engine)
    if first == "pack":
        assert await pack(engine) == 1
        assert await count_rows(engine) == 1
    await chat.do(c.Delete())
    assert await pack(engine) == 0
    assert await count_rows(engine) == 0


# --- PostgreSQL, at once ---


@pytest.fixture
async def postgres(migrated_postgres: str) -> AsyncIterator[AsyncEngine]:
    await execute(migrated_postgres, FREE, EMPTY)
    engine = await open_engine(migrated_postgres)
    await settle_in(engine)
    yield engine
    await engine.dispose()


@asynccontextmanager
async def locked(engine: AsyncEngine, rows: Select[tuple[str]]) -> AsyncIterator[AsyncConnection]:
    """Whoever comes to these rows stands there until this is over."""
    async with engine.connect() as connection:
        await connection.execute(rows.with_for_update())
        yield connection
        await connection.rollback()


async def wait_until(connection: AsyncConnection, *, waiting: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await connection.execute(text(WAITING))).scalar_one() != waiting:
            await connection.execute(text("SELECT pg_stat_clear_snapshot()"))


async def test_what_is_being_deleted_is_not_packed(postgres: AsyncEngine) -> None:
    chat, other = await finish_reply(postgres), await finish_reply(postgres)
    async with (
        asyncio.TaskGroup() as tasks,
        locked(postgres, select(events.c.kind).where(events.c.chat_id == chat.id)) as at,
    ):
        tasks.create_task(chat.do(c.Delete()))
        await wait_until(at, waiting=1)
        assert await pack(postgres) == 1, "the other one's, and it waited for nobody"
    assert await chat.state() == State.NONE
    assert await count_rows(postgres) == 1
    assert len(await load_journal(other.store, other.id, other.attempt_id)) == 2


async def test_what_is_being_packed_is_deleted_as_a_whole(postgres: AsyncEngine) -> None:
    chat = await finish_reply(postgres)
    async with asyncio.TaskGroup() as tasks, locked(postgres, select(journal.c.attempt_id)) as at:
        packing = tasks.create_task(pack(postgres))
        await wait_until(at, waiting=1)
        tasks.create_task(chat.do(c.Delete()))
        await wait_until(at, waiting=2)
    assert packing.result() == 1
    assert await chat.state() == State.NONE
    assert await count_rows(postgres) == 0
