"""Several worker processes on one PostgreSQL: killed, told to leave, and put to sleep past their lease.

Every reply is a known text (counting.py), read by a process that is none of the workers (witness.py). So a chat that
nobody takes over, one that two workers answer, and a worker that writes after it lost a chat all show in the text or
in the rows.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.faults.fleet import DEFAULT_LEASES, ENDLESS_LEASES, SHORT_LEASES, SLOWLY, Fleet, WorkerProcess, wait_until
from tests.faults.witness import Witness, wait_for_words, watching

from indelible.app.app import App
from indelible.settings import load_settings
from indelible.store.database.engine import begin_read
from indelible.store.database.tables import attempts, journal, messages, turns, workers

pytestmark = pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)

STAND_IN_THE_WAY = """
INSERT INTO journal (chat_id, attempt_id, n, parts, at)
SELECT chat_id, id, generate_series(1, 1000), '', now() FROM attempts WHERE ended_at IS NULL
ON CONFLICT DO NOTHING
"""
IS_IN_THE_WAY = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
IS_LEFT_OPEN = """
SELECT count(*) > 0 FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE datname = current_database() AND state = 'idle in transaction'
AND relation = 'journal'::regclass AND mode = 'RowExclusiveLock'
"""


async def ask_all(app: App, number: int) -> list[Witness]:
    """So many chats, each with a reply that takes its time."""
    return [Witness(await app.create_chat(SLOWLY)) for _ in range(number)]


async def wait_for_the_end(fleet: Fleet, witnesses: Sequence[Witness]) -> None:
    fleet.hurry()
    for witness in witnesses:
        await witness.wait_for_ends(1)


async def count_takeovers(fleet: Fleet, witnesses: Sequence[Witness]) -> int:
    """How often these chats were taken from a dead worker; each of them is checked on the way."""
    for witness in witnesses:
        stored = await witness.check(fleet.engine)
        assert [turn.outcome for turn in stored.turns] == ["complete"]
    async with begin_read(fleet.engine) as connection:
        return sum((await connection.execute(select(turns.c.takeovers))).scalars())


# --- killed ---


@pytest.mark.parametrize(
    ("leases", "within_s"),
    [pytest.param(SHORT_LEASES, 5.0, id="short leases"), pytest.param(DEFAULT_LEASES, 10.0, id="default leases")],
)
async def test_chats_of_a_killed_worker_go_on_at_the_other(
    fleet: Fleet, app: App, leases: Mapping[str, Any], within_s: float
) -> None:
    """How long it really takes is measured by `python -m bench worker`; here it is what the settings allow for."""
    settings = load_settings(**leases)
    assert settings.lease_timeout_s + settings.poll_interval_s < within_s
    await fleet.start(**leases)
    await fleet.start(**leases)
    witnesses = await ask_all(app, 3)
    async with watching(*witnesses):
        await wait_for_words(witnesses, 5)
        victim, bereaved = await find_busiest(fleet, witnesses)
        await victim.kill()
        await wait_for_words(bereaved, 1)
        await wait_for_the_end(fleet, witnesses)
    assert await count_takeovers(fleet, witnesses) >= len(bereaved)


async def test_four_workers_share_chats_and_lose_two_and_no_chat_is_answered_twice(fleet: Fleet, app: App) -> None:
    for _ in range(4):
        await fleet.start(worker_max_chats=4, **SHORT_LEASES)
    witnesses = await ask_all(app, 8)
    async with watching(*witnesses):
        for _ in range(2):
            speaking = [witness for witness in witnesses if not witness.ended]
            await wait_for_words(speaking, 3)
            victim, bereaved = await find_busiest(fleet, speaking)
            await victim.kill()
            await wait_for_words(bereaved, 1)
        await wait_for_the_end(fleet, witnesses)
    assert await count_takeovers(fleet, witnesses) >= 2


async def find_busiest(fleet: Fleet, witnesses: Sequence[Witness]) -> tuple[WorkerProcess, list[Witness]]:
    """The worker that holds the most of these chats, and those that it holds."""
    holders = await fleet.find_holders()
    held = {
        worker: [witness for witness in witnesses if holders[witness.chat.id] == worker.id]
        for worker in fleet.processes
    }
    busiest = max(held, key=lambda worker: len(held[worker]))
    assert held[busiest], holders
    return busiest, held[busiest]


# --- told to leave ---


async def test_chats_of_a_worker_that_is_told_to_leave_go_on_without_waiting_for_its_lease(
    fleet: Fleet, app: App
) -> None:
    await fleet.start(**ENDLESS_LEASES)
    await fleet.start(**ENDLESS_LEASES)
    witnesses = await ask_all(app, 3)
    async with watching(*witnesses):
        await wait_for_words(witnesses, 5)
        leaving, bereaved = await find_busiest(fleet, witnesses)
        await leaving.leave()
        await wait_for_words(bereaved, 1)
        await wait_for_the_end(fleet, witnesses)
    assert await count_takeovers(fleet, witnesses) == 0


async def test_a_deploy_that_replaces_every_worker_in_turn_is_seen_by_nobody(fleet: Fleet, app: App) -> None:
    old = [await fleet.start(**ENDLESS_LEASES) for _ in range(2)]
    witnesses = await ask_all(app, 3)
    async with watching(*witnesses):
        await wait_for_words(witnesses, 2)
        for leaving in old:
            await fleet.start(**ENDLESS_LEASES)
            await leaving.leave()
            assert leaving.id not in (await fleet.find_holders()).values()
        await wait_for_the_end(fleet, witnesses)
    assert await count_takeovers(fleet, witnesses) == 0


# --- put to sleep ---


async def test_a_worker_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(fleet: Fleet, app: App) -> None:
    both = [await fleet.start(**SHORT_LEASES) for _ in range(2)]
    witnesses = await ask_all(app, 3)
    async with watching(*witnesses):
        await wait_for_words(witnesses, 5)
        sleeper, bereaved = await find_busiest(fleet, witnesses)
        sleeper.send(signal.SIGSTOP)
        await wait_for_words(bereaved, 10)
        lost_ids = await list_ended_attempts(fleet)
        assert len(lost_ids) >= len(bereaved)
        left_behind = await list_rows_of(fleet, lost_ids)
        slept_until = await read_heartbeat(fleet, sleeper)
        sleeper.send(signal.SIGCONT)
        await wait_for_heartbeat(fleet, sleeper, after=slept_until)
        await wait_for_the_end(fleet, witnesses)
        assert await list_rows_of(fleet, lost_ids) == left_behind
        [other] = [worker for worker in both if worker is not sleeper]
        await other.leave()
        again = await ask_all(app, 1)
        async with watching(*again):
            await wait_for_the_end(fleet, again)
    assert await count_takeovers(fleet, [*witnesses, *again]) >= len(bereaved)


async def test_a_worker_that_falls_asleep_in_the_middle_of_a_transaction_holds_nobody_up(
    fleet: Fleet, app: App
) -> None:
    """What it has locked would keep its chats from everybody else for as long as it sleeps."""
    sleeper = await fleet.start(**SHORT_LEASES)
    witnesses = await ask_all(app, 2)
    async with watching(*witnesses):
        await wait_for_words(witnesses, 2)
        await put_to_sleep_while_writing(fleet, sleeper)
        slept_since = await read_heartbeat(fleet, sleeper)
        await fleet.start(**SHORT_LEASES)
        await wait_for_words(witnesses, 10)
        assert await read_heartbeat(fleet, sleeper) == slept_since
        sleeper.send(signal.SIGCONT)
        await wait_for_heartbeat(fleet, sleeper, after=slept_since)
        await wait_for_the_end(fleet, witnesses)
    assert await count_takeovers(fleet, witnesses) >= len(witnesses)


async def put_to_sleep_while_writing(fleet: Fleet, worker: WorkerProcess) -> None:
    """Stop the worker between the two statements of a flush: it has written, and locked what it writes to.

    Rows of ours, which are never committed, have the flush wait in the middle of its first statement. When the worker
    has been stopped we get out of its way, and nobody is there to read that the statement is done.
    """
    async with fleet.engine.connect() as connection:
        await connection.execute(text(STAND_IN_THE_WAY))
        await wait_until(partial(ask, connection, IS_IN_THE_WAY), what="a flush that waits for us")
        worker.send(signal.SIGSTOP)

    async def is_left_open() -> bool:
        async with begin_read(fleet.engine) as connection:
            return await ask(connection, IS_LEFT_OPEN)

    await wait_until(is_left_open, what="a flush that is left open")


async def ask(connection: AsyncConnection, question: str) -> bool:
    return bool((await connection.execute(text(question))).scalar_one())


async def list_ended_attempts(fleet: Fleet) -> list[str]:
    async with begin_read(fleet.engine) as connection:
        return list((await connection.execute(select(attempts.c.id).where(attempts.c.ended_at.is_not(None)))).scalars())


async def list_rows_of(fleet: Fleet, attempt_ids: Sequence[str]) -> list[Row[Any]]:
    """These attempts, their journals, and what became of them in history."""
    own = select(attempts).where(attempts.c.id.in_(attempt_ids)).order_by(attempts.c.id)
    said = select(journal).where(journal.c.attempt_id.in_(attempt_ids)).order_by(journal.c.attempt_id, journal.c.n)
    kept = select(messages).where(messages.c.attempt_id.in_(attempt_ids)).order_by(messages.c.id)
    async with begin_read(fleet.engine) as connection:
        return [row for rows in (own, said, kept) for row in await connection.execute(rows)]


async def read_heartbeat(fleet: Fleet, worker: WorkerProcess) -> Any:
    async with begin_read(fleet.engine) as connection:
        return (await connection.execute(select(workers.c.heartbeat_at).where(workers.c.id == worker.id))).scalar_one()


async def wait_for_heartbeat(fleet: Fleet, worker: WorkerProcess, *, after: Any) -> None:
    async def has_beaten() -> bool:
        return bool(await read_heartbeat(fleet, worker) > after)

    await wait_until(has_beaten, what="a heartbeat")
