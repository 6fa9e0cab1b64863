"""The databases of tests/databases.py, and the workshop of tests/worker on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, settle_in
from tests.worker.workshop import Workshop

from indelible.recording.storage.sql_records import SqlRecords
from indelible.store.sql_store import SqlStore


@pytest.fixture
async def workshop(engine: AsyncEngine) -> AsyncIterator[Workshop]:
    async with Workshop(engine).opened() as opened:
        yield opened


@pytest.fixture
async def chat(engine: AsyncEngine) -> Driver:
    await settle_in(engine)
    return await Driver(SqlStore(engine), engine).create()


@pytest.fixture
def records(chat: Driver) -> SqlRecords:
    return SqlRecords(chat.store.engine)
