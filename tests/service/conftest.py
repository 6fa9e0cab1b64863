"""The databases of tests/databases.py, and an app on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.app_harness import make_settings

import indelible


@pytest.fixture
async def app(database: str) -> AsyncIterator[indelible.App]:
    async with indelible.open(database, worker=False, settings=make_settings()) as opened:
        yield opened
