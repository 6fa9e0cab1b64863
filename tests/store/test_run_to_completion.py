"""A caller that is cancelled at any moment at which the store waits for its database leaves nothing behind.

Nothing is patched, neither the store nor a driver. Every task of these tests runs a coroutine that is watched: whenever
it waits for something, that is a moment, and the caller can be cancelled there. *During* it, the question is with the
driver and the answer is not there yet; *after* it, the answer has come and nobody has looked at it. Each call is
made again and again, cancelled one moment later every time, until there is no moment left. After every one of them
the caller was told that it is cancelled, no transaction is open and no connection is missing in the pool, what was
to be written is there or not, but never half, and the next write goes through at once.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import closing
from functools import partial
from operator import eq
from typing import Any, Literal

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import SAID_AT, Driver, settle_in

from indelible.concurrency.tasks import UncancellableFuture, run_to_completion
from indelible.content import TextDelta, encode
from indelible.errors import NotFound
from indelible.machine import State
from indelible.machine import commands as c
from indelible.recording.storage.protocol import RunRecord, StepRecord
from indelible.recording.storage.sql_records import SqlRecords
from indelible.store.database.engine import is_sqlite
from indelible.store.database.tables import attempts
from indelible.store.journal.append import Appended, JournalRow
from indelible.store.journal.tool_ledger import RunKey, RunStarted
from indelible.store.sql_store import SqlStore

IfBusy = Literal["during", "after"]
BOTH_SIDES: tuple[IfBusy, ...] = ("during", "after")
MOST_MOMENTS = 400
OPEN_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'indelible' AND xact_start IS NOT NULL
"""


class Watcher:
    """Counts the moments at which the tasks of an event loop wait, and cancels the caller at the one it is told."""

    def __init__(self) -> None:
        self._caller: asyncio.Task[Any] | None = None
        self._is_wanted: Callable[[int], bool] = lambda moment: False
        self._when: IfBusy = "during"
        self.moments = 0
        self.reached = False

    async def run(self, work: Coroutine[Any, Any, object], wanted: Callable[[int], bool], when: IfBusy) -> bool:
        """Run this in a task and cancel it at the wanted moments. Gives whether it was cancelled."""
        self.moments, self.reached = 0, False
        self._is_wanted, self._when = wanted, when
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        try:
            caller = self._caller = asyncio.create_task(work)
            await asyncio.wait([caller])
        finally:
            loop.set_task_factory(None)
            self._caller = None
        if not caller.cancelled():
            caller.result()
        return caller.cancelled()

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Watched(work, self), loop=loop, **options)

    def note_wait(self, waited_for: asyncio.Future[Any]) -> None:
        if self._caller is None or self._caller.done():
            return
        self.moments += 1
        if not self._is_wanted(self.moments):
            return
        self.reached = True
        caller = self._caller
        if self._when == "during":
            caller.cancel()
        else:
            waited_for.add_done_callback(lambda answered: caller.cancel())


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
async def watcher(engine: AsyncEngine) -> Watcher:
    await settle_in(engine)
    return Watcher()


async def check_nothing_is_left(engine: AsyncEngine) -> None:
    """Nobody of the store has a transaction open, asked of the database itself, and no connection is missing."""
    pool: Any = engine.sync_engine.pool
    assert pool.checkedout() == 0
    if is_sqlite(engine.url):
        with closing(sqlite3.connect(str(engine.url.database), timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        return
    connection = await asyncpg.connect(engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        assert await connection.fetchval(OPEN_TRANSACTIONS) == 0
    finally:
        await connection.close()


async def sweep(
    watcher: Watcher,
    engine: AsyncEngine,
    prepare: Callable[[], Awaitable[Coroutine[Any, Any, object]]],
    check: Callable[[], Awaitable[None]],
) -> int:
    """Cancel the call at every moment, on both sides of it. Gives at how many."""
    store = SqlStore(engine)
    cancelled = 0
    for when in BOTH_SIDES:
        for moment in range(1, MOST_MOMENTS):
            work = await prepare()
            was_cancelled = await watcher.run(work, partial(eq, moment), when)
            assert was_cancelled == watcher.reached
            await check_nothing_is_left(engine)
            await check()
            await store.beat("next")
            if not was_cancelled:
                break
            cancelled += 1
        else:
            pytest.fail("it never ended")
    assert cancelled >= 2, "there was nothing to cancel"
    return cancelled


async def test_a_command_is_carried_out_wholly_or_not_at_all(watcher: Watcher, engine: AsyncEngine) -> None:
    chat = Driver(SqlStore(engine), engine)

    async def prepare() -> Coroutine[Any, Any, object]:
        nonlocal chat
        chat = Driver(SqlStore(engine), engine)
        return chat.do(c.Create(with_message=True), "Hello")

    async def check() -> None:
        assert await chat.state() in {State.NONE, State.RUNNING}
        await chat.check()

    assert await sweep(watcher, engine, prepare, check) > 20


async def test_a_command_on_new_connections_loses_none_of_them(watcher: Watcher, engine: AsyncEngine) -> None:
    """The moments at which a connection is made and set up are among them."""
    chat = await Driver(SqlStore(engine), engine).create()

    async def prepare() -> Coroutine[Any, Any, object]:
        await engine.dispose()
        return chat.store.execute(chat.id, c.Interrupt(turn_id="none"))

    async def check() -> None:
        await chat.check()

    await sweep(watcher, engine, prepare, check)


@pytest.mark.parametrize("with_change", [False, True])
async def test_a_flush_is_written_wholly_or_not_at_all(
    watcher: Watcher, engine: AsyncEngine, with_change: bool
) -> None:
    store = SqlStore(engine)
    chats = [await (await Driver(store, engine).create()).work() for _ in range(2)]
    n = 1

    def make_rows() -> list[JournalRow]:
        rows = []
        for chat in chats:
            run = RunStarted(RunKey(chat.turn_id, 1, n), chat.attempt_id, "c", "look", "{}", f"{chat.id}-{n}")
            parts = encode([TextDelta("1", f"{n} ")])
            rows.append(JournalRow(chat.id, chat.attempt_id, chat.epoch, n, parts, (run,) if with_change else ()))
        return rows

    async def prepare() -> Coroutine[Any, Any, object]:
        nonlocal n
        n += 1
        return store.append(make_rows())

    async def check() -> None:
        written = [len(await store.rows(chat.attempt_id)) for chat in chats]
        assert written in ([n - 1, n - 1], [n, n])
        started = [len(await store.runs(chat.turn_id)) for chat in chats]
        assert started == [count - 1 if with_change else 0 for count in written]
        assert await store.append(make_rows()) == Appended(frozenset(chat.attempt_id for chat in chats), frozenset())

    await sweep(watcher, engine, prepare, check)


async def test_debug_records_are_written_wholly_or_not_at_all(watcher: Watcher, engine: AsyncEngine) -> None:
    chat = await Driver(SqlStore(engine), engine).create()
    records = SqlRecords(chat.store.engine)
    number = 0

    async def prepare() -> Coroutine[Any, Any, object]:
        nonlocal number
        number += 1
        begun: dict[str, Any] = {"status": "in_progress", "started_at": SAID_AT}
        run = RunRecord(id=f"run_{number}", chat_id=chat.id, turn_id=None, kind="turn", worker_id="live", **begun)
        return records.write([run, StepRecord(run_id=run.id, step=1, **begun)])

    async def check() -> None:
        whole = await records.load_run(chat.id, f"run_{number}")
        assert whole is None or len(whole.steps) == 1

    await sweep(watcher, engine, prepare, check)


async def test_a_heartbeat_that_is_cut_stops_no_other(watcher: Watcher, engine: AsyncEngine) -> None:
    store = SqlStore(engine)

    async def prepare() -> Coroutine[Any, Any, object]:
        return store.beat("worker")

    async def check() -> None:
        await store.beat("worker")

    await sweep(watcher, engine, prepare, check)


async def test_a_reader_that_leaves_takes_no_connection_along(watcher: Watcher, engine: AsyncEngine) -> None:
    chat = await (await Driver(SqlStore(engine), engine).create()).work()

    async def prepare() -> Coroutine[Any, Any, object]:
        return chat.store.view(chat.id)

    async def check() -> None:
        assert (await chat.store.view(chat.id)).live is not None

    await sweep(watcher, engine, prepare, check)


async def test_each_chat_is_taken_wholly_or_not_at_all(watcher: Watcher, engine: AsyncEngine) -> None:
    """One that a dead worker was speaking in, so that taking it closes an attempt, and one that nobody had."""
    store = SqlStore(engine)
    patterns = [await (await Driver(store, engine).create()).work("dead"), await Driver(store, engine).create()]
    untaken = {("dead", 1, 1), (None, 0, 0)}
    taken = {("live", 2, 0), ("live", 1, 0)}
    pair: list[Driver] = []

    async def prepare() -> Coroutine[Any, Any, object]:
        pair[:] = [await pattern.copy() for pattern in patterns]
        return store.acquire("live", limit=4)

    async def check() -> None:
        for chat in pair:
            row = await chat.row()
            open_attempts = [attempt for attempt in await chat.rows(attempts) if attempt.ended_at is None]
            assert (row.holder, row.epoch, len(open_attempts)) in untaken | taken
            await chat.check()
            await chat.do(c.Delete())

    await sweep(watcher, engine, prepare, check)


async def test_whoever_is_told_again_and_again_to_stop_still_waits_for_the_end(
    watcher: Watcher, engine: AsyncEngine
) -> None:
    for when in BOTH_SIDES:
        chat = Driver(SqlStore(engine), engine)
        assert await watcher.run(chat.do(c.Create(with_message=True), "Hello"), lambda moment: True, when)
        assert watcher.moments > 10
        await check_nothing_is_left(engine)
        assert await chat.state() == State.RUNNING


async def test_a_failure_of_what_was_cancelled_is_told_to_nobody(watcher: Watcher, engine: AsyncEngine) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    refused = SqlStore(engine).execute("chat_nowhere", c.Send())
    assert await watcher.run(refused, lambda moment: moment == 3, "during")
    with pytest.raises(NotFound):
        await SqlStore(engine).execute("chat_nowhere", c.Send())
    assert complaints == []


async def test_work_that_ends_by_itself_is_told_as_it_ended() -> None:
    @run_to_completion
    async def double(number: int) -> int:
        if number < 0:
            raise ValueError("too small")
        return number * 2

    assert await double(2) == 4
    with pytest.raises(ValueError, match="too small"):
        await double(-1)


async def test_what_was_promised_is_waited_for_however_often_one_is_told_to_stop() -> None:
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
