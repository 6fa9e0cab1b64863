"""A chat that cannot be read is nobody else's trouble: whoever takes chats says so, and takes the others."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest
from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, dump, settle_in
from tests.support.engine import begin_write, get_database
from tests.support.tables import journal

from indelible.store.store import Store

FROM_A_NEWER_VERSION = b'[{"type":"hologram","id":"1"}]'


@pytest.mark.may_log("cannot be acquired and is skipped")
async def test_a_journal_with_a_part_that_nobody_knows_keeps_no_other_chat_waiting(
    engine: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await settle_in(engine)
    store = Store(get_database(engine))
    poisoned = await (await Driver(store, engine).create()).work("dead")
    poison = {"chat_id": poisoned.id, "attempt_id": poisoned.attempt_id, "n": 2, "parts": FROM_A_NEWER_VERSION}
    poison |= {"at": datetime.now(UTC)}
    async with begin_write(engine) as connection:
        await connection.execute(insert(journal).values(poison))
    others = [await Driver(store, engine).create() for _ in range(2)]

    with caplog.at_level(logging.ERROR):
        taken = await store.acquire("live", limit=5)

    assert [outcome.chat_id for outcome in taken] == [other.id for other in others]
    assert poisoned.id in caplog.text
    before = await dump(engine)
    assert await store.acquire("live", limit=5) == []
    assert await dump(engine) == before, "it stays as it is, for whoever can read it"
    async with begin_write(engine) as connection:
        await connection.execute(delete(journal).where(journal.c.n == 2))
    assert [outcome.chat_id for outcome in await store.acquire("live", limit=5)] == [poisoned.id]
    await poisoned.check()
