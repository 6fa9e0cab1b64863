"""Real processes on a real PostgreSQL, and leases that outlast every test: only a free lock tells who is gone.

So a chat that goes on after a kill did not wait for one. Whoever lives is not taken for dead: not one that
is frozen, nor when the connections of all are cut, nor when the server restarts.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.faults.checked_reader import CheckedReader, reading, wait_for_words
from tests.log_records import DATABASE_AWAY
from tests.support.engine import begin_read, open_engine
from tests.support.process_harness import ENDLESS_LEASES, SLOWLY, ProcessHarness, WorkerProcess
from tests.support.tables import turns, workers
from tests.support.waiting import poll_until

import indelible
from indelible.app.app import App
from indelible.store.database.migrate import migrate
from indelible.store.database.session_lock import APPLICATION_NAME

CHATS = 3
STREAMS = 20
CUTS = 5
CUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1
"""


async def start_worker(harness: ProcessHarness, **settings: Any) -> WorkerProcess:
    """Start a worker, until others can see that it is there."""
    worker = await harness.start_worker(**ENDLESS_LEASES, **settings)
    await wait_for_locks(harness.engine, worker)
    return worker


async def wait_for_locks(engine: AsyncEngine, *expected: WorkerProcess) -> None:
    ids = {worker.id for worker in expected}

    async def have_locks() -> bool:
        async with begin_read(engine) as connection:
            held = await connection.execute(select(workers.c.id).where(workers.c.lock_key.is_not(None)))
            return ids <= set(held.scalars())

    await poll_until(have_locks)


async def ask(app: App, count: int) -> list[CheckedReader]:
    return [CheckedReader(await app.create_chat(SLOWLY)) for _ in range(count)]


async def count_takeovers(engine: AsyncEngine) -> int:
    async with begin_read(engine) as connection:
        return int((await connection.execute(select(func.coalesce(func.sum(turns.c.takeovers), 0)))).scalar_one())


async def list_gone(engine: AsyncEngine) -> set[str]:
    async with begin_read(engine) as connection:
        return set((await connection.execute(select(workers.c.id).where(workers.c.gone_at.is_not(None)))).scalars())


async def end(harness: ProcessHarness, readers: Sequence[CheckedReader]) -> None:
    """Every reply comes to its end, and what was seen is what is stored."""
    harness.finish_replies()
    for reader in readers:
        await reader.wait_for_ends(1)
    await harness.engine.dispose()  # its connections may have been cut
    for reader in readers:
        stored = await reader.check(harness.engine)
        assert [turn.outcome for turn in stored.turns] == ["complete"]


on_postgres = pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)


@on_postgres
async def test_chats_of_a_killed_worker_go_on_at_the_other_before_its_lease_has_run_out(
    harness: ProcessHarness, app: App
) -> None:
    victim = await start_worker(harness)
    readers = await ask(app, CHATS)
    async with reading(*readers):
        await wait_for_words(readers, 5)
        await start_worker(harness)
        await victim.kill()
        await wait_for_words(readers, 3)
        assert await list_gone(harness.engine) == {victim.id}
        await end(harness, readers)
    assert await count_takeovers(harness.engine) == CHATS


@on_postgres
async def test_a_restarted_process_does_not_wait_for_its_predecessor(harness: ProcessHarness, app: App) -> None:
    victim = await start_worker(harness)
    readers = await ask(app, CHATS)
    async with reading(*readers):
        await wait_for_words(readers, 5)
        await victim.kill()
        await start_worker(harness)
        await wait_for_words(readers, 3)
        await end(harness, readers)
    assert await count_takeovers(harness.engine) == CHATS


@on_postgres
async def test_a_stop_of_a_chat_whose_worker_was_killed_needs_no_worker(harness: ProcessHarness, app: App) -> None:
    """The process that takes the stop has no worker, and finds out that the other one is gone."""
    victim = await start_worker(harness)
    (reader,) = await ask(app, 1)
    async with reading(reader):
        await wait_for_words([reader], 5)
        await victim.kill()

        async def is_pending() -> bool:
            return await reader.chat.status() == "pending"

        await poll_until(is_pending)
        await reader.chat.interrupt()
        await reader.wait_for_ends(1)
    stored = await reader.check(harness.engine)
    assert [turn.outcome for turn in stored.turns] == ["interrupted"]


@on_postgres
async def test_a_frozen_worker_is_not_gone(harness: ProcessHarness, app: App) -> None:
    """It keeps its connections: by the time that another one's death was noticed, its own chats still wait for it."""
    frozen = await start_worker(harness)
    waiting = await ask(app, CHATS)
    async with reading(*waiting):
        await wait_for_words(waiting, 3)
        frozen.send_signal(signal.SIGSTOP)
        victim = await start_worker(harness)
        readers = await ask(app, CHATS)
        async with reading(*readers):
            await wait_for_words(readers, 3)
            await start_worker(harness)
            await victim.kill()
            await wait_for_words(readers, 3)
            assert await list_gone(harness.engine) == {victim.id}
            holders = await harness.find_holders()
            assert {holders[reader.chat.id] for reader in waiting} == {frozen.id}
            frozen.send_signal(signal.SIGCONT)
            await end(harness, [*waiting, *readers])
    assert await count_takeovers(harness.engine) == CHATS, "those of the killed one"


# --- whoever lives is not taken for dead ---


@on_postgres
@pytest.mark.may_log(*DATABASE_AWAY)
async def test_no_worker_is_taken_for_dead_when_the_connections_for_locks_are_cut(
    harness: ProcessHarness, app: App, database: str
) -> None:
    both = [await start_worker(harness), await start_worker(harness)]
    readers = await ask(app, STREAMS)
    operator = await asyncpg.connect(database)
    async with reading(*readers):
        await wait_for_words(readers, 1)
        for _ in range(CUTS):
            await wait_for_locks(harness.engine, *both)
            assert await operator.fetchval(CUT, APPLICATION_NAME) >= len(both)
            await wait_for_words(readers, 2)
        await operator.close()
        await wait_for_locks(harness.engine, *both)
        await end(harness, readers)
    assert (await count_takeovers(harness.engine), await list_gone(harness.engine)) == (0, set())


@pytest.fixture
async def own_engine(own_server: Any) -> AsyncIterator[AsyncEngine]:
    address = f"postgresql://postgres@/postgres?host={own_server.pgdata}"
    await migrate(address)
    engine = await open_engine(address)
    yield engine
    await engine.dispose()


@pytest.mark.may_log(*DATABASE_AWAY)
async def test_no_worker_is_taken_for_dead_when_the_server_restarts(
    own_server: Any, own_engine: AsyncEngine, tmp_path: Path
) -> None:
    address = f"postgresql://postgres@/postgres?host={own_server.pgdata}"
    async with ProcessHarness(address, tmp_path).opened() as harness, indelible.open(address, worker=False) as app:
        both = [await start_worker(harness), await start_worker(harness)]
        readers = await ask(app, STREAMS)
        async with reading(*readers):
            await wait_for_words(readers, 2)
            await asyncio.to_thread(own_server.stop)
            await asyncio.to_thread(own_server.ensure_postgres_running)
            await harness.engine.dispose()  # its connections were cut with everybody's
            await wait_for_words(readers, 2)
            await wait_for_locks(harness.engine, *both)
            await end(harness, readers)
        assert (await count_takeovers(harness.engine), await list_gone(harness.engine)) == (0, set())
