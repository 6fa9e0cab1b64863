"""PostgreSQL's few connections: urgent work has its own, and whoever is cancelled or loses one harms nobody."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import asyncpg
import pytest
from tests.databases import EMPTY, execute
from tests.log_records import DATABASE_AWAY

from indelible.errors import StoreFailed
from indelible.store.database import postgres
from indelible.store.database.address import parse_address
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.database.postgres import PostgresDatabase
from indelible.store.database.transaction import Transaction, insert

pytestmark = pytest.mark.may_log(*DATABASE_AWAY)

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'indelible'
"""


@pytest.fixture
async def server(migrated_postgres: str) -> str:
    await execute(migrated_postgres, EMPTY)
    return migrated_postgres


@pytest.fixture
async def few(server: str) -> AsyncIterator[PostgresDatabase]:
    """Two connections, and one for what is urgent."""
    options = parse_address(server).make_postgres_options()
    opened = PostgresDatabase(options, where="the server", connections=2, urgent_connections=1)
    yield opened
    await opened.close()


async def add(transaction: Transaction, name: str) -> str:
    await insert(transaction, "workers", {"id": name, "started_at": BEGUN, "heartbeat_at": BEGUN})
    return name


async def ask(server: str, sql: str) -> list[Any]:
    connection = await asyncpg.connect(server)
    try:
        return [row[0] for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def list_stored(server: str) -> list[str]:
    return await ask(server, "SELECT id FROM workers ORDER BY id")


class Holder:
    """Work that keeps its connection until it is let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()

    async def hold(self, _transaction: Transaction) -> None:
        self.entered.set()
        await self.leave.wait()


async def hold(few: PostgresDatabase, count: int) -> tuple[list[Holder], list[asyncio.Task[None]]]:
    holders = [Holder() for _ in range(count)]
    tasks = [asyncio.create_task(few.write(holder.hold)) for holder in holders]
    for holder in holders:
        await holder.entered.wait()
    return holders, tasks


async def test_urgent_work_waits_for_no_other(few: PostgresDatabase, server: str) -> None:
    holders, tasks = await hold(few, 2)
    waiting = asyncio.create_task(few.write(partial(add, name="b")))

    assert await few.write(partial(add, name="a"), urgent=True) == "a"
    assert await list_stored(server) == ["a"]
    assert not waiting.done()
    for holder in holders:
        holder.leave.set()
    await asyncio.gather(waiting, *tasks)
    assert await list_stored(server) == ["a", "b"]


async def test_work_that_gets_no_connection_in_time_fails_with_the_reason(
    few: PostgresDatabase, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders, tasks = await hold(few, 2)
    monkeypatch.setattr(postgres, "WAIT_TIMEOUT_S", 0.01)

    with pytest.raises(DatabaseUnreachable, match="Every connection to the server is in use"):
        await few.write(partial(add, name="a"))

    for holder in holders:
        holder.leave.set()
    await asyncio.gather(*tasks)
    assert await list_stored(server) == []


async def test_a_cancelled_caller_waits_for_its_commit_and_harms_nobody(few: PostgresDatabase, server: str) -> None:
    holder = Holder()

    async def add_slowly(transaction: Transaction) -> None:
        await add(transaction, "a")
        await holder.hold(transaction)

    task = asyncio.create_task(few.write(add_slowly))
    await holder.entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    holder.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await list_stored(server) == ["a"]
    assert await few.write(partial(add, name="b")) == "b"


async def test_a_connection_that_was_lost_while_it_was_idle_is_replaced(few: PostgresDatabase, server: str) -> None:
    await few.write(partial(add, name="a"))
    await few.write(partial(add, name="b"), urgent=True)
    await execute(server, CUT)

    assert await few.write(partial(add, name="c")) == "c"
    assert await few.write(partial(add, name="d"), urgent=True) == "d"
    assert await list_stored(server) == ["a", "b", "c", "d"]


async def test_a_connection_that_is_lost_in_a_transaction_is_an_error_and_the_next_works(
    few: PostgresDatabase, server: str
) -> None:
    async def lose(transaction: Transaction) -> None:
        await add(transaction, "a")
        await transaction.now()
        await execute(server, CUT)
        await add(transaction, "b")

    with pytest.raises(DatabaseUnreachable):
        await few.write(lose)

    assert await few.write(partial(add, name="c")) == "c"
    assert await list_stored(server) == ["c"]


async def test_work_that_goes_on_after_an_error_is_not_taken_for_written(few: PostgresDatabase, server: str) -> None:
    """The server would answer its COMMIT with a rollback, and with no error."""

    async def go_on(transaction: Transaction) -> str:
        await add(transaction, "a")
        await transaction.now()
        with suppress(asyncpg.UniqueViolationError):
            await add(transaction, "a")
            await transaction.now()
        return "done"

    with pytest.raises(RuntimeError, match="nothing was written"):
        await few.write(go_on)

    assert await list_stored(server) == []
    assert await few.write(partial(add, name="b")) == "b"


def test_an_event_loop_that_ends_keeps_nobody_waiting_for_a_connection(
    migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks that have the connections are cancelled with all others, and there is work that stands in line."""
    monkeypatch.setattr(postgres, "WAIT_TIMEOUT_S", 86_400)
    tasks: list[asyncio.Task[None]] = []

    async def leave() -> None:
        options = parse_address(migrated_postgres).make_postgres_options()
        left = PostgresDatabase(options, where="the server", connections=1)
        holders = [Holder() for _ in range(3)]
        tasks.extend(asyncio.create_task(left.write(holder.hold)) for holder in holders)
        await holders[0].entered.wait()

    asyncio.run(leave())

    assert all(task.cancelled() for task in tasks)


async def test_a_reader_cannot_write(few: PostgresDatabase, server: str) -> None:
    with pytest.raises(StoreFailed):
        await few.read(partial(add, name="a"))

    assert await list_stored(server) == []


async def test_closing_waits_for_what_was_asked_for_and_leaves_no_connection(
    few: PostgresDatabase, server: str
) -> None:
    tasks = [asyncio.create_task(few.write(partial(add, name=name))) for name in "abc"]
    await asyncio.sleep(0)
    await few.close()

    assert await asyncio.gather(*tasks) == ["a", "b", "c"]
    assert [task for task in asyncio.all_tasks() if task.get_name() == "postgres connection"] == []
    with pytest.raises(StoreFailed, match="is closed"):
        await few.write(partial(add, name="d"))


async def test_a_connection_knows_nothing_of_the_caller_that_was_the_first(few: PostgresDatabase) -> None:
    chat: contextvars.ContextVar[str] = contextvars.ContextVar("chat", default="nobody's")
    chat.set("of the first caller")

    async def look(_transaction: Transaction) -> str:
        return chat.get()

    assert await few.write(look) == "nobody's"
