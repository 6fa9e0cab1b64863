"""Somebody else stands still: a process that froze inside a transaction, a network that fell silent.

Nobody waits for them for ever, and nobody else's chats wait at all. The time limits are the engine's own; where one
would take too long, a test divides what a new connection was given. A limit that is not there stays none however it is
divided, so each test has a way to go on without it and to find that this was needed: the frozen session ends by
itself after a while, and then its chat would be among those that were taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event, insert, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.databases import EMPTY, FREE, execute
from tests.store.driver import OWNER, Driver, settle_in

from indelible.content import TextDelta, encode
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.commands.facts import load_snapshot
from indelible.store.database.engine import begin_read, open_engine
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.database.tables import drafts
from indelible.store.journal.append import JournalRow, append_rows
from indelible.store.sql_store import SqlStore

QUICKER = 20
BY_ITSELF_MS = 60_000
"""When a frozen session ends without a limit of ours: longer than every limit here takes on however slow a machine, so
that it shows."""
NOW = datetime(2026, 11, 15, tzinfo=UTC)
SHORTER_MS = f"(1000 * extract(epoch FROM current_setting('LIMIT')::interval) / {QUICKER})::int::text"
SHORTEN_WAITING = f"SELECT set_config('lock_timeout', {SHORTER_MS.replace('LIMIT', 'lock_timeout')}, false)"
SHORTER_IDLING = f"SELECT {SHORTER_MS.replace('LIMIT', 'idle_in_transaction_session_timeout')}"


def shorten_waiting(connection: Any, _record: object) -> None:
    connection.run_async(lambda driver: driver.execute(SHORTEN_WAITING))


def shorten_commands(driver: Any) -> None:
    driver._config = driver._config._replace(command_timeout=driver._config.command_timeout / (5 * QUICKER))


@asynccontextmanager
async def opened(address: str, on_connect: Callable[[Any, object], None]) -> AsyncIterator[AsyncEngine]:
    """An engine whose every connection is shown to `on_connect`."""
    engine = await open_engine(address)
    event.listen(engine.sync_engine, "connect", on_connect)
    await engine.dispose()
    yield engine
    await engine.dispose()


@pytest.fixture
async def postgres(migrated_postgres: str) -> AsyncIterator[AsyncEngine]:
    await execute(migrated_postgres, FREE, EMPTY)
    engine = await open_engine(migrated_postgres)
    await settle_in(engine)
    yield engine
    await engine.dispose()


@asynccontextmanager
async def frozen(engine: AsyncEngine, work: Callable[[Any], Awaitable[object]]) -> AsyncIterator[Any]:
    """Somebody does this and then nothing more, in the middle of a transaction."""
    connection = await engine.connect()
    await connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {BY_ITSELF_MS}"))
    await work(connection)
    yield connection
    await connection.invalidate()
    await connection.close()


def lock_chat(chat: Driver) -> Callable[[Any], Awaitable[object]]:
    locking = text("SELECT 1 FROM chats WHERE id = :id FOR NO KEY UPDATE").bindparams(id=chat.id)
    return lambda connection: connection.execute(locking)


def flush(chat: Driver) -> Callable[[Any], Awaitable[object]]:
    row = JournalRow(chat.id, chat.attempt_id, chat.epoch, 2, encode([TextDelta("1", " so")]))
    return lambda connection: append_rows(connection, [row], NOW)


@pytest.mark.parametrize("doing", [flush, lock_chat])
async def test_taking_chats_passes_over_one_that_a_frozen_worker_has_locked(
    postgres: AsyncEngine, doing: Callable[[Driver], Callable[[Any], Awaitable[object]]]
) -> None:
    store = SqlStore(postgres)
    stuck = await (await Driver(store, postgres).create()).work()
    await stuck.bury()
    others = [await Driver(store, postgres).create() for _ in range(2)]
    async with frozen(postgres, doing(stuck)):
        taken = await store.acquire("live", limit=5)
    assert [outcome.chat_id for outcome in taken] == [other.id for other in others]
    await stuck.check()
    assert [outcome.chat_id for outcome in await store.acquire("live", limit=5)] == [stuck.id]


async def test_a_user_behind_a_frozen_worker_is_told_to_try_again(
    postgres: AsyncEngine, migrated_postgres: str
) -> None:
    chat = await Driver(SqlStore(postgres), postgres).create()
    async with frozen(postgres, lock_chat(chat)), opened(migrated_postgres, shorten_waiting) as impatient:
        with pytest.raises(DatabaseUnreachable, match="is busy"):
            await SqlStore(impatient).execute(chat.id, c.Interrupt())
    assert await chat.state() == State.RUNNING
    await chat.do(c.Interrupt())
    assert await chat.state() == State.IDLE


async def test_the_server_ends_a_worker_that_froze_in_a_transaction(postgres: AsyncEngine) -> None:
    """Whoever waits gets its turn then. The frozen one finds its connection lost when it thaws, and its work undone."""
    chat = await (await Driver(SqlStore(postgres), postgres).create()).work()
    froze = await postgres.connect()
    shorter_ms = (await froze.execute(text(SHORTER_IDLING))).scalar_one()
    await froze.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {BY_ITSELF_MS}"))
    await flush(chat)(froze)
    await froze.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = {shorter_ms}"))
    async with postgres.begin() as patient:
        await patient.execute(text(f"SET LOCAL lock_timeout = {BY_ITSELF_MS}"))
        await patient.execute(text("SELECT 1 FROM attempts FOR UPDATE"))
    with pytest.raises(DBAPIError):
        await froze.execute(text("SELECT 1"))
    await froze.close()
    assert [entry.n for entry in await chat.store.rows(chat.attempt_id)] == [1]


async def test_r7_whoever_only_names_a_chat_does_not_wait_for_its_lock(postgres: AsyncEngine) -> None:
    """A draft, a debug record: a row that points to the chat and changes nothing of it."""
    chat = await Driver(SqlStore(postgres), postgres).create()
    draft = insert(drafts).values(user_id=OWNER, chat_id=chat.id, content=b"[]", updated_at=NOW)
    locking = partial(load_snapshot, chat_id=chat.id, command=c.Send(), lease_timeout_s=8)
    async with frozen(postgres, locking), postgres.begin() as connection:
        await connection.execute(text("SET LOCAL lock_timeout = 100"))
        await connection.execute(draft)
    assert len(await chat.rows(drafts)) == 1


# --- a network that falls silent ---


class Line:
    """Carries connections to PostgreSQL, until it is told to carry nothing more over those that are there."""

    def __init__(self, server: str) -> None:
        self._url = make_url(server)
        self._carried = 0
        self._silent_to = 0
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def plugged_in(self) -> AsyncIterator[str]:
        serving = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        host, port = serving.sockets[0].getsockname()
        try:
            yield self._url.set(host=host, port=port, query={}).render_as_string(hide_password=False)
        finally:
            self._ended.set()
            serving.close()

    def fall_silent(self) -> None:
        """No end and no error comes through either, as when a router forgets what it carried."""
        self._silent_to = self._carried

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._carried += 1
        number = self._carried
        directory = self._url.query.get("host")
        if directory is None:
            server, to_server = await asyncio.open_connection(self._url.host, self._url.port or 5432)
        else:
            server, to_server = await asyncio.open_unix_connection(f"{directory}/.s.PGSQL.{self._url.port or 5432}")
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry_one_way(number, client, to_server))
                ways.create_task(self._carry_one_way(number, server, to_client))
        finally:
            to_server.close()
            to_client.close()

    async def _carry_one_way(self, number: int, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            if number <= self._silent_to:
                await self._ended.wait()
                break
            target.write(data)
            await target.drain()
        target.close()


async def test_a_network_that_falls_silent_is_waited_for_once(migrated_postgres: str) -> None:
    """Several connections are in the pool when it happens. After the first that was waited for all are new ones."""
    line = Line(migrated_postgres)
    in_the_pool: list[Any] = []

    def note(connection: Any, _record: object) -> None:
        in_the_pool.append(connection.driver_connection)

    async with line.plugged_in() as address, opened(address, note) as engine:
        async with begin_read(engine) as first, begin_read(engine) as second:
            await first.execute(text("SELECT 1"))
            await second.execute(text("SELECT 1"))
        for driver in in_the_pool:
            shorten_commands(driver)
        line.fall_silent()
        store = SqlStore(engine)
        with pytest.raises(DatabaseUnreachable, match="no answer in time"):
            await store.beat("worker")
        await store.beat("worker")
