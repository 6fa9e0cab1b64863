"""Clients of the compatible APIs, as their users open them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import openai
from tests.support.running_server import RunningServer


@asynccontextmanager
async def open_openai(server: RunningServer, **more: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official SDK, pointed at this server. It does not retry: a test must see every error."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, **more) as client:
        yield client


def text_of_events(events: Iterable[Any]) -> str:
    """The text of a stream of events."""
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")
