"""PostgreSQL ends our connections again and again while chats run, and requests come in (S92)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import asyncpg
import pytest
from tests.log_records import DATABASE_AWAY
from tests.support.app_harness import serve_app
from tests.support.counting_model import CountingModel, ask_to_count, count
from tests.support.running_server import RunningServer, text_of, wait_until_idle
from tests.support.waiting import Watched, deadline

pytestmark = [pytest.mark.parametrize("migrated", ["postgresql"], indirect=True), pytest.mark.may_log(*DATABASE_AWAY)]

CHATS = 6
CUTS = 40
TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Answers(Watched):
    """How many responses of each kind there were."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[tuple[str, int]] = Counter()

    def add(self, path: str, status: int) -> None:
        self.counted[path.rpartition("/")[2][:8], status] += 1
        self.changed()

    async def wait_for(self, total: int) -> None:
        await self.wait_until(lambda: self.counted.total() >= total, what=f"{total} responses")


async def ask_on_and_on(server: RunningServer, chat_id: str, over: asyncio.Event, answers: Answers) -> None:
    """Requests of every kind; each is answered as it should be, or with a 503 that says when to come back."""
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"/chats/{chat_id}", {}),
        ("GET", "/chats", {}),
        ("PATCH", f"/chats/{chat_id}", {"json": {"title": "Rain"}}),
        ("GET", f"/chats/{chat_id}/messages", {}),
        ("POST", f"/chats/{chat_id}/interrupt", {"json": {"turn": "none"}}),
        ("POST", "/chats", {"json": {"title": "Snow"}}),
        ("GET", f"/chats/{chat_id}/attempts", {}),
        ("GET", "//metrics", {}),
        ("GET", "//readyz", {}),
    ]
    while not over.is_set():
        for method, path, more in requests:
            async with server.request(method, path, **more) as response:
                answers.add(path, response.status)
                if response.status >= 400:
                    problem = await response.json()
                    assert (response.status, problem["kind"]) == (503, "unavailable"), (method, path, problem)
                    assert response.headers["Retry-After"]


async def read_on_and_on(server: RunningServer, chat_id: str, over: asyncio.Event) -> None:
    """A reader that comes back whenever its feed ends."""
    while not over.is_set():
        async with server.request("GET", f"/chats/{chat_id}/events") as response:
            assert response.status in (200, 503)
            with suppress(aiohttp.ClientError):
                async for _ in response.content.iter_any():
                    if over.is_set():
                        break


async def cut(database: str, answers: Answers) -> None:
    """End all connections, as often as that is asked for; each time after some more requests were answered."""
    operator = await asyncpg.connect(database)
    try:
        for _ in range(CUTS):
            enough = answers.counted.total() + 5
            await operator.fetchval(TERMINATE)
            await answers.wait_for(enough)
    finally:
        await operator.close()


@pytest.fixture
async def server(database: str) -> AsyncIterator[RunningServer]:
    async with serve_app(database, CountingModel(), lease_timeout_s=3600, debug="all") as running:
        yield running


async def test_s92_connections_that_are_terminated_again_and_again_cost_no_request_more_than_a_503(
    database: str, server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    chats = [(await server.client.create_chat(ask_to_count(200, pace_ms=20)))["id"] for _ in range(CHATS)]
    answers = Answers()
    over = asyncio.Event()
    async with deadline(), asyncio.TaskGroup() as group:
        for chat_id in chats:
            group.create_task(ask_on_and_on(server, chat_id, over, answers))
            group.create_task(read_on_and_on(server, chat_id, over))
        await cut(database, answers)
        over.set()
    for chat_id in chats:
        await wait_until_idle(server.client, chat_id)
        messages = await server.client.read_all_messages(chat_id)
        said = "".join(text_of(message) for message in messages if message["role"] == "assistant")
        assert said == count(200)
    assert [describe(record) for record in caplog.records if record.exc_info] == []


def describe(record: logging.LogRecord) -> str:
    return f"{record.name}: {record.getMessage()}: {record.exc_info and record.exc_info[1]!r}"
