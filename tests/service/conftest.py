"""The databases of tests/databases.py, and an app on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.worker.workshop import quick

import indelible


@pytest.fixture
async def app(database: str) -> AsyncIterator[indelible.App]:
    async with indelible.open(database, worker=False, settings=quick()) as opened:
        yield opened
