"""Debug records stand in nobody's way: whoever works on a chat does not wait for them, nor they for whoever does.

On PostgreSQL somebody is stopped in the middle of a transaction, by a row that this test has locked, until
`pg_blocking_pids` says that he stands there; then the others have to get through. SQLite has one writer at a time, so
that there everything comes one after the other, and only the storm at the end says something.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Select, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from tests.databases import EMPTY, FREE, execute
from tests.recording.recorded import NOON, count_rows, load_run
from tests.store.driver import Driver, settle_in
from tests.support.engine import close_databases, get_database, open_engine
from tests.support.tables import chats, debug_attempts, debug_runs, events

from indelible.api.records import AttemptRecord, Record, RunRecord, StepRecord
from indelible.clock import SystemClock
from indelible.content import TextDelta, encode
from indelible.errors import NotFound
from indelible.ids import new_id
from indelible.machine import State
from indelible.machine import commands as c
from indelible.recording.storage import RecordStore
from indelible.store.database import postgres as product
from indelible.store.journal.append import JournalRow
from indelible.store.store import Store
from indelible.testing import ManualClock

pytestmark = pytest.mark.both_databases

DEADLINE_S = 30
ROUNDS = 6
LAST = "run_zzz"
WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
"""


def make_story(chat_id: str, **fields: Any) -> list[Record]:
    """A run with one step and one exchange."""
    known: dict[str, Any] = {"id": new_id("run"), "turn_id": None, "kind": "turn", "worker_id": "live"}
    run = RunRecord(**{**known, "chat_id": chat_id, "status": "in_progress", "started_at": NOON, **fields})
    place: dict[str, Any] = {"chat_id": chat_id, "run_id": run.id, "step": 1}
    step = StepRecord(**place, status="in_progress", started_at=NOON)
    times: dict[str, Any] = {"started_at": NOON, "ended_at": NOON}
    return [run, step, AttemptRecord(**place, number=1, status="completed", method="", url="", **times)]


# --- PostgreSQL, at once ---


def make_store(engine: AsyncEngine) -> Store:
    """As the program composes it: a chat that is deleted loses its records first."""
    store = Store(get_database(engine))
    store.before_delete = partial(RecordStore(get_database(engine)).forget_chat, clock=SystemClock())
    return store


@pytest.fixture
async def postgres(migrated_postgres: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngine]:
    """Locks are held until the test lets go of them, however slow the machine is."""
    for limit in ("lock_timeout", "idle_in_transaction_session_timeout"):
        monkeypatch.setitem(product.SETTINGS, limit, "120s")
    await execute(migrated_postgres, FREE, EMPTY)
    engine = await open_engine(migrated_postgres)
    await settle_in(engine)
    yield engine
    await close_databases()
    await engine.dispose()


@asynccontextmanager
async def locked(
    engine: AsyncEngine, rows: Select[tuple[str]], *, key_share: bool = False
) -> AsyncIterator[AsyncConnection]:
    """Whoever comes to these rows stands there until this is over. With `key_share` they are locked as commands do."""
    async with engine.connect() as connection:
        assert (await connection.execute(rows.with_for_update(key_share=key_share))).all()
        yield connection
        await connection.rollback()


async def wait_until(connection: AsyncConnection, *, waiting: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (await connection.execute(text(WAITING))).scalar_one() != waiting:
            await connection.execute(text("SELECT pg_stat_clear_snapshot()"))


async def test_records_are_written_while_somebody_works_on_the_chat(postgres: AsyncEngine) -> None:
    chat = await Driver(make_store(postgres), postgres).create()
    records = RecordStore(chat.store.database)
    run, *rest = make_story(chat.id, worker_id="dead")
    assert isinstance(run, RunRecord)
    async with locked(postgres, select(chats.c.id), key_share=True) as at, asyncio.timeout(DEADLINE_S):
        await records.write([run])
        await records.write(rest)
        assert await records.close_earlier({chat.id: LAST}, lease_timeout_s=8) == 1
        assert await records.close_dead(lease_timeout_s=8) == 0
        assert len(await records.list_runs(chat.id)) == 1
        assert await records.forget_before(NOON + timedelta(1), clock=ManualClock()) == 1
        await wait_until(at, waiting=0)


async def test_a_command_does_not_wait_for_records_that_are_being_written(postgres: AsyncEngine) -> None:
    chat = await (await Driver(make_store(postgres), postgres).create()).work()
    records = RecordStore(chat.store.database)
    story = make_story(chat.id)
    await records.write(story)
    async with asyncio.TaskGroup() as tasks, locked(postgres, select(debug_runs.c.id)) as at:
        tasks.create_task(records.write(story))
        await wait_until(at, waiting=1)
        async with asyncio.timeout(DEADLINE_S):
            said = encode([TextDelta("1", " raining.")])
            appended = await chat.store.append([JournalRow(chat.id, chat.attempt_id, chat.epoch, 2, said)])
            assert appended.written == {chat.attempt_id}
            await chat.do(c.Send(), "next")
            await chat.end(c.CommitStep)
        await wait_until(at, waiting=1)
    await chat.check()


async def test_what_is_written_during_a_deletion_goes_with_the_chat_and_the_rest_is_kept(postgres: AsyncEngine) -> None:
    store = make_store(postgres)
    gone, other = [await Driver(store, postgres).create() for _ in range(2)]
    records = RecordStore(store.database)
    left = make_story(gone.id)
    await records.write(left)
    async with (
        asyncio.TaskGroup() as tasks,
        locked(postgres, select(events.c.kind).where(events.c.chat_id == gone.id)) as at,
    ):
        tasks.create_task(gone.do(c.Delete()))
        await wait_until(at, waiting=1)
        tasks.create_task(records.write([*left, *make_story(gone.id), *make_story(other.id)]))
        tasks.create_task(records.write(left[1:]))
        await wait_until(at, waiting=3)
        async with asyncio.timeout(DEADLINE_S):
            await records.write(make_story(other.id))
            await records.close_dead(lease_timeout_s=8)
            await records.close_earlier({gone.id: LAST}, lease_timeout_s=8)
    assert await gone.state() == State.NONE
    assert await count_rows(postgres) == [2, 2, 2]


async def test_a_chat_is_deleted_as_soon_as_its_records_are_written(postgres: AsyncEngine) -> None:
    chat = await Driver(make_store(postgres), postgres).create()
    story = make_story(chat.id)
    await RecordStore(chat.store.database).write(story)
    async with asyncio.TaskGroup() as tasks, locked(postgres, select(debug_runs.c.id)) as at:
        tasks.create_task(RecordStore(chat.store.database).write([*story, *make_story(chat.id)]))
        await wait_until(at, waiting=1)
        tasks.create_task(chat.do(c.Delete()))
        await wait_until(at, waiting=2)
    assert await chat.state() == State.NONE
    assert await count_rows(postgres) == [0, 0, 0]


async def test_whoever_ends_or_forgets_runs_passes_over_those_that_are_being_written(postgres: AsyncEngine) -> None:
    chat = await Driver(make_store(postgres), postgres).create()
    records = RecordStore(chat.store.database)
    busy, free = make_story(chat.id, worker_id="dead"), make_story(chat.id, worker_id="dead")
    await records.write([*busy, *free])
    assert isinstance(busy[0], RunRecord)
    async with locked(postgres, select(debug_runs.c.id).where(debug_runs.c.id == busy[0].id), key_share=True):
        async with asyncio.timeout(DEADLINE_S):
            assert await records.close_earlier({chat.id: LAST}, lease_timeout_s=8) == 1
            assert await records.close_dead(lease_timeout_s=8) == 0
            assert await records.forget_before(NOON + timedelta(1), clock=ManualClock()) == 1
    assert [run.status for run in await records.list_runs(chat.id)] == ["in_progress"]
    assert await records.close_dead(lease_timeout_s=8) == 1
    assert await records.forget_before(NOON + timedelta(1), clock=ManualClock()) == 1


async def test_what_is_written_to_a_run_that_is_being_forgotten_is_left_out_and_the_rest_is_kept(
    postgres: AsyncEngine,
) -> None:
    chat = await Driver(make_store(postgres), postgres).create()
    records = RecordStore(chat.store.database)
    old, young = make_story(chat.id, started_at=NOON - timedelta(days=1)), make_story(chat.id)
    await records.write(old)
    async with asyncio.TaskGroup() as tasks, locked(postgres, select(debug_attempts.c.run_id)) as at:
        forgetting = tasks.create_task(records.forget_before(NOON, clock=ManualClock()))
        await wait_until(at, waiting=1)
        _, step, exchange = old
        assert isinstance(step, StepRecord)
        tasks.create_task(records.write([step, replace(step, step=2), exchange, *young]))
        await wait_until(at, waiting=2)
    assert forgetting.result() == 1
    assert await count_rows(postgres) == [1, 1, 1]


# --- both databases, everything at once ---


async def test_everything_at_once_fails_nothing_and_leaves_nothing_open(engine: AsyncEngine) -> None:
    """Two workers write, one of them dead, while runs are ended and forgotten and chats are used and deleted."""
    await settle_in(engine)
    store = make_store(engine)
    records = RecordStore(store.database)
    runs: list[RunRecord] = []

    async def tell(chat: Driver, worker_id: str) -> None:
        story = make_story(chat.id, worker_id=worker_id)
        run, step, exchange = story
        assert isinstance(run, RunRecord)
        assert isinstance(step, StepRecord)
        runs.append(run)
        over: dict[str, Any] = {"status": "completed", "ended_at": NOON}
        end: list[Record] = [replace(step, **over), replace(run, **over)]
        for batch in ([run], [exchange, step], [exchange], end):
            await records.write(batch)

    async def use(chat: Driver) -> None:
        try:
            for number in range(3):
                await chat.do(c.Send(), f"message {number}")
        except NotFound:
            return  # deleted meanwhile

    async def tidy(chat: Driver) -> None:
        await records.close_dead(lease_timeout_s=8)
        await records.close_earlier({chat.id: LAST}, lease_timeout_s=8)
        await records.forget_before(NOON - timedelta(days=1), clock=ManualClock(), chunk_s=0)
        await records.list_runs(chat.id)

    for _ in range(ROUNDS):
        pair = [await Driver(store, engine).create() for _ in range(2)]
        old = make_story(pair[0].id, started_at=NOON - timedelta(days=9))
        await records.write(old)
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            for chat in pair:
                for worker_id in ("live", "dead"):
                    tasks.create_task(tell(chat, worker_id))
                tasks.create_task(use(chat))
                tasks.create_task(tidy(chat))
            tasks.create_task(pair[1].do(c.Delete()))
        assert await records.list_runs(pair[1].id) == []
        left = await records.list_runs(pair[0].id)
        assert len(left) == 2, "the old one is forgotten"
        for line in left:
            whole = await load_run(records, pair[0].id, line.id)
            assert whole is not None
            assert whole.status != "in_progress"
            assert {step.status for step in whole.steps} <= {"completed", "error"}
    assert len(runs) == 4 * ROUNDS
