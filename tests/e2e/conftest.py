"""The databases of tests/databases.py, and one browser with one tab for all tests of a process (it starts in 2 s)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser
from tests.e2e.browsing import share_tab, start_browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with start_browser() as started:
        share_tab(started)
        yield started
