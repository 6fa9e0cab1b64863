"""Somebody else stands still: a process that froze inside a transaction, a network that fell silent.

Nobody waits for them for ever, and nobody else's chats wait at all. The time limits are the store's own; where one
would take too long, a test divides what a connection was given. A limit that is not there stays none however it is
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
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.databases import EMPTY, FREE, execute
from tests.store.driver import OWNER, Driver, settle_in
from tests.support.engine import close_databases, get_database, open_engine
from tests.support.stored import load_journal
from tests.support.tables import drafts

from indelible.content import TextDelta, encode
from indelible.errors import NotFound
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.commands.facts import load_snapshot
from indelible.store.database import postgres as product
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.database.migrate import open_database
from indelible.store.database.transaction import Transaction, insert
from indelible.store.journal.append import JournalRow, append_rows
from indelible.store.store import Store

QUICKER = 20
BY_ITSELF_MS = 60_000
"""When a frozen session ends without a limit of ours: longer than every limit here takes on however slow a machine, so
that it shows."""
NOW = datetime(2026, 11, 15, tzinfo=UTC)
STAY_FROZEN = f"SET LOCAL idle_in_transaction_session_timeout = {BY_ITSELF_MS}"
Work = Callable[[Transaction], Awaitable[object]]


async def shorten(transaction: Transaction, limit: str) -> str:
    """A part of the limit that this connection was given, as PostgreSQL writes it; `0` is none."""
    found = await transaction.one("SELECT extract(epoch FROM current_setting($1)::interval)::float AS s", limit)
    return str(round(1000 * found["s"] / QUICKER))


async def shorten_commands(transaction: Any) -> None:
    await transaction.now()  # it begins with its first statement
    driver = transaction.driver
    driver._config = driver._config._replace(command_timeout=driver._config.command_timeout / (5 * QUICKER))


@pytest.fixture
async def postgres(migrated_postgres: str) -> AsyncIterator[AsyncEngine]:
    await execute(migrated_postgres, FREE, EMPTY)
    engine = await open_engine(migrated_postgres)
    await settle_in(engine)
    yield engine
    await close_databases()
    await engine.dispose()


class Thawed(Exception):
    """What was frozen is undone."""


@asynccontextmanager
async def frozen(engine: AsyncEngine, work: Work) -> AsyncIterator[None]:
    """Another worker does this and then nothing more, in the middle of a transaction."""
    froze, thaws = asyncio.Event(), asyncio.Event()

    async def freeze(transaction: Transaction) -> None:
        await transaction.run(STAY_FROZEN)
        await work(transaction)
        froze.set()
        await thaws.wait()
        raise Thawed

    freezing = asyncio.create_task(get_database(engine).write(freeze))
    await froze.wait()
    yield
    thaws.set()
    with pytest.raises((Thawed, DatabaseUnreachable)):
        await freezing


def lock_chat(chat: Driver) -> Work:
    return lambda transaction: transaction.one("SELECT 1 FROM chats WHERE id = $1 FOR NO KEY UPDATE", chat.id)


def flush(chat: Driver) -> Work:
    row = JournalRow(chat.id, chat.attempt_id, chat.epoch, 2, encode([TextDelta("1", " so")]))
    return lambda transaction: append_rows(transaction, [row], NOW)


@pytest.mark.parametrize("doing", [flush, lock_chat])
@pytest.mark.may_log("cannot be acquired now and is skipped")
async def test_taking_chats_passes_over_one_that_a_frozen_worker_has_locked(
    postgres: AsyncEngine, doing: Callable[[Driver], Work]
) -> None:
    store = Store(get_database(postgres))
    stuck = await (await Driver(store, postgres).create()).work()
    await stuck.bury()
    others = [await Driver(store, postgres).create() for _ in range(2)]
    async with frozen(postgres, doing(stuck)):
        taken = await store.acquire("live", limit=5)
    assert [outcome.chat_id for outcome in taken] == [other.id for other in others]
    await stuck.check()
    assert [outcome.chat_id for outcome in await store.acquire("live", limit=5)] == [stuck.id]


async def test_a_user_behind_a_frozen_worker_gets_an_error_and_may_try_again(
    postgres: AsyncEngine, migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await Driver(Store(get_database(postgres)), postgres).create()
    shorter = await get_database(postgres).write(partial(shorten, limit="lock_timeout"))
    async with frozen(postgres, lock_chat(chat)):
        monkeypatch.setitem(product.SETTINGS, "lock_timeout", shorter)
        impatient = await open_database(migrated_postgres)
        with pytest.raises(DatabaseUnreachable, match="is busy"):
            await Store(impatient).execute(chat.id, c.Interrupt())
        await impatient.close()
    assert await chat.state() == State.RUNNING
    await chat.do(c.Interrupt())
    assert await chat.state() == State.IDLE


async def test_the_server_ends_a_worker_that_froze_in_a_transaction(postgres: AsyncEngine) -> None:
    """Whoever waits gets its turn then. The frozen one finds its connection lost when it thaws, and its work undone."""
    database = get_database(postgres)
    chat = await (await Driver(Store(database), postgres).create()).work()
    froze, thaws = asyncio.Event(), asyncio.Event()

    async def freeze(transaction: Transaction) -> None:
        shorter_ms = await shorten(transaction, "idle_in_transaction_session_timeout")
        await transaction.run(STAY_FROZEN)
        await flush(chat)(transaction)
        await transaction.run(f"SET LOCAL idle_in_transaction_session_timeout = {shorter_ms}")
        froze.set()
        await thaws.wait()

    async def wait_patiently(transaction: Transaction) -> None:
        await transaction.run(f"SET LOCAL lock_timeout = {BY_ITSELF_MS}")
        await transaction.all("SELECT 1 FROM attempts FOR UPDATE")

    freezing = asyncio.create_task(database.write(freeze))
    await froze.wait()
    await database.write(wait_patiently)
    thaws.set()
    with pytest.raises(DatabaseUnreachable):
        await freezing
    assert [entry.n for entry in await load_journal(chat.store, chat.id, chat.attempt_id)] == [1]


async def test_r7_whoever_only_names_a_chat_does_not_wait_for_its_lock(postgres: AsyncEngine) -> None:
    """A draft, a debug record: a row that points to the chat and changes nothing of it."""
    chat = await Driver(Store(get_database(postgres)), postgres).create()
    draft = {"user_id": OWNER, "chat_id": chat.id, "content": b"[]", "updated_at": NOW}
    locking = partial(load_snapshot, chat_id=chat.id, command=c.Send(), lease_timeout_s=8)

    async def write_draft(transaction: Transaction) -> None:
        await transaction.run("SET LOCAL lock_timeout = 100")
        await insert(transaction, drafts.name, draft)

    async with frozen(postgres, locking):
        await get_database(postgres).write(write_draft)
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

    def speak_again(self) -> None:
        """As long as nobody has tried."""
        self._silent_to = 0

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


@asynccontextmanager
async def fallen_silent(line: Line) -> AsyncIterator[Store]:
    """Several connections are there, urgent ones too, when nothing comes through any more. They wait less long."""
    async with line.plugged_in() as address:
        opened = await open_database(address)
        all_are_there = asyncio.Barrier(4)

        async def prepare(transaction: Transaction) -> None:
            await shorten_commands(transaction)
            await all_are_there.wait()

        await asyncio.gather(*(opened.write(prepare, urgent=urgent, single=True) for urgent in (False, True) * 2))
        line.fall_silent()
        yield Store(opened)
        await opened.close()


ASK: list[Callable[[Store], Awaitable[object]]] = [
    lambda store: store.beat("worker"),
    lambda store: store.retire("worker"),
    lambda store: store.view("chat_a"),
    lambda store: store.ensure_user("Ada"),
]


@pytest.mark.parametrize("ask", ASK, ids=["urgent", "one statement", "reading", "writing"])
async def test_a_network_that_falls_silent_is_waited_for_once(
    migrated_postgres: str, ask: Callable[[Store], Awaitable[object]]
) -> None:
    """After the first that was waited for, all are new ones: what they were given is not divided."""
    await execute(migrated_postgres, FREE, EMPTY)
    async with fallen_silent(Line(migrated_postgres)) as store:
        with pytest.raises(DatabaseUnreachable, match="no answer in time"):
            await ask(store)
        for again in ASK * 4:
            try:
                await again(store)
            except NotFound:
                continue


@pytest.mark.parametrize("urgent", [False, True])
async def test_a_network_that_falls_silent_in_a_transaction_is_waited_for_once(
    migrated_postgres: str, urgent: bool
) -> None:
    """A rollback would not come through either."""
    line = Line(migrated_postgres)
    asked: list[str] = []

    async def fall_silent(transaction: Transaction) -> None:
        await transaction.run("SELECT 1")
        line.fall_silent()
        await transaction.run("SELECT 1")

    async with fallen_silent(line) as store:
        line.speak_again()
        store.database.observe = asked.append  # type: ignore[attr-defined]
        with pytest.raises(DatabaseUnreachable, match="no answer in time"):
            await store.database.write(fall_silent, urgent=urgent)
        assert [sql.partition(" ")[0] for sql in asked] == ["BEGIN", "SELECT", "SELECT"]
        await store.beat("worker")


async def test_a_refusal_keeps_its_reason_though_its_rollback_is_not_answered(migrated_postgres: str) -> None:
    line = Line(migrated_postgres)

    async def refuse(transaction: Transaction) -> None:
        await transaction.run("SELECT 1")
        line.fall_silent()
        raise LookupError("no such chat")

    async with fallen_silent(line) as store:
        line.speak_again()
        with pytest.raises(LookupError, match="no such chat"):
            await store.database.write(refuse)
        await store.beat("worker")
