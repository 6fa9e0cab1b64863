"""Being there, on a real PostgreSQL: a lock that is free at two looks is a gone worker, and who lives is not mistaken.

The clock is moved by hand; what the server does is waited for. Real processes are killed in
tests/faults/test_killed_worker.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from inspect import isawaitable
from typing import Any

import asyncpg
import pytest
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.databases import execute
from tests.store.driver import OWNER, settle_in
from tests.support.app_harness import AppHarness, WatchedStore
from tests.support.engine import begin_read, begin_write, get_database
from tests.support.tables import turns, workers
from tests.support.waiting import deadline, poll_until, wait_for_task

from indelible.clock import Clock, SystemClock
from indelible.content import Text
from indelible.machine.commands import Acquire, Create
from indelible.metrics import Metrics
from indelible.notify import Changed, LocalNotifier
from indelible.store.database.address import parse_address
from indelible.store.database.migrate import migrate, open_database
from indelible.store.database.session_lock import APPLICATION_NAME, FreeLock, LockCheck, LockSession, make_key
from indelible.store.payloads import NewChat
from indelible.store.store import Store
from indelible.testing import ManualClock
from indelible.worker.presence import (
    APART_S,
    BLIND_S,
    CHECK_INTERVAL_S,
    IDLE_INTERVAL_S,
    Absences,
    OpenSession,
    Presence,
)

BEATS_S = 2.0
STEP_S = 0.32
A, B = FreeLock("worker_a", 1), FreeLock("worker_b", 2)
CUT_ALL = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1
"""
CUT_ONE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::bigint & 4294967295
"""


# --- two looks -------------------------------------------------------------------------------


def test_a_lock_that_is_free_at_one_look_is_no_reason() -> None:
    assert Absences().note([A], asked_s=10, answered_s=10) == []


def test_a_lock_that_is_free_at_two_looks_is_one_if_they_are_far_enough_apart() -> None:
    absences = Absences()
    absences.note([A], asked_s=10, answered_s=10.1)
    assert absences.note([A], asked_s=10.1 + APART_S - 0.01, answered_s=12) == []
    assert absences.note([A, B], asked_s=12.1, answered_s=12.1) == [A]


def test_the_time_between_looks_is_what_is_certain_of_it() -> None:
    """The server may have looked at the end of the first wait, and at the beginning of the second."""
    absences = Absences()
    absences.note([A], asked_s=10, answered_s=11)
    assert absences.note([A], asked_s=11.1, answered_s=12) == []


def test_a_lock_that_was_held_between_begins_anew() -> None:
    absences = Absences()
    absences.note([A], asked_s=10, answered_s=10)
    absences.note([], asked_s=10.4, answered_s=10.4)
    assert not absences
    assert absences.note([A], asked_s=10.8, answered_s=10.8) == []


def test_a_worker_that_took_another_lock_begins_anew() -> None:
    absences = Absences()
    absences.note([A], asked_s=10, answered_s=10)
    assert absences.note([A._replace(key=3)], asked_s=10.4, answered_s=10.4) == []


def test_a_look_long_after_the_last_one_is_the_first_again() -> None:
    """Whoever was frozen does not know what happened between."""
    absences = Absences()
    absences.note([A], asked_s=10, answered_s=10)
    assert absences.note([A], asked_s=60, answered_s=60) == []
    assert absences.note([A], asked_s=60.4, answered_s=60.4) == [A]


def test_what_was_seen_can_be_forgotten() -> None:
    absences = Absences()
    absences.note([A], asked_s=10, answered_s=10)
    absences.forget()
    assert absences.note([A], asked_s=10.4, answered_s=10.4) == []


# --- with a server ---------------------------------------------------------------------------


class Counted(Metrics):
    mistaken = 0

    def takeovers_mistaken(self, count: int) -> None:
        self.mistaken += count


class Watched(LockSession):
    """Counts its looks. What it proves takes real time."""

    begun = looks = 0

    async def prove(self, clock: Clock) -> bool:
        return await super().prove(SystemClock())

    async def check(self, worker_id: str | None, *, lease_timeout_s: float) -> LockCheck:
        self.begun += 1
        found = await super().check(worker_id, lease_timeout_s=lease_timeout_s)
        self.looks += 1
        return found


class Crowd:
    """Processes on one database, as far as they are there. `sessions` are all that were opened."""

    def __init__(self, engine: AsyncEngine, database: str) -> None:
        self.engine, self.database = engine, database
        self.clock = ManualClock()
        self.store = Store(get_database(engine), lease_timeout_s=3600)
        self.notifier = LocalNotifier()
        self.metrics = Counted()
        self.sessions: dict[str | None, list[Watched]] = {}
        self.tasks: dict[str | None, asyncio.Task[None]] = {}

    def start(self, worker_id: str | None) -> None:
        async def open_session(on_lost: Callable[[], object]) -> LockSession:
            session = await Watched.open(parse_address(self.database).make_postgres_options(), on_lost)
            self.sessions.setdefault(worker_id, []).append(session)
            return session

        opening: OpenSession = open_session
        presence = Presence(
            self.store,
            self.notifier,
            clock=self.clock,
            beats_s=BEATS_S,
            worker_id=worker_id,
            open_session=opening,
            metrics=self.metrics,
        )
        self.tasks[worker_id] = asyncio.create_task(presence.run())

    async def join(self, worker_id: str) -> None:
        """Start a worker's process, until others can see that it is there."""
        self.start(worker_id)
        await self.wait(lambda: self.has_lock(worker_id))

    async def die(self, worker_id: str | None) -> None:
        self.tasks[worker_id].cancel()
        with suppress(asyncio.CancelledError):
            await self.tasks[worker_id]

    async def hold_chat(self, worker_id: str) -> None:
        await self.store.execute("chat_1", Create(with_message=True), NewChat(owner_id=OWNER, blocks=[Text("hi")]))
        await self.store.execute("chat_1", Acquire(worker_id=worker_id))

    async def read(self, worker_id: str) -> Any:
        async with begin_read(self.engine) as connection:
            return (await connection.execute(select(workers).where(workers.c.id == worker_id))).one_or_none()

    async def has_lock(self, worker_id: str) -> bool:
        row = await self.read(worker_id)
        return row is not None and row.lock_key is not None and row.gone_at is None

    async def is_gone(self, worker_id: str) -> bool:
        return (await self.read(worker_id)).gone_at is not None

    async def wait(self, condition: Callable[[], Any], *, moving: bool = False) -> None:
        """Until it holds; `moving` the clock meanwhile, look by look."""

        async def holds() -> bool:
            if moving:
                await self.clock.advance(STEP_S)
            found = condition()
            return bool(await found if isawaitable(found) else found)

        await poll_until(holds)

    async def look(self, worker_id: str | None) -> None:
        """Move the clock on, until this process has looked once more."""
        session = self.sessions[worker_id][-1]
        looks = session.looks
        await self.clock.advance(IDLE_INTERVAL_S)
        await poll_until(lambda: session.looks > looks)


@pytest.fixture
async def crowd(engine: AsyncEngine, database: str) -> AsyncIterator[Crowd]:
    await settle_in(engine)
    crowd = Crowd(engine, database)
    yield crowd
    for worker_id in crowd.tasks:
        await crowd.die(worker_id)


@asynccontextmanager
async def operating(database: str) -> AsyncIterator[Any]:
    operator = await asyncpg.connect(database)
    try:
        yield operator
    finally:
        await operator.close()


async def has_gone(operator: Any) -> bool:
    """Whether the only worker there is was declared gone."""
    return await operator.fetchval("SELECT gone_at FROM workers") is not None


on_postgres = pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)


@on_postgres
@pytest.mark.parametrize("watcher", ["worker_b", None], ids=["by a worker", "by a process without one"])
async def test_a_worker_that_is_gone_is_declared_so_and_its_chats_are_named(crowd: Crowd, watcher: str | None) -> None:
    await crowd.join("worker_a")
    await crowd.hold_chat("worker_a")
    crowd.start(watcher)
    await crowd.wait(lambda: bool(crowd.sessions.get(watcher)), moving=True)
    with crowd.notifier.subscribe() as hints:
        await crowd.die("worker_a")
        await crowd.wait(partial(crowd.is_gone, "worker_a"), moving=True)
        async with deadline():
            assert await hints.wait() == Changed(frozenset({"chat_1"}))
    assert (await crowd.store.status("chat_1")).status == "pending"


@on_postgres
async def test_while_no_other_worker_holds_a_chat_a_process_checks_less_often(crowd: Crowd) -> None:
    await crowd.join("worker_a")
    await crowd.join("worker_b")
    await crowd.look("worker_b")
    session = crowd.sessions["worker_b"][-1]
    begun = session.begun
    await crowd.clock.advance(IDLE_INTERVAL_S - 0.1)
    assert session.begun == begun
    await crowd.hold_chat("worker_a")
    await crowd.look("worker_b")
    begun = session.begun
    await crowd.clock.advance(CHECK_INTERVAL_S)
    assert session.begun == begun + 1


@on_postgres
async def test_a_worker_whose_connection_is_cut_says_so_at_once_and_takes_its_lock_again(
    crowd: Crowd, database: str
) -> None:
    """No clock has moved when its lock is free and its row says so: nobody looks for it. Then it has its lock again."""
    await crowd.join("worker_a")
    await crowd.join("worker_b")
    key = (await crowd.read("worker_a")).lock_key
    async with operating(database) as operator:
        assert await operator.fetchval(CUT_ONE, key) == 1

    async def has_none() -> bool:
        return (await crowd.read("worker_a")).lock_key is None

    await crowd.wait(has_none)
    for _ in range(3):
        await crowd.look("worker_b")
    await crowd.wait(partial(crowd.has_lock, "worker_a"), moving=True)
    assert (await crowd.read("worker_a")).lock_key == key
    assert not await crowd.is_gone("worker_a")


@on_postgres
async def test_whoever_lost_its_own_connection_judges_nobody_for_a_while(crowd: Crowd, database: str) -> None:
    await crowd.join("worker_a")
    await crowd.join("worker_b")
    await crowd.die("worker_a")
    async with operating(database) as operator:
        await operator.fetchval(CUT_ALL, APPLICATION_NAME)
    await crowd.wait(lambda: len(crowd.sessions["worker_b"]) > 1, moving=True)
    began_s = crowd.clock.monotonic()
    while crowd.clock.monotonic() < began_s + BLIND_S - 2 * IDLE_INTERVAL_S:
        await crowd.look("worker_b")
        assert not await crowd.is_gone("worker_a")
    await crowd.wait(partial(crowd.is_gone, "worker_a"), moving=True)


@on_postgres
async def test_whoever_finds_a_server_that_has_just_started_judges_nobody_for_a_while(
    crowd: Crowd, new_postgres: str, engine: AsyncEngine
) -> None:
    """Whoever starts right then has lost no connection, but the others have, and need a moment to come back."""
    name = new_postgres.rpartition("?")[0].rpartition("/")[2]
    begins = "SELECT clock_timestamp()"
    new = f"CREATE FUNCTION pretended.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql AS '{begins}'"
    path = f"ALTER DATABASE {name} SET search_path = pretended, pg_catalog, public"
    await migrate(new_postgres)
    await execute(new_postgres, "CREATE SCHEMA pretended", new, path)
    opened = await open_database(parse_address(new_postgres))
    crowd.store, crowd.database = Store(opened, lease_timeout_s=3600), new_postgres
    await crowd.store.beat("worker_a", lock_key=make_key())
    crowd.start(None)
    await crowd.wait(lambda: bool(crowd.sessions.get(None)), moving=True)
    session = crowd.sessions[None][0]
    await crowd.wait(lambda: session.looks > 0)
    began_s = crowd.clock.monotonic()
    async with operating(new_postgres) as operator:
        while crowd.clock.monotonic() < began_s + BLIND_S - 2 * IDLE_INTERVAL_S:
            looks = session.looks
            await crowd.clock.advance(IDLE_INTERVAL_S)

            async def has_looked() -> bool:
                return session.looks > looks or await has_gone(operator)  # noqa: B023

            await crowd.wait(has_looked)
            assert not await has_gone(operator)
        await crowd.wait(partial(has_gone, operator), moving=True)
    await crowd.die(None)
    await opened.close()


@on_postgres
async def test_a_living_worker_that_was_declared_gone_comes_back_and_its_takeovers_do_not_count(
    crowd: Crowd, engine: AsyncEngine
) -> None:
    await crowd.join("worker_a")
    await crowd.hold_chat("worker_a")
    async with begin_write(engine) as connection:
        await connection.execute(update(workers).where(workers.c.id == "worker_a").values(gone_at=datetime.now(UTC)))
    await crowd.store.execute("chat_1", Acquire(worker_id="worker_b"))
    await crowd.clock.advance(BEATS_S)
    await crowd.wait(partial(crowd.has_lock, "worker_a"), moving=True)
    await poll_until(lambda: crowd.metrics.mistaken == 1)
    async with begin_read(engine) as connection:
        assert (await connection.execute(select(turns.c.takeovers))).scalars().all() == [0]


@on_postgres
async def test_where_locks_do_not_hold_only_the_lease_counts(
    crowd: Crowd, new_postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = new_postgres.rpartition("?")[0].rpartition("/")[2]
    accepts = "CREATE FUNCTION pretended.pg_advisory_lock_shared(bigint) RETURNS void LANGUAGE sql AS ''"
    path = f"ALTER DATABASE {name} SET search_path = pretended, pg_catalog, public"
    await execute(new_postgres, "CREATE SCHEMA pretended", accepts, path)
    crowd.database = new_postgres
    caplog.set_level(logging.INFO)
    crowd.start("worker_a")
    await crowd.wait(lambda: "locks of sessions do not hold here" in caplog.text)
    before = (await crowd.read("worker_a")).heartbeat_at
    await crowd.clock.advance(BEATS_S)

    async def has_beaten() -> bool:
        return bool((await crowd.read("worker_a")).heartbeat_at > before)

    await crowd.wait(has_beaten)
    assert (await crowd.read("worker_a")).lock_key is None
    assert len(crowd.sessions["worker_a"]) == 1, "it does not try again"


async def test_without_sessions_for_locks_a_worker_only_beats(crowd: Crowd) -> None:
    presence = Presence(crowd.store, crowd.notifier, clock=crowd.clock, beats_s=BEATS_S, worker_id="worker_a")
    crowd.tasks["worker_a"] = asyncio.create_task(presence.run())

    async def has_beaten() -> bool:
        return await crowd.read("worker_a") is not None

    await crowd.wait(has_beaten)
    assert (await crowd.read("worker_a")).lock_key is None


@on_postgres
async def test_a_worker_that_leaves_is_not_declared_gone_while_it_writes_its_last(
    harness: AppHarness, crowd: Crowd, database: str
) -> None:
    """Its lock is free then, and others would end its debug records."""
    last, may_leave = asyncio.Event(), asyncio.Event()

    class Slow(WatchedStore):
        async def retire(self, worker_id: str) -> None:
            last.set()
            await may_leave.wait()
            await self._store.retire(worker_id)

    open_session = partial(LockSession.open, parse_address(database).make_postgres_options())
    running = await harness.start_worker(store=Slow(harness.store), open_session=open_session)
    leaving = running.worker.id
    await crowd.wait(partial(crowd.has_lock, leaving))
    await crowd.join("worker_b")
    running.worker.stop()
    await last.wait()
    try:
        session = crowd.sessions["worker_b"][-1]
        looks = session.looks
        await crowd.wait(lambda: session.looks > looks + 4, moving=True)
        assert not await crowd.is_gone(leaving)
    finally:
        may_leave.set()
    await wait_for_task(running.task)
