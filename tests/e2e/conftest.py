"""The databases of tests/databases.py, and one browser for all tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser
from tests.e2e.browsing import start_browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with start_browser() as started:
        yield started
