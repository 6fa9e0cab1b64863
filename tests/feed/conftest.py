"""The databases of tests/databases.py, and a feed harness on one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.feed_harness import FeedHarness
from tests.store.driver import settle_in


@pytest.fixture
async def harness(engine: AsyncEngine) -> AsyncIterator[FeedHarness]:
    await settle_in(engine)
    async with FeedHarness(engine).opened() as opened:
        yield opened
