"""Several worker processes on one PostgreSQL: killed, told to leave, and put to sleep past their lease.

Every reply is a known text (counting_model.py), read by a process that is none of the workers (checked_reader.py). So
a chat that nobody takes over, one that two workers answer, and a worker that writes after it lost a chat all show in
the text or in the rows.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.faults.checked_reader import CheckedReader, reading, wait_for_words
from tests.support.engine import begin_read
from tests.support.process_harness import (
    DEFAULT_LEASES,
    ENDLESS_LEASES,
    SHORT_LEASES,
    SLOWLY,
    ProcessHarness,
    WorkerProcess,
)
from tests.support.tables import attempts, journal, messages, turns, workers
from tests.support.waiting import poll_until

import indelible
from indelible.app.app import App
from indelible.settings import load_settings

pytestmark = pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)

STAND_IN_THE_WAY = "SELECT id FROM turns WHERE chat_id = :chat_id FOR UPDATE"
"""Nobody can begin an attempt of this turn, which would refer to it."""

IS_IN_THE_WAY = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
IS_LEFT_OPEN = """
SELECT count(*) > 0 FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE datname = current_database() AND state = 'idle in transaction'
AND relation = 'attempts'::regclass AND mode = 'RowExclusiveLock'
"""


async def ask_all(app: App, number: int) -> list[CheckedReader]:
    """So many chats, each with a reply that takes its time."""
    return [CheckedReader(await app.create_chat(SLOWLY)) for _ in range(number)]


async def wait_for_the_end(harness: ProcessHarness, readers: Sequence[CheckedReader]) -> None:
    harness.finish_replies()
    for reader in readers:
        await reader.wait_for_ends(1)


async def count_takeovers(harness: ProcessHarness, readers: Sequence[CheckedReader]) -> int:
    """How often these chats were taken from a dead worker; each of them is checked on the way."""
    for reader in readers:
        stored = await reader.check(harness.engine)
        assert [turn.outcome for turn in stored.turns] == ["complete"]
    async with begin_read(harness.engine) as connection:
        return sum((await connection.execute(select(turns.c.takeovers))).scalars())


# --- killed ---


@pytest.mark.parametrize(
    ("leases", "within_s"),
    [pytest.param(SHORT_LEASES, 5.0, id="short leases"), pytest.param(DEFAULT_LEASES, 10.0, id="default leases")],
)
async def test_chats_of_a_killed_worker_go_on_at_the_other(
    harness: ProcessHarness, app: App, leases: Mapping[str, Any], within_s: float
) -> None:
    """How long it really takes is measured by `python -m bench worker`; here it is what the settings allow for."""
    settings = load_settings(**leases)
    assert settings.lease_timeout_s + settings.poll_interval_s < within_s
    await harness.start_worker(**leases)
    await harness.start_worker(**leases)
    readers = await ask_all(app, 3)
    async with reading(*readers):
        await wait_for_words(readers, 5)
        victim, bereaved = await find_busiest(harness, readers)
        await victim.kill()
        await wait_for_words(bereaved, 1)
        await wait_for_the_end(harness, readers)
    assert await count_takeovers(harness, readers) >= len(bereaved)


async def test_four_workers_share_chats_and_lose_two_and_no_chat_is_answered_twice(
    harness: ProcessHarness, app: App
) -> None:
    for _ in range(4):
        await harness.start_worker(worker_max_chats=4, **SHORT_LEASES)
    readers = await ask_all(app, 8)
    async with reading(*readers):
        for _ in range(2):
            speaking = [reader for reader in readers if not reader.ended]
            await wait_for_words(speaking, 3)
            victim, bereaved = await find_busiest(harness, speaking)
            await victim.kill()
            await wait_for_words(bereaved, 1)
        await wait_for_the_end(harness, readers)
    assert await count_takeovers(harness, readers) >= 2


async def find_busiest(
    harness: ProcessHarness, readers: Sequence[CheckedReader]
) -> tuple[WorkerProcess, list[CheckedReader]]:
    """The worker that holds the most of these chats, and those that it holds."""
    holders = await harness.find_holders()
    held = {
        worker: [reader for reader in readers if holders[reader.chat.id] == worker.id] for worker in harness.workers
    }
    busiest = max(held, key=lambda worker: len(held[worker]))
    assert held[busiest], holders
    return busiest, held[busiest]


# --- told to leave ---


async def test_chats_of_a_worker_that_is_terminated_go_on_without_waiting_for_its_lease(
    harness: ProcessHarness, app: App
) -> None:
    await harness.start_worker(**ENDLESS_LEASES)
    await harness.start_worker(**ENDLESS_LEASES)
    readers = await ask_all(app, 3)
    async with reading(*readers):
        await wait_for_words(readers, 5)
        leaving, bereaved = await find_busiest(harness, readers)
        await leaving.stop()
        await wait_for_words(bereaved, 1)
        await wait_for_the_end(harness, readers)
    assert await count_takeovers(harness, readers) == 0


async def test_a_deploy_that_replaces_every_worker_in_turn_is_seen_by_nobody(harness: ProcessHarness, app: App) -> None:
    old = [await harness.start_worker(**ENDLESS_LEASES) for _ in range(2)]
    readers = await ask_all(app, 3)
    async with reading(*readers):
        await wait_for_words(readers, 2)
        for leaving in old:
            await harness.start_worker(**ENDLESS_LEASES)
            await leaving.stop()
            assert leaving.id not in (await harness.find_holders()).values()
        await wait_for_the_end(harness, readers)
    assert await count_takeovers(harness, readers) == 0


# --- put to sleep ---


async def test_a_worker_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(
    harness: ProcessHarness, app: App
) -> None:
    both = [await harness.start_worker(**SHORT_LEASES) for _ in range(2)]
    readers = await ask_all(app, 3)
    async with reading(*readers):
        await wait_for_words(readers, 5)
        sleeper, bereaved = await find_busiest(harness, readers)
        sleeper.send_signal(signal.SIGSTOP)
        await wait_for_words(bereaved, 10)
        lost_ids = await list_ended_attempts(harness)
        assert len(lost_ids) >= len(bereaved)
        left_behind = await list_rows_of(harness, lost_ids)
        slept_until = await read_heartbeat(harness, sleeper)
        sleeper.send_signal(signal.SIGCONT)
        await wait_for_heartbeat(harness, sleeper, after=slept_until)
        await wait_for_the_end(harness, readers)
        assert await list_rows_of(harness, lost_ids) == left_behind
        [other] = [worker for worker in both if worker is not sleeper]
        await other.stop()
        again = await ask_all(app, 1)
        async with reading(*again):
            await wait_for_the_end(harness, again)
    assert await count_takeovers(harness, [*readers, *again]) >= len(bereaved)


async def test_a_stop_of_the_only_worker_takes_effect_while_it_sleeps_and_it_adds_nothing_when_it_wakes(
    harness: ProcessHarness, database: str
) -> None:
    """All the rest of the reply is ready for it at once when it wakes."""
    async with indelible.open(database, worker=False, settings=load_settings(**SHORT_LEASES)) as app:
        sleeper = await harness.start_worker(**SHORT_LEASES)
        [reader] = await ask_all(app, 1)
        async with reading(reader):
            await wait_for_words([reader], 5)
            sleeper.send_signal(signal.SIGSTOP)
            assert (await reader.chat.interrupt()).status == "idle"
            stopped_ids = await list_ended_attempts(harness)
            left_behind = await list_rows_of(harness, stopped_ids)
            slept_until = await read_heartbeat(harness, sleeper)
            harness.finish_replies()
            sleeper.send_signal(signal.SIGCONT)
            await wait_for_heartbeat(harness, sleeper, after=slept_until)
            [again] = await ask_all(app, 1)
            async with reading(again):
                await wait_for_the_end(harness, [again])
            await reader.wait_for_ends(1)
        assert await list_rows_of(harness, stopped_ids) == left_behind
        [turn] = (await reader.check(harness.engine)).turns
        assert turn.outcome == "interrupted"


async def test_a_worker_that_falls_asleep_in_the_middle_of_a_transaction_holds_nobody_up(
    harness: ProcessHarness, app: App
) -> None:
    """What it has locked would keep its chats from everybody else for as long as it sleeps."""
    *readers, late = await ask_all(app, 3)
    async with reading(*readers, late):
        sleeper = await start_and_put_to_sleep(harness, readers, late)
        slept_since = await read_heartbeat(harness, sleeper)
        await harness.start_worker(**SHORT_LEASES)
        await wait_for_words([*readers, late], 10)
        assert await read_heartbeat(harness, sleeper) == slept_since
        sleeper.send_signal(signal.SIGCONT)
        await wait_for_heartbeat(harness, sleeper, after=slept_since)
        await wait_for_the_end(harness, [*readers, late])
    assert await count_takeovers(harness, [*readers, late]) >= len(readers)


async def start_and_put_to_sleep(
    harness: ProcessHarness, readers: Sequence[CheckedReader], late: CheckedReader
) -> WorkerProcess:
    """Stop a worker between two statements of a command: it has locked the late chat, and waits to begin an attempt.

    It waits for us. When the process has been stopped we get out of its way, and nobody is there to read that the
    statement is done.
    """
    async with harness.engine.connect() as connection:
        await connection.execute(text(STAND_IN_THE_WAY), {"chat_id": late.chat.id})
        worker = await harness.start_worker(**SHORT_LEASES)
        await wait_for_words(readers, 2)
        await poll_until(partial(ask, connection, IS_IN_THE_WAY), what="a command that waits for us")
        worker.send_signal(signal.SIGSTOP)

    async def is_left_open() -> bool:
        async with begin_read(harness.engine) as connection:
            return await ask(connection, IS_LEFT_OPEN)

    await poll_until(is_left_open, what="a transaction that is left open")
    return worker


async def ask(connection: AsyncConnection, question: str) -> bool:
    return bool((await connection.execute(text(question))).scalar_one())


async def list_ended_attempts(harness: ProcessHarness) -> list[str]:
    async with begin_read(harness.engine) as connection:
        return list((await connection.execute(select(attempts.c.id).where(attempts.c.ended_at.is_not(None)))).scalars())


async def list_rows_of(harness: ProcessHarness, attempt_ids: Sequence[str]) -> list[Row[Any]]:
    """These attempts, their journals, and what became of them in history."""
    own = select(attempts).where(attempts.c.id.in_(attempt_ids)).order_by(attempts.c.id)
    said = select(journal).where(journal.c.attempt_id.in_(attempt_ids)).order_by(journal.c.attempt_id, journal.c.n)
    kept = select(messages).where(messages.c.attempt_id.in_(attempt_ids)).order_by(messages.c.id)
    async with begin_read(harness.engine) as connection:
        return [row for rows in (own, said, kept) for row in await connection.execute(rows)]


async def read_heartbeat(harness: ProcessHarness, worker: WorkerProcess) -> Any:
    async with begin_read(harness.engine) as connection:
        return (await connection.execute(select(workers.c.heartbeat_at).where(workers.c.id == worker.id))).scalar_one()


async def wait_for_heartbeat(harness: ProcessHarness, worker: WorkerProcess, *, after: Any) -> None:
    async def has_beaten() -> bool:
        return bool(await read_heartbeat(harness, worker) > after)

    await poll_until(has_beaten, what="a heartbeat")
