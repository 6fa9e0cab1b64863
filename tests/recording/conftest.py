"""The databases of tests/databases.py, and the workshop of tests/worker on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.worker.workshop import Workshop


@pytest.fixture
async def workshop(engine: AsyncEngine) -> AsyncIterator[Workshop]:
    async with Workshop(engine).opened() as opened:
        yield opened
