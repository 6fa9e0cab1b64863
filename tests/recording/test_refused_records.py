"""Records that a database does not take: one of them does not cost the others, and a database that is away costs none.

They break real constraints of the real tables. A batch is halved until what was to blame stands alone (sql_records.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.recording.recorded import LATER, count_rows, make_all, make_attempt, make_run, make_step
from tests.store.driver import Driver

from indelible.recording.storage.protocol import Record, RecordStore
from indelible.recording.storage.sql_records import SqlRecords
from indelible.store.database.engine import begin_read, is_sqlite, open_engine
from indelible.store.database.errors import DatabaseUnusable

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
async def test_what_the_database_refuses_costs_nothing_but_itself_and_what_hangs_on_it(
    chat: Driver, engine: AsyncEngine, what: str, left: list[int], place: int
) -> None:
    other = await Driver(chat.store, engine).create()
    records = SqlRecords(chat.store.engine)
    begun = [make_all(one) for one in (chat, other) * 10]
    ended = [replace(run, status="completed", ended_at=LATER) for run, _, _ in begun]
    stories: list[Sequence[Record]] = [*begun, ended]
    stories.insert(place, spoil(chat)[what])
    told = [record for story in stories for record in story]

    assert await records.write(told) == 1

    assert await count_rows(engine) == [20 + more for more in left]
    for run in ended:
        whole = await records.load_run(run.chat_id, run.id)
        assert whole is not None
        assert (whole.status, whole.steps[0].status, len(whole.steps[0].attempts)) == ("completed", "completed", 1)
    assert await records.write(told) == 1


async def test_several_that_are_refused_are_all_counted_and_told_of_without_a_word_of_theirs(
    chat: Driver, records: RecordStore, caplog: pytest.LogCaptureFixture
) -> None:
    run, step, exchange = make_all(chat)
    bad = [replace(exchange, number=-number, response_body="a secret") for number in range(9)]
    assert await records.write([run, step, *bad[:5], exchange, *bad[5:]]) == 9
    whole = await records.load_run(chat.id, run.id)
    assert whole is not None
    assert whole.steps[0].attempts == [exchange]
    assert caplog.messages == ["The database refused 9 debug records: IntegrityError."]


async def test_a_number_that_only_one_database_takes_is_refused_by_the_other(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    """What a driver can not even send is the record's trouble, too."""
    run, step, exchange = make_all(chat)
    bad = [replace(exchange, number=2, status_code=2**40), replace(exchange, number=3, status_code=2**70)]
    refused = await records.write([run, step, *bad, exchange])
    assert refused == (1 if is_sqlite(engine.url) else 2)
    assert await count_rows(engine) == [1, 1, 3 - refused]


async def test_large_exchanges_go_in_transactions_of_their_own(
    chat: Driver, records: RecordStore, engine: AsyncEngine
) -> None:
    run = make_run(chat)
    large = [make_attempt(run, 1, number, response_body="x" * 600 * 1024) for number in range(1, 5)]
    await records.write([run, make_step(run)])
    committed: list[int] = []

    @event.listens_for(engine.sync_engine, "commit")
    def note(_connection: Connection) -> None:
        committed.append(1)

    try:
        assert await records.write(large) == 0
    finally:
        event.remove(engine.sync_engine, "commit", note)
    assert len(committed) == 4
    assert await count_rows(engine) == [1, 1, 4]


async def test_a_database_that_takes_nothing_is_told_and_what_was_told_is_written_later(
    database: str, chat: Driver
) -> None:
    alone = await open_engine(database, pool_size=1)
    try:
        records = SqlRecords(alone)
        run, step, exchange = make_all(chat)
        await set_read_only(alone, read_only=True)
        with pytest.raises(DatabaseUnusable):
            await records.write([run, step, exchange])
        await set_read_only(alone, read_only=False)
        assert await records.write([run, step, exchange]) == 0
        whole = await records.load_run(chat.id, run.id)
        assert whole is not None
        assert whole.steps[0].attempts == [exchange]
    finally:
        await alone.dispose()


async def set_read_only(engine: AsyncEngine, *, read_only: bool) -> None:
    """For the one connection that this engine has."""
    word = "ON" if read_only else "OFF"
    said = f"PRAGMA query_only={word}" if is_sqlite(engine.url) else f"SET default_transaction_read_only={word}"
    async with begin_read(engine) as connection:
        await connection.exec_driver_sql(said)


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
        whole = await records.load_run(chat.id, f"run_{number}")
        seen.add(str(whole).replace(f"run_{number}", "run"))
    assert len(seen) == 1
