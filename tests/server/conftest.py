"""The databases of tests/databases.py, and servers on one of them that live as long as their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.server.serving import Here, serve_here

Serve = Callable[..., Awaitable[Here]]


@pytest.fixture
async def serve(database: str) -> AsyncIterator[Serve]:
    """Start a server on the test's database; see `serve_here` for what it may be given."""
    async with AsyncExitStack() as stack:

        async def start(*given: Any, **more: Any) -> Here:
            return await stack.enter_async_context(serve_here(database, *given, **more))

        yield start
