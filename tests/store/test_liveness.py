"""Who is alive, on both databases: one rule, and everybody who asks gets its answer.

A worker that was declared gone is told so here by its row, as SQLite cannot declare it. How that comes about is
test_session_lock.py and tests/worker/test_presence.py.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, settle_in
from tests.support.engine import begin_read, begin_write, get_database, is_sqlite
from tests.support.tables import turns, workers

from indelible.content import Text
from indelible.errors import NotAllowed
from indelible.machine.commands import Acquire, Create, Interrupt
from indelible.machine.states import Status
from indelible.store.database.session_lock import make_key
from indelible.store.payloads import NewChat
from indelible.store.queries.liveness import UnheldStop, is_alive
from indelible.store.store import Store

NOW, LONG_AGO = datetime.now(UTC), datetime(2026, 1, 1, tzinfo=UTC)
ALIVE: dict[str, Any] = {}
GONE: dict[str, Any] = {"gone_at": NOW}
RUN_OUT: dict[str, Any] = {"heartbeat_at": LONG_AGO}


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    """One chat, which a worker holds."""
    await settle_in(engine)
    async with begin_write(engine) as connection:
        await connection.execute(delete(workers))
    store = Store(get_database(engine), lease_timeout_s=3600)
    await store.execute("chat_1", Create(with_message=True), NewChat(owner_id=OWNER, blocks=[Text("hi")]))
    await store.beat("worker_1", lock_key=7)
    await store.execute("chat_1", Acquire(worker_id="worker_1"))
    return store


async def change(engine: AsyncEngine, worker_id: str, columns: dict[str, Any]) -> None:
    if columns:
        async with begin_write(engine) as connection:
            await connection.execute(update(workers).where(workers.c.id == worker_id).values(columns))


async def read_worker(engine: AsyncEngine, worker_id: str) -> Any:
    async with begin_read(engine) as connection:
        return (await connection.execute(select(workers).where(workers.c.id == worker_id))).one_or_none()


async def count(engine: AsyncEngine) -> tuple[int, int, str | None]:
    async with begin_read(engine) as connection:
        turn = (await connection.execute(select(turns))).one()
    return turn.takeovers, turn.stalled_takeovers, turn.acquired_from


async def ask_everybody(store: Store) -> dict[str, bool]:
    """Whether the holder of the chat is alive, as each of those says who has to know. The last one changes the chat."""
    vacancy = (await store.vacant(["chat_1"]))["chat_1"]
    summary = (await store.summaries(["chat_1"]))["chat_1"][1]
    found = {
        "status": (await store.status("chat_1")).status != "pending",
        "view": (await store.view("chat_1")).status != "pending",
        "list": summary.status != "pending",
        "vacancy": not vacancy.is_vacant,
        "probe": (await store.probe("worker_2", ["chat_1"])).runnable == [],
    }
    try:
        await store.execute("chat_1", Acquire(worker_id="worker_2"))
    except NotAllowed:
        found["acquire"] = True
    else:
        found["acquire"] = False
    return found


@pytest.mark.parametrize(
    ("columns", "is_there"),
    [
        pytest.param(ALIVE, True, id="alive"),
        pytest.param(GONE, False, id="gone"),
        pytest.param(RUN_OUT, False, id="its lease ran out"),
        pytest.param({**GONE, **RUN_OUT}, False, id="both"),
    ],
)
async def test_everybody_who_asks_whether_a_worker_is_alive_gets_the_same_answer(
    store: Store, engine: AsyncEngine, columns: dict[str, Any], is_there: bool
) -> None:
    await change(engine, "worker_1", columns)
    answers = await ask_everybody(store)
    assert set(answers.values()) == {is_there}, answers


@pytest.mark.parametrize("columns", [GONE, RUN_OUT], ids=["gone", "its lease ran out"])
async def test_a_stop_needs_no_worker_that_is_dead(store: Store, engine: AsyncEngine, columns: dict[str, Any]) -> None:
    stopping = await store.execute("chat_1", Interrupt())
    assert (stopping.status, await store.unheld_stops(limit=9)) == (Status.INTERRUPTING, [])
    await change(engine, "worker_1", columns)
    assert await store.unheld_stops(limit=9) == [UnheldStop("chat_1", stopping.turn_id or "")]
    assert (await store.execute("chat_1", Interrupt())).status is Status.IDLE


@pytest.mark.parametrize("columns", [GONE, RUN_OUT], ids=["gone", "its lease ran out"])
async def test_a_search_for_work_finds_the_chat_of_a_dead_worker(
    store: Store, engine: AsyncEngine, columns: dict[str, Any]
) -> None:
    assert await store.acquire("worker_2", limit=9) == []
    await change(engine, "worker_1", columns)
    (taken,) = await store.acquire("worker_2", limit=9)
    assert (taken.chat_id, taken.takeovers) == ("chat_1", 1)
    assert taken.vacant_s is not None, "there is a heartbeat to measure from"


def test_the_rule_for_a_row_is_the_one_in_sql() -> None:
    assert is_alive(None, vacant_s=1, lease_timeout_s=8)
    assert not is_alive(NOW, vacant_s=1, lease_timeout_s=8)
    assert not is_alive(None, vacant_s=8, lease_timeout_s=8)
    assert not is_alive(None, vacant_s=None, lease_timeout_s=8)


# --- declared gone ---


async def test_a_heartbeat_carries_the_lock_of_its_process_or_that_it_has_none(
    store: Store, engine: AsyncEngine
) -> None:
    assert (await read_worker(engine, "worker_1")).lock_key == 7
    assert await store.beat("worker_1")
    assert (await read_worker(engine, "worker_1")).lock_key is None


async def test_a_worker_whose_lock_nobody_holds_is_declared_gone(store: Store, engine: AsyncEngine) -> None:
    """SQLite has no such locks: nobody has one, and nobody is declared gone."""
    key = make_key()
    await store.beat("worker_1", lock_key=key)
    gone = await store.declare_gone("worker_1", key)
    assert gone == ([] if is_sqlite(engine) else ["chat_1"])
    assert ((await read_worker(engine, "worker_1")).gone_at is None) == is_sqlite(engine)
    assert [taken.chat_id for taken in await store.acquire("worker_2", limit=9)] == gone
    assert await store.declare_gone("worker_1", key) == [], "once"


async def test_a_worker_that_has_another_lock_by_now_or_none_is_not_declared_gone(
    store: Store, engine: AsyncEngine
) -> None:
    seen = make_key()
    await store.beat("worker_1", lock_key=make_key())
    assert await store.declare_gone("worker_1", seen) == []
    await store.beat("worker_1")
    assert await store.declare_gone("worker_1", seen) == []
    assert (await read_worker(engine, "worker_1")).gone_at is None


@pytest.mark.parametrize("migrated", ["postgresql"], indirect=True)
async def test_a_worker_that_was_declared_gone_and_lives_counts_as_alive_again(
    store: Store, engine: AsyncEngine
) -> None:
    await change(engine, "worker_1", GONE)
    assert not await store.beat("worker_1", lock_key=7)
    assert not await store.beat("worker_1", lock_key=7), "until it is revived"
    assert await store.revive("worker_1") == [], "nothing was taken from it"
    assert await store.beat("worker_1", lock_key=7)
    assert all((await ask_everybody(store)).values())


async def test_what_was_taken_from_a_worker_that_lives_is_no_takeover(store: Store, engine: AsyncEngine) -> None:
    await change(engine, "worker_1", GONE)
    await store.beat("worker_2")
    await store.execute("chat_1", Acquire(worker_id="worker_2"))
    assert await count(engine) == (1, 1, "worker_1")
    assert await store.revive("worker_1") == ["chat_1"]
    assert await count(engine) == (0, 0, None)
    assert await store.revive("worker_1") == [], "once"
    assert await count(engine) == (0, 0, None)


async def test_a_takeover_after_the_end_of_a_lease_counts_whoever_wakes_up(store: Store, engine: AsyncEngine) -> None:
    await change(engine, "worker_1", RUN_OUT)
    await store.execute("chat_1", Acquire(worker_id="worker_2"))
    assert await store.revive("worker_1") == []
    assert await count(engine) == (1, 1, None)


async def test_the_death_of_the_next_holder_counts_though_the_first_one_lives(
    store: Store, engine: AsyncEngine
) -> None:
    await change(engine, "worker_1", GONE)
    await store.beat("worker_2")
    await store.execute("chat_1", Acquire(worker_id="worker_2"))
    await store.revive("worker_1")
    await change(engine, "worker_2", GONE)
    await store.execute("chat_1", Acquire(worker_id="worker_3"))
    assert await count(engine) == (1, 1, "worker_2")
    assert await store.revive("worker_1") == []
    assert await count(engine) == (1, 1, "worker_2")
