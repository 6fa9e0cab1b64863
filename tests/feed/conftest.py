"""The databases of tests/databases.py, and a chat on one of them that is written and read as in a running process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.process import Process
from tests.store.driver import settle_in


@pytest.fixture
async def process(engine: AsyncEngine) -> AsyncIterator[Process]:
    await settle_in(engine)
    async with Process(engine).running() as started:
        yield started
