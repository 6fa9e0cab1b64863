"""A statement means the same on both databases: values go in and come out, lists and locks are understood."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest
from tests.support.engine import OpenDatabase

from indelible.store.database.errors import is_about_data
from indelible.store.database.transaction import (
    Transaction,
    insert,
    to_time,
    translate_statement,
    try_update,
    update,
    upsert,
)

BEGUN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
WORKERS = [{"id": name, "started_at": BEGUN, "heartbeat_at": BEGUN} for name in ("a", "b", "c")]


async def add_workers(transaction: Transaction) -> None:
    await insert(transaction, "workers", *WORKERS)


async def list_workers(transaction: Transaction) -> list[str]:
    return [row["id"] for row in await transaction.all("SELECT id FROM workers ORDER BY id")]


async def test_a_list_matches_its_members_and_an_empty_one_nothing(opened: OpenDatabase) -> None:
    await opened.write(add_workers)

    async def find(transaction: Transaction, *names: str) -> list[str]:
        wanted = "SELECT id FROM workers WHERE id = ANY($1) ORDER BY id FOR UPDATE SKIP LOCKED"
        return [row["id"] for row in await transaction.all(wanted, list(names))]

    assert await opened.write(lambda transaction: find(transaction, "c", "a", "x'; --")) == ["a", "c"]
    assert await opened.write(find) == []


async def test_a_time_comes_out_as_it_went_in_whatever_its_zone(opened: OpenDatabase) -> None:
    await opened.write(add_workers)
    elsewhere = BEGUN.astimezone(timezone(timedelta(hours=5, minutes=30)))

    async def beat(transaction: Transaction) -> tuple[datetime, int]:
        await update(transaction, "workers", {"heartbeat_at": elsewhere + timedelta(seconds=1)}, id="a")
        row = await transaction.one("SELECT heartbeat_at FROM workers WHERE id = $1", "a")
        later = await transaction.all("SELECT id FROM workers WHERE heartbeat_at > $1", elsewhere)
        return to_time(row["heartbeat_at"]), len(later)

    found, later = await opened.write(beat)
    assert found == BEGUN + timedelta(seconds=1)
    assert found.tzinfo is UTC
    assert later == 1


async def test_a_time_without_a_zone_is_refused(opened: OpenDatabase) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        await opened.write(
            lambda transaction: update(transaction, "workers", {"heartbeat_at": datetime(2026, 1, 1)}, id="a")  # noqa: DTZ001
        )


async def test_text_that_a_database_cannot_hold_is_repaired(opened: OpenDatabase) -> None:
    async def name(transaction: Transaction) -> str:
        row = {"id": "user_1", "name": "a\0b\ud800c 🙂", "created_at": BEGUN}
        await insert(transaction, "users", row)
        found = await transaction.one("SELECT name FROM users WHERE name = $1", row["name"])
        return str(found["name"])

    assert await opened.write(name) == "a\ufffdb\ufffdc 🙂"


async def test_a_statement_tells_how_many_rows_it_changed(opened: OpenDatabase) -> None:
    await opened.write(add_workers)

    async def count(transaction: Transaction) -> list[int]:
        changed = {"heartbeat_at": BEGUN}
        again = "INSERT INTO workers (id, started_at, heartbeat_at) VALUES ($1, $2, $2) ON CONFLICT (id) DO NOTHING"
        return [
            await try_update(transaction, "workers", changed, id="a"),
            await try_update(transaction, "workers", changed, id="nobody"),
            await transaction.run(again, "a", BEGUN),
            await transaction.run(again, "d", BEGUN),
            await transaction.run("DELETE FROM workers WHERE id = ANY($1)", ["a", "b"]),
        ]

    assert await opened.write(count) == [1, 0, 0, 1, 2]


async def test_an_upsert_inserts_a_row_or_changes_the_one_with_its_key(opened: OpenDatabase) -> None:
    await opened.write(add_workers)
    later = {"started_at": BEGUN, "heartbeat_at": BEGUN + timedelta(seconds=1)}

    async def beat(transaction: Transaction) -> None:
        for name in ("a", "d"):
            await upsert(transaction, "workers", later, id=name)

    await opened.write(beat)
    beaten = "SELECT id FROM workers WHERE heartbeat_at > $1 ORDER BY id"
    assert [row["id"] for row in await opened.read(lambda transaction: transaction.all(beaten, BEGUN))] == ["a", "d"]
    assert await opened.read(list_workers) == ["a", "b", "c", "d"]


async def test_many_rows_go_with_one_statement(opened: OpenDatabase) -> None:
    async def add(transaction: Transaction) -> None:
        many = [(f"w{number}", BEGUN) for number in range(300)]
        await transaction.many("INSERT INTO workers (id, started_at, heartbeat_at) VALUES ($1, $2, $2)", many)

    await opened.write(add)

    assert len(await opened.read(list_workers, single=True)) == 300


async def test_work_that_raises_writes_nothing(opened: OpenDatabase) -> None:
    async def fail(transaction: Transaction) -> None:
        await add_workers(transaction)
        raise LookupError("no")

    with pytest.raises(LookupError):
        await opened.write(fail)

    assert await opened.read(list_workers) == []


async def test_refused_data_is_the_drivers_own_error_and_writes_nothing(opened: OpenDatabase) -> None:
    await opened.write(add_workers)

    with pytest.raises(Exception) as caught:  # noqa: PT011 - each driver has its own
        await opened.write(add_workers)

    assert is_about_data(caught.value)
    assert await opened.read(list_workers) == ["a", "b", "c"]


async def test_the_clock_of_the_database_is_near_and_in_utc(opened: OpenDatabase) -> None:
    async def ask(transaction: Transaction) -> datetime:
        return await transaction.now()

    before = datetime.now(UTC)
    now = await opened.write(ask)

    assert now.tzinfo is not None
    assert before - timedelta(seconds=1) <= now


def test_sqlite_gets_no_lock_and_a_list_as_json() -> None:
    assert translate_statement(
        "SELECT $2 FROM t WHERE a = ANY($1) AND b = $10 FOR NO KEY UPDATE OF t SKIP LOCKED\n"
    ) == (
        "SELECT ? FROM t WHERE a IN (SELECT value FROM json_each(?)) AND b = ?",
        (1, 0, 9),
    )
    assert translate_statement("SELECT $1 + $2") == ("SELECT ? + ?", None)


async def test_a_value_may_stand_anywhere_and_more_than_once(opened: OpenDatabase) -> None:
    async def ask(transaction: Transaction) -> tuple[object, ...]:
        row = await transaction.one(
            "SELECT $2::text || $1::text || $2::text AS said"
            if transaction.dialect == "postgresql"
            else "SELECT $2 || $1 || $2 AS said",
            "a",
            "b",
        )
        return tuple(row)

    async def write(transaction: Transaction) -> None:
        rows = [("worker_1", datetime.now(UTC)), ("worker_2", datetime.now(UTC))]
        await transaction.many("INSERT INTO workers (started_at, heartbeat_at, id) VALUES ($2, $2, $1)", rows)

    assert await opened.read(ask) == ("bab",)
    await opened.write(write)
    assert await opened.read(list_workers) == ["worker_1", "worker_2"]


async def test_a_commit_is_announced_also_if_its_caller_was_cancelled(opened: OpenDatabase) -> None:
    announced = asyncio.Event()
    given: list[None] = []

    def announce(value: None) -> None:
        given.append(value)
        announced.set()

    task = asyncio.create_task(opened.write(add_workers, on_committed=announce))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await announced.wait()
    assert given == [None]
    assert await opened.read(list_workers) == ["a", "b", "c"]


async def test_work_that_fails_is_not_announced(opened: OpenDatabase) -> None:
    async def fail(transaction: Transaction) -> None:
        await add_workers(transaction)
        raise LookupError

    given: list[None] = []
    with pytest.raises(LookupError):
        await opened.write(fail, on_committed=given.append)

    assert given == []
