"""Records that a database does not take: one of them does not cost the others, and a database that is away costs none.

They break real constraints of the real tables. A batch is halved until the culprit is alone (recording/storage.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.recording.recorded import LATER, count_rows, load_run, make_all, make_attempt, make_run, make_step
from tests.store.driver import Driver
from tests.store.statements import observed
from tests.support.engine import OpenDatabase, get_database, is_sqlite

from indelible.api.records import Record
from indelible.recording.storage import RecordStore
from indelible.store.database.address import parse_address
from indelible.store.database.errors import DatabaseUnusable
from indelible.store.database.migrate import open_database
from indelible.store.database.postgres import PostgresDatabase

pytestmark = pytest.mark.both_databases


def spoil(chat: Driver) -> dict[str, tuple[Record, ...]]:
    """Records that break a constraint, each with what hangs on it."""
    run, step, exchange = make_all(chat)
    bad_run = replace(run, kind="dream")
    bad_step = replace(step, status="lost", ended_at=LATER)
    return {
        "run": (bad_run, step, exchange),
        "step": (run, bad_step, exchange),
        "attempt": (run, step, replace(exchange, number=0)),
    }


@pytest.mark.parametrize(("what", "left"), [("run", [0, 0, 0]), ("step", [1, 0, 0]), ("attempt", [1, 1, 0])])
@pytest.mark.parametrize("place", [0, 7, 20])
@pytest.mark.may_log("The database refused .* debug records")
async def test_what_the_database_refuses_costs_nothing_but_itself_and_what_hangs_on_it(
    chat: Driver, engine: AsyncEngine, what: str, left: list[int], place: int
) -> None:
    other = await Driver(chat.store, engine).create()
    records = RecordStore(chat.store.database)
    begun = [make_all(one) for one in (chat, other) * 10]
    ended = [replace(run, status="completed", ended_at=LATER) for run, _, _ in begun]
    stories: list[Sequence[Record]] = [*begun, ended]
    stories.insert(place, spoil(chat)[what])
    told = [record for story in stories for record in story]

    assert await records.write(told) == 1

    assert await count_rows(engine) == [20 + more for more in left]
    for run in ended:
        whole = await load_run(records, run.chat_id, run.id)
        assert whole is not None
        assert (whole.status, whole.steps[0].status, len(whole.steps[0].attempts)) == ("completed", "completed", 1)
    assert await records.write(told) == 1


@pytest.mark.may_log("The database refused .* debug records")
async def test_several_that_are_refused_are_all_counted_and_reported_without_their_text(
    chat: Driver, records: RecordStore, engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    run, step, exchange = make_all(chat)
    bad = [replace(exchange, number=-number, response_body="a secret") for number in range(9)]
    assert await records.write([run, step, *bad[:5], exchange, *bad[5:]]) == 9
    whole = await load_run(records, chat.id, run.id)
    assert whole is not None
    assert whole.steps[0].attempts == [exchange]
    why = "IntegrityError" if is_sqlite(engine) else "CheckViolationError"
    assert caplog.messages == [f"The database refused 9 debug records: {why}."]


@pytest.mark.may_log("The database refused .* debug records")
async def test_a_number_that_only_one_database_takes_is_refused_by_the_other(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    """What a driver can not even send is the record's trouble, too."""
    run, step, exchange = make_all(chat)
    bad = [replace(exchange, number=2, status_code=2**40), replace(exchange, number=3, status_code=2**70)]
    refused = await records.write([run, step, *bad, exchange])
    assert refused == (1 if is_sqlite(engine) else 2)
    assert await count_rows(engine) == [1, 1, 3 - refused]


async def test_large_exchanges_go_in_transactions_of_their_own(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    run = make_run(chat)
    large = [make_attempt(run, 1, number, response_body="x" * 600 * 1024) for number in range(1, 5)]
    await records.write([run, make_step(run)])
    with observed(get_database(engine)) as sent:
        assert await records.write(large) == 0
    assert sent.count("COMMIT") == 4
    assert await count_rows(engine) == [1, 1, 4]


async def test_a_database_that_takes_nothing_is_reported_and_what_was_recorded_is_written_later(
    database: str, chat: Driver
) -> None:
    alone = await open_alone(database)
    try:
        records = RecordStore(alone)
        run, step, exchange = make_all(chat)
        exchange = replace(exchange, response_body="x" * 100_000)
        await execute(alone, "PRAGMA max_page_count=1", "SET default_transaction_read_only=ON")
        with pytest.raises(DatabaseUnusable):
            await records.write([run, step, exchange])
        await execute(alone, f"PRAGMA max_page_count={1 << 30}", "SET default_transaction_read_only=OFF")
        assert await records.write([run, step, exchange]) == 0
        whole = await load_run(records, chat.id, run.id)
        assert whole is not None
        assert whole.steps[0].attempts == [exchange]
    finally:
        await alone.close()


async def open_alone(database: str) -> OpenDatabase:
    """With one connection that writes."""
    address = parse_address(database)
    if address.is_sqlite:
        return await open_database(address)
    return PostgresDatabase(address.make_postgres_options(), where="the server", connections=1)


async def execute(alone: OpenDatabase, on_sqlite: str, on_postgres: str) -> None:
    said = on_sqlite if alone.dialect == "sqlite" else on_postgres
    await alone.write(lambda transaction: transaction.one(said), single=True)


async def test_a_part_of_a_story_and_then_all_of_it_is_all_of_it(chat: Driver, records: RecordStore) -> None:
    def tell(number: int) -> list[Record]:
        run, step, exchange = make_all(chat, id=f"run_{number}")
        over: dict[str, Any] = {"status": "interrupted", "error": "told", "ended_at": LATER}
        failed = replace(exchange, status="failed", error="reset")
        return [run, step, exchange, failed, replace(step, **over), replace(run, **over)]

    seen = set()
    for number in range(7):
        story = tell(number)
        await records.write(story[:number])
        await records.write(story)
        whole = await load_run(records, chat.id, f"run_{number}")
        seen.add(str(whole).replace(f"run_{number}", "run"))
    assert len(seen) == 1
