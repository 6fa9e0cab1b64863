"""The databases of tests/databases.py, and an app harness on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.app_harness import AppHarness


@pytest.fixture
async def harness(engine: AsyncEngine) -> AsyncIterator[AppHarness]:
    async with AppHarness(engine).opened() as opened:
        yield opened
