"""A caller that is cancelled at any moment at which the store waits for its database leaves nothing behind.

Nothing is patched, neither the store nor a driver. Every task of these tests runs a coroutine that is watched, those
that have the connections to PostgreSQL as well: whenever one waits for something, that is a moment, and the caller can
be cancelled there. *During* it, the question is with the driver and the answer is not there yet; *after* it, the answer
has come and nobody has looked at it. On SQLite, where work waits for nothing, every statement is a moment too: its
thread stands still until the caller is cancelled. Each call is made again and again, cancelled one moment later every
time, until there is no moment left. After every one of them the caller was told that it is cancelled, no transaction is
open and no connection is missing, what was to be written is there or not, but never half, and the next write goes
through at once.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import closing
from functools import partial
from operator import eq
from typing import Any, Literal

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.databases import execute
from tests.recording.recorded import load_run
from tests.store.driver import SAID_AT, Driver, settle_in
from tests.support.engine import OpenDatabase
from tests.support.stored import load_journal, load_ledger
from tests.support.tables import attempts
from tests.support.waiting import poll_until

from indelible.api.records import RunRecord, StepRecord
from indelible.concurrency.tasks import UncancellableFuture, run_to_completion
from indelible.content import TextDelta, encode
from indelible.errors import NotFound
from indelible.machine import State
from indelible.machine import commands as c
from indelible.recording.storage import RecordStore
from indelible.store.database.address import parse_address
from indelible.store.database.migrate import HEAD, load_revision, migrate, open_database
from indelible.store.database.postgres import PostgresDatabase
from indelible.store.database.sqlite import READERS, SqliteDatabase
from indelible.store.database.transaction import Transaction
from indelible.store.journal.append import Appended, JournalRow, RunKey, RunStarted
from indelible.store.store import Store

IfBusy = Literal["during", "after"]
Call = Coroutine[Any, Any, object]
BOTH_SIDES: tuple[IfBusy, ...] = ("during", "after")
MOST_MOMENTS = 400
DEADLINE_S = 100
CONNECTIONS, URGENT_CONNECTIONS = 2, 1
OPEN_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'indelible' AND xact_start IS NOT NULL
"""


class Watcher:
    """Counts the moments at which the tasks of an event loop wait, and cancels the caller at the one it is told."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_task_factory(self._make_task)
        self._test: asyncio.Task[Any] | None = None
        self._caller: asyncio.Task[Any] | None = None
        self._is_wanted: Callable[[int], bool] = lambda moment: False
        self._when: IfBusy = "during"
        self._has_cancelled = False
        self.moments = 0

    async def run(self, work: Call, wanted: Callable[[int], bool], when: IfBusy) -> bool:
        """Run this in a task and cancel it at the wanted moments. Gives whether it was cancelled."""
        self.moments, self._has_cancelled = 0, False
        self._is_wanted, self._when = wanted, when
        self._test = asyncio.current_task()
        caller = self._caller = asyncio.create_task(work)
        await asyncio.wait([caller])
        self._caller = None
        if not caller.cancelled():
            caller.result()
        assert caller.cancelled() == self._has_cancelled
        return caller.cancelled()

    def note_wait(self, waited_for: asyncio.Future[Any]) -> None:
        if asyncio.current_task() is not self._test and self._is_moment():
            if self._when == "during":
                self._cancel()
            else:
                waited_for.add_done_callback(self._cancel)

    def note_statement(self, _sql: str) -> None:
        """In a thread of SQLite. It goes on when the caller was cancelled, if this is the moment."""
        noted = threading.Event()
        self._loop.call_soon_threadsafe(self._note_statement, noted)
        noted.wait(DEADLINE_S)

    def _note_statement(self, noted: threading.Event) -> None:
        if self._when == "during" and self._is_moment():
            self._cancel()
        noted.set()

    def _is_moment(self) -> bool:
        if self._caller is None or self._caller.done():
            return False
        self.moments += 1
        return self._is_wanted(self.moments)

    def _cancel(self, _answered: object = None) -> None:
        if self._caller is not None and self._caller.cancel():
            self._has_cancelled = True

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Watched(work, self), loop=loop, **options)


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine that tells whenever it waits. It tells before its task knows, so that it is heard first."""

    def __init__(self, work: Coroutine[Any, Any, Any], watcher: Watcher) -> None:
        self._work = work
        self._watcher = watcher

    def send(self, value: Any) -> Any:
        return self._tell(self._work.send(value))

    def throw(self, *error: Any) -> Any:
        return self._tell(self._work.throw(*error))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    def _tell(self, waited_for: Any) -> Any:
        if asyncio.isfuture(waited_for):
            self._watcher.note_wait(waited_for)
        return waited_for


@pytest.fixture
async def watcher(engine: AsyncEngine) -> AsyncIterator[Watcher]:
    await settle_in(engine)
    yield Watcher()
    asyncio.get_running_loop().set_task_factory(None)


class Place:
    """A database with a few connections that are watched, and a look at it from outside."""

    def __init__(self, address: str, watcher: Watcher, outside: asyncpg.Connection | None) -> None:
        self._address = parse_address(address)
        self._watcher = watcher
        self._outside = outside
        self.opened = self._open()

    @property
    def store(self) -> Store:
        return Store(self.opened)

    def _open(self) -> OpenDatabase:
        if self._address.is_sqlite:
            file = SqliteDatabase(self._address.make_sqlite_name(), where="the file")
            file.observe = self._watcher.note_statement
            return file
        sizes = {"connections": CONNECTIONS, "urgent_connections": URGENT_CONNECTIONS}
        return PostgresDatabase(self._address.make_postgres_options(), where="the server", **sizes)

    async def reopen(self) -> None:
        await self.opened.close()
        self.opened = self._open()

    async def check_nothing_is_left(self) -> None:
        """Nobody of the store has a transaction open, asked of the database itself, and no connection is missing.

        A connection that is just being opened is set up in a transaction of its own, which nobody waits for.
        """
        if self._outside is None:
            with closing(sqlite3.connect(self._address.path, timeout=0, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
        else:
            await poll_until(self._is_at_rest, what="every transaction to end")
        async with asyncio.timeout(DEADLINE_S):
            await self._use_every_connection()

    async def _is_at_rest(self) -> bool:
        assert self._outside is not None
        return bool(await self._outside.fetchval(OPEN_TRANSACTIONS) == 0)

    async def _use_every_connection(self) -> None:
        if self._outside is None:
            readers = threading.Barrier(READERS, timeout=DEADLINE_S)

            async def meet_readers(_transaction: Transaction) -> None:
                readers.wait()

            await asyncio.gather(*(self.opened.read(meet_readers) for _ in range(READERS)))
        else:
            all_are_there = asyncio.Barrier(CONNECTIONS + URGENT_CONNECTIONS)

            async def meet(_transaction: Transaction) -> None:
                await all_are_there.wait()

            asked = [False] * CONNECTIONS + [True] * URGENT_CONNECTIONS
            await asyncio.gather(*(self.opened.write(meet, urgent=urgent, single=True) for urgent in asked))


@pytest.fixture
async def place(watcher: Watcher, database: str) -> AsyncIterator[Place]:
    outside = await asyncpg.connect(database) if database.startswith("postgresql") else None
    place = Place(database, watcher, outside)
    yield place
    await place.opened.close()
    if outside is not None:
        await outside.close()


async def cancel_at_every_moment(
    watcher: Watcher, prepare: Callable[[], Awaitable[Call]], check: Callable[[], Awaitable[None]]
) -> int:
    """Cancel the call at every moment, on both sides of it. Gives at how many."""
    cancelled = 0
    for when in BOTH_SIDES:
        for moment in range(1, MOST_MOMENTS):
            cancelled += await watcher.run(await prepare(), partial(eq, moment), when)
            await check()
            if watcher.moments < moment:
                break
        else:
            pytest.fail("it never ended")
    assert cancelled >= 2, "there was nothing to cancel"
    return cancelled


async def sweep(
    watcher: Watcher, place: Place, prepare: Callable[[], Awaitable[Call]], check: Callable[[], Awaitable[None]]
) -> int:
    async def check_all() -> None:
        await place.check_nothing_is_left()
        await check()
        await place.store.beat("next")

    return await cancel_at_every_moment(watcher, prepare, check_all)


async def test_a_command_is_carried_out_wholly_or_not_at_all(
    watcher: Watcher, place: Place, engine: AsyncEngine
) -> None:
    chat = Driver(place.store, engine)

    async def prepare() -> Call:
        nonlocal chat
        chat = Driver(place.store, engine)
        return chat.do(c.Create(with_message=True), "Hello")

    async def check() -> None:
        assert await chat.state() in {State.NONE, State.RUNNING}
        await chat.check()

    assert await sweep(watcher, place, prepare, check) > 8


async def test_a_command_on_new_connections_loses_none_of_them(
    watcher: Watcher, place: Place, engine: AsyncEngine
) -> None:
    """The moments at which a connection is made and set up are among them."""
    chat = await Driver(place.store, engine).create()

    async def prepare() -> Call:
        await place.reopen()
        return place.store.execute(chat.id, c.Interrupt(turn_id="none"))

    async def check() -> None:
        await chat.check()

    await sweep(watcher, place, prepare, check)


@pytest.mark.parametrize("with_change", [False, True])
async def test_a_flush_is_written_wholly_or_not_at_all(
    watcher: Watcher, place: Place, engine: AsyncEngine, with_change: bool
) -> None:
    store = place.store
    chats = [await (await Driver(store, engine).create()).work() for _ in range(2)]
    n = 1

    def make_rows() -> list[JournalRow]:
        rows = []
        for chat in chats:
            run = RunStarted(RunKey(chat.turn_id, 1, n), chat.attempt_id, "c", "look", "{}", f"{chat.id}-{n}")
            parts = encode([TextDelta("1", f"{n} ")])
            rows.append(JournalRow(chat.id, chat.attempt_id, chat.epoch, n, parts, (run,) if with_change else ()))
        return rows

    async def prepare() -> Call:
        nonlocal n
        n += 1
        return store.append(make_rows())

    async def check() -> None:
        written = [len(await load_journal(store, chat.id, chat.attempt_id)) for chat in chats]
        assert written in ([n - 1, n - 1], [n, n])
        started = [len(await load_ledger(store, chat.id, chat.turn_id)) for chat in chats]
        assert started == [count - 1 if with_change else 0 for count in written]
        assert await store.append(make_rows()) == Appended(frozenset(chat.attempt_id for chat in chats), frozenset())

    await sweep(watcher, place, prepare, check)


async def test_debug_records_are_written_wholly_or_not_at_all(
    watcher: Watcher, place: Place, engine: AsyncEngine
) -> None:
    chat = await Driver(place.store, engine).create()
    records = RecordStore(chat.store.database)
    number = 0

    async def prepare() -> Call:
        nonlocal number
        number += 1
        begun: dict[str, Any] = {"status": "in_progress", "started_at": SAID_AT}
        run = RunRecord(id=f"run_{number}", chat_id=chat.id, turn_id=None, kind="turn", worker_id="live", **begun)
        return records.write([run, StepRecord(chat_id=run.chat_id, run_id=run.id, step=1, **begun)])

    async def check() -> None:
        whole = await load_run(records, chat.id, f"run_{number}")
        assert whole is None or len(whole.steps) == 1

    await sweep(watcher, place, prepare, check)


async def test_a_heartbeat_that_is_cut_stops_no_other(watcher: Watcher, place: Place, engine: AsyncEngine) -> None:
    store = place.store

    async def prepare() -> Call:
        return store.beat("worker")

    async def check() -> None:
        await store.beat("worker")

    await sweep(watcher, place, prepare, check)


async def test_a_reader_that_leaves_takes_no_connection_along(
    watcher: Watcher, place: Place, engine: AsyncEngine
) -> None:
    chat = await (await Driver(place.store, engine).create()).work()

    async def prepare() -> Call:
        return chat.store.view(chat.id)

    async def check() -> None:
        assert (await chat.store.view(chat.id)).live is not None

    await sweep(watcher, place, prepare, check)


async def test_each_chat_is_taken_wholly_or_not_at_all(watcher: Watcher, place: Place, engine: AsyncEngine) -> None:
    """One that a dead worker was speaking in, so that taking it closes an attempt, and one that nobody had."""
    store = place.store
    untaken = {("dead", 1, 1), (None, 0, 0)}
    taken = {("live", 2, 0), ("live", 1, 0)}
    pair: list[Driver] = []

    async def prepare() -> Call:
        pair[:] = [await (await Driver(store, engine).create()).work("dead"), await Driver(store, engine).create()]
        return store.acquire("live", limit=4)

    async def check() -> None:
        for chat in pair:
            row = await chat.row()
            open_attempts = [attempt for attempt in await chat.rows(attempts) if attempt.ended_at is None]
            assert (row.holder, row.epoch, len(open_attempts)) in untaken | taken
            await chat.check()
            await chat.do(c.Delete())

    assert await sweep(watcher, place, prepare, check) > 20


async def test_a_caller_that_is_cancelled_again_and_again_still_waits_for_the_end(
    watcher: Watcher, place: Place, engine: AsyncEngine
) -> None:
    for when in BOTH_SIDES:
        chat = Driver(place.store, engine)
        assert await watcher.run(chat.do(c.Create(with_message=True), "Hello"), lambda moment: True, when)
        assert watcher.moments >= (8 if when == "during" else 1)
        await place.check_nothing_is_left()
        assert await chat.state() == State.RUNNING


async def test_a_failure_of_cancelled_work_is_not_reported(watcher: Watcher, place: Place, engine: AsyncEngine) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    refused = place.store.execute("chat_nowhere", c.Send())
    assert await watcher.run(refused, lambda moment: moment == 1, "during")
    with pytest.raises(NotFound):
        await place.store.execute("chat_nowhere", c.Send())
    gc.collect()
    assert complaints == []


# --- opening, closing, migrating ---


@pytest.fixture
def threads_before() -> set[threading.Thread]:
    """Those of tests that came before in this process."""
    return set(threading.enumerate())


def check_nobody_is_left(before: set[threading.Thread]) -> None:
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "postgres connection"]
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("sqlite ")]


async def count_workers(transaction: Transaction) -> int:
    return int((await transaction.one("SELECT count(*) AS count FROM workers"))["count"])


async def test_whoever_stops_while_it_opens_a_database_leaves_nobody_who_serves_it(
    watcher: Watcher, database: str, threads_before: set[threading.Thread]
) -> None:
    found: list[OpenDatabase] = []

    async def open_it() -> None:
        found.append(await open_database(database))

    async def prepare() -> Call:
        return open_it()

    async def check() -> None:
        while found:
            await found.pop().close()
        check_nobody_is_left(threads_before)

    await cancel_at_every_moment(watcher, prepare, check)


async def test_whoever_stops_while_it_closes_a_database_has_closed_it(
    watcher: Watcher, database: str, threads_before: set[threading.Thread]
) -> None:
    async def prepare() -> Call:
        opened = await open_database(database)
        reads = [opened.read(count_workers) for _ in range(3)]
        await asyncio.gather(*reads, opened.write(count_workers), opened.write(count_workers, urgent=True))
        return opened.close()

    async def check() -> None:
        check_nobody_is_left(threads_before)

    await cancel_at_every_moment(watcher, prepare, check)


async def test_a_migration_is_carried_out_wholly_or_not_at_all(new_database: str) -> None:
    watcher = Watcher()
    assert not await watcher.run(migrate(new_database), lambda moment: False, "during")
    moments = watcher.moments
    for part in (0.0, 0.3, 0.6, 0.9):
        await empty(new_database)
        moment = 1 + int(part * moments)
        was_cancelled = await watcher.run(migrate(new_database), partial(eq, moment), "during")
        assert was_cancelled or watcher.moments < moment
        opened = await open_database(new_database)
        assert await load_revision(opened) in {None, HEAD}
        await opened.close()
        assert (await migrate(new_database)).after == HEAD
    asyncio.get_running_loop().set_task_factory(None)


async def empty(database: str) -> None:
    if database.startswith("postgresql"):
        await execute(database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    else:
        parse_address(database).path.unlink()


# --- the tools ---


async def test_work_that_ends_by_itself_returns_or_raises_as_it_did() -> None:
    @run_to_completion
    async def double(number: int) -> int:
        if number < 0:
            raise ValueError("too small")
        return number * 2

    assert await double(2) == 4
    with pytest.raises(ValueError, match="too small"):
        await double(-1)


async def test_a_result_is_waited_for_however_often_the_waiter_is_cancelled() -> None:
    promise = UncancellableFuture[int]()
    waits = asyncio.Event()

    async def wait() -> int:
        waits.set()
        return await promise

    waiting = asyncio.create_task(wait())
    await waits.wait()
    for _ in range(3):
        waiting.cancel()
        await asyncio.sleep(0)
    assert not waiting.done()
    promise.set_exception(ValueError("nobody is told"))
    await asyncio.wait([waiting])
    assert waiting.cancelled()
