"""What was tried in a chat, on both databases: every attempt with its end, the newest first, a page at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, settle_in
from tests.support.engine import begin_write, get_database
from tests.support.tables import attempts

from indelible.content import Finish, TextDelta, Usage
from indelible.machine import commands as c
from indelible.store.store import Store

AT = datetime(2026, 1, 15, 12, tzinfo=UTC)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


async def add(engine: AsyncEngine, chat: Driver, *ids: str) -> None:
    ended = {"epoch": 0, "number": 1, "outcome": "complete", "last_n": 0, "started_at": AT, "ended_at": AT}
    own = {"chat_id": chat.id, "turn_id": chat.turn_id, **ended}
    async with begin_write(engine) as connection:
        await connection.execute(
            insert(attempts), [{**own, "id": id_, "step": 100 + step} for step, id_ in enumerate(ids)]
        )


async def test_attempts_have_their_end_and_the_running_one_has_none(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    assert await store.attempts(chat.id) == []
    await chat.do(c.Acquire(worker_id="live"))
    await chat.start()
    failed_id = chat.attempt_id
    overloaded: dict[str, Any] = {"kind": "overloaded", "message": "Busy.", "status": 529}
    await chat.end(c.AnnounceRetry, retry={"delay_ms": 10}, error=overloaded)
    await chat.start()
    await chat.say(TextDelta("1", "It is"))
    running_id = chat.attempt_id

    seen = {attempt.id: attempt for attempt in await store.attempts(chat.id)}

    assert set(seen) == {failed_id, running_id}
    failed, running = seen[failed_id], seen[running_id]
    assert (failed.turn_id, failed.step, failed.number) == (chat.turn_id, 1, 1)
    assert (failed.outcome, failed.error, failed.last_n, failed.usage) == ("reset", overloaded, 0, None)
    assert failed.ended_at is not None
    assert failed.started_at <= failed.ended_at
    assert (running.step, running.number, running.provider, running.model) == (1, 2, "demo", "demo-1")
    assert (running.outcome, running.error, running.ended_at, running.last_n) == (None, None, None, None)

    used = Usage(input_tokens=7, output_tokens=5)
    await chat.end(c.FinishTurn, pending=[Finish(usage=used)])
    (done,) = [attempt for attempt in await store.attempts(chat.id) if attempt.id == running_id]
    assert (done.outcome, done.usage, done.last_n) == ("complete", used, 2)


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_the_pages_together_are_all_attempts_of_the_chat_the_newest_first(
    store: Store, engine: AsyncEngine, limit: int
) -> None:
    chat, other = [await Driver(store, engine).create() for _ in range(2)]
    ids = [f"attempt_{number}" for number in range(5)]
    await add(engine, chat, *ids)
    await add(engine, other, "attempt_2_of_another")
    seen: list[str] = []
    before: str | None = None
    while page := await store.attempts(chat.id, before=before, limit=limit):
        assert len(page) <= limit
        seen += [attempt.id for attempt in page]
        before = seen[-1]
        assert len(seen) <= len(ids), "the list never ends"
    assert seen == ids[::-1]


@pytest.mark.parametrize("odd", ["", "nul \0", "half \ud83d", "x" * 100_000])
async def test_no_name_fails_the_question(store: Store, engine: AsyncEngine, odd: str) -> None:
    chat = await Driver(store, engine).create()
    await add(engine, chat, "attempt_1")
    assert await store.attempts(odd) == []
    assert len(await store.attempts(chat.id, before=odd)) in {0, 1}
