"""How often a transaction asks PostgreSQL, and that what is sent together means what it would mean one by one.

What the driver sends is counted where it sends it. Preparing a statement is not: it happens once per connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from tests.databases import EMPTY, execute
from tests.log_records import DATABASE_AWAY
from tests.store.driver import Driver, settle_in
from tests.support.engine import open_engine

from indelible.content import Finish, TextDelta
from indelible.machine import commands as c
from indelible.store.database.address import parse_address
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.database.postgres import PostgresDatabase
from indelible.store.database.transaction import Transaction, insert, update
from indelible.store.store import Store

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
LOCK = "SELECT id FROM workers WHERE id = $1 FOR UPDATE"
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'indelible'
"""


@pytest.fixture
async def server(migrated_postgres: str) -> str:
    await execute(migrated_postgres, EMPTY)
    return migrated_postgres


@pytest.fixture
async def database(server: str) -> AsyncIterator[PostgresDatabase]:
    """Two connections: one for what is urgent."""
    options = parse_address(server).make_postgres_options()
    opened = PostgresDatabase(options, where="the server", connections=1, urgent_connections=1)
    yield opened
    await opened.close()


async def count_trips(database: PostgresDatabase) -> list[str]:
    """The texts that the connection for ordinary work sends from now on, one for each round trip."""
    sent: list[str] = []

    async def listen(transaction: Any) -> None:
        await transaction.now()
        transaction.driver.add_query_logger(lambda record: sent.append(record.query))

    await database.write(listen)
    sent.clear()
    return sent


def make_worker(name: str) -> dict[str, Any]:
    return {"id": name, "started_at": BEGUN, "heartbeat_at": BEGUN}


async def list_workers(transaction: Transaction) -> list[tuple[str, datetime]]:
    rows = await transaction.all("SELECT id, heartbeat_at FROM workers ORDER BY id")
    return [(row["id"], row["heartbeat_at"]) for row in rows]


async def test_a_command_takes_four_round_trips_and_one_for_each_fact_of_its_own(
    database: PostgresDatabase, server: str
) -> None:
    engine = await open_engine(server)
    await settle_in(engine)
    store = Store(database)
    chat = await Driver(store, engine).create("Hello")
    sent = await count_trips(database)
    trips: dict[str, int] = {}

    async def note(name: str) -> None:
        texts = [text for text in sent if not text.startswith("PREPARE")]
        trips[name] = len(texts)
        assert texts[0].startswith("BEGIN")
        assert texts[-1] == "COMMIT"
        sent.clear()

    await chat.do(c.Acquire(worker_id="live"))
    await note("acquire")
    await chat.start()
    await note("start")
    parts = [TextDelta("1", "Hi"), Finish("stop")]
    await chat.end(c.FinishTurn, pending=parts)
    await note("finish")
    await chat.do(c.Send(), "And now?")
    await note("send")
    await chat.do(c.Interrupt())
    await note("stop")
    assert trips == {"acquire": 4, "start": 5, "finish": 6, "send": 5, "stop": 4}
    await chat.check()
    await engine.dispose()


async def test_writes_that_wait_are_one_statement_and_seen_by_the_next(database: PostgresDatabase) -> None:
    sent = await count_trips(database)

    async def work(transaction: Transaction) -> list[tuple[str, datetime]]:
        await insert(transaction, "workers", make_worker("a"), make_worker("b"))
        await insert(transaction, "users", {"id": "user_1", "name": "Ada", "created_at": BEGUN})
        return await list_workers(transaction)

    assert await database.write(work) == [("a", BEGUN), ("b", BEGUN)]
    assert [text.split()[0] for text in sent] == ["BEGIN", "WITH", "SELECT", "COMMIT"]


async def test_a_second_write_to_a_table_sees_the_first(database: PostgresDatabase) -> None:
    sent = await count_trips(database)

    async def work(transaction: Transaction) -> None:
        await insert(transaction, "workers", make_worker("a"))
        await update(transaction, "workers", {"heartbeat_at": LATER}, id="a")
        await update(transaction, "workers", {"id": "b"}, id="a")
        await insert(transaction, "workers", make_worker("a"))

    await database.write(work)
    assert await database.read(list_workers) == [("a", BEGUN), ("b", LATER)]
    assert [text.split()[0] for text in sent][:6] == ["BEGIN", "INSERT", "UPDATE", "UPDATE", "INSERT", "COMMIT"]


async def test_work_that_does_nothing_asks_nothing(database: PostgresDatabase) -> None:
    sent = await count_trips(database)

    async def do_nothing(_transaction: Transaction) -> str:
        return "done"

    assert await database.write(do_nothing) == "done"
    assert sent == []


async def test_what_waits_is_undone_with_everything_else(database: PostgresDatabase) -> None:
    async def fail(transaction: Transaction) -> None:
        await insert(transaction, "workers", make_worker("a"))
        raise LookupError("no such chat")

    async def collide(transaction: Transaction) -> None:
        await insert(transaction, "users", {"id": "user_1", "name": "Ada", "created_at": BEGUN})
        await insert(transaction, "workers", make_worker("a"), make_worker("a"))

    with pytest.raises(LookupError):
        await database.write(fail)
    with pytest.raises(asyncpg.UniqueViolationError):
        await database.write(collide)
    assert await database.read(list_workers) == []


async def test_a_lock_goes_with_begin_and_holds(database: PostgresDatabase) -> None:
    await database.write(lambda given: insert(given, "workers", make_worker("a")))
    sent = await count_trips(database)
    locked, leave = asyncio.Event(), asyncio.Event()

    async def hold(transaction: Transaction) -> bool:
        found = await transaction.lock(LOCK, "a")
        locked.set()
        await leave.wait()
        return found

    holding = asyncio.create_task(database.write(hold))
    await locked.wait()
    skipped = await database.write(lambda given: given.lock(f"{LOCK} SKIP LOCKED", "a"), urgent=True)
    leave.set()
    assert await holding is True
    assert skipped is False
    assert await database.write(lambda given: given.lock(f"{LOCK} SKIP LOCKED", "a"), urgent=True) is True
    assert await database.write(lambda given: given.lock(LOCK, "nobody")) is False
    begun = [text for text in sent if text.startswith("BEGIN")]
    assert len(begun) == 2
    assert all("EXECUTE" in text for text in begun)


async def test_a_lock_of_an_odd_name_is_no_other_statement(database: PostgresDatabase) -> None:
    odd = "a'); DROP TABLE users; --"
    await database.write(lambda given: insert(given, "workers", make_worker(odd)))
    sent = await count_trips(database)
    assert await database.write(lambda given: given.lock(LOCK, odd)) is True
    assert await database.write(lambda given: given.lock(LOCK, "a")) is False
    assert not any(odd in text for text in sent)


@pytest.mark.may_log(*DATABASE_AWAY)
async def test_a_new_connection_prepares_the_lock_again(database: PostgresDatabase, server: str) -> None:
    await database.write(lambda given: insert(given, "workers", make_worker("a")))
    assert await database.write(lambda given: given.lock(LOCK, "a")) is True
    await execute(server, CUT)
    assert await database.write(lambda given: given.lock(LOCK, "a")) is True

    async def be_cut(transaction: Transaction) -> None:
        await transaction.lock(LOCK, "a")
        await insert(transaction, "workers", make_worker("b"))
        await execute(server, CUT)

    with pytest.raises(DatabaseUnreachable):
        await database.write(be_cut)
    assert await database.read(list_workers) == [("a", BEGUN)]
