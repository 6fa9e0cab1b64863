"""The databases of tests/databases.py, and a chat on each of them, driven by hand."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, settle_in
from tests.support.engine import get_database

from indelible.recording.storage import RecordStore
from indelible.store.store import Store


@pytest.fixture
async def chat(engine: AsyncEngine) -> Driver:
    await settle_in(engine)
    return await Driver(Store(get_database(engine)), engine).create()


@pytest.fixture
def records(chat: Driver) -> RecordStore:
    return RecordStore(chat.store.database)
