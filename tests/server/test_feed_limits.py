"""What many readers may cost: feeds per user, and the memory of readers that do not read (S103, S108)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer
from tests.support.waiting import deadline

from indelible.api.events import EventBody, FeedEvent
from indelible.feed import Feed
from indelible.server.sse import PIECE_BYTES, split_event, write_event

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

READERS = 60
MEGABYTE = 1024 * 1024
TEXT = "x" * 250_000
QUEUED = 20


@asynccontextmanager
async def reading(server: RunningServer, chat_id: str) -> AsyncIterator[asyncio.StreamReader]:
    """A feed whose client reads only as much as the test does, and a little ahead."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(f"GET /api/v1/chats/{chat_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    try:
        yield reader
    finally:
        writer.transport.abort()


async def make_large_chat(server: RunningServer) -> str:
    """Its snapshot has five megabytes: nobody answers, so everything is in the queue."""
    chat_id: str = (await server.client.create_chat(TEXT))["id"]
    for _ in range(QUEUED):
        await server.client.send(chat_id, TEXT)
    return chat_id


def measure_memory() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_s103_readers_that_do_not_read_share_what_they_hold(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat_id = await make_large_chat(server)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(reading(server, chat_id))
        async with deadline():
            await first.readuntil(b"event: snapshot\n")
        before = measure_memory()
        for _ in range(READERS):
            reader = await stack.enter_async_context(reading(server, chat_id))
            async with deadline():
                await reader.readuntil(b"event: snapshot\n")
        grown = measure_memory() - before
    assert grown < 100 * MEGABYTE
    await server.wait_for_readers(0)


async def test_s103_readers_that_join_at_the_same_place_get_the_same_snapshot(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat_id = await make_large_chat(server)
    feed: Feed = server.app.feed
    async with feed.open(chat_id) as one, feed.open(chat_id) as two:
        first, second = await anext(one), await anext(two)
        assert first.json is second.json
        await server.client.update_chat(chat_id, title="Rain")
        async with feed.open(chat_id) as three:
            third = await anext(three)
    assert third.json is not first.json
    assert third.data["title"] == "Rain"


async def test_s103_a_large_event_arrives_whole(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat_id = await make_large_chat(server)
    async for event in server.client.stream_events(chat_id):
        assert event.kind == "snapshot"
        assert [queued["blocks"][0]["text"] for queued in event.data["queue"]] == [TEXT] * QUEUED
        break


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 100, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5])
def test_the_pieces_of_an_event_are_the_event(migrated: str, size: int) -> None:
    event = FeedEvent("part", "cursor", EventBody(b"x" * size))
    pieces = list(split_event(event))
    assert b"".join(pieces) == write_event(event)
    assert max(map(len, pieces)) <= PIECE_BYTES + 1000


async def test_s103_a_user_has_no_more_feeds_open_than_allowed(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, user_max_feeds=3)
    chat_id = (await server.client.create_chat(title="Rain"))["id"]
    async with AsyncExitStack() as stack:
        open_feeds = [await stack.enter_async_context(reading(server, chat_id)) for _ in range(2)]
        async with AsyncExitStack() as last, deadline():
            open_feeds.append(await last.enter_async_context(reading(server, chat_id)))
            for reader in open_feeds:
                await reader.readuntil(b"event: snapshot\n")
            async with server.request("GET", f"/chats/{chat_id}/events") as response:
                problem = await read_problem(response)
                assert (problem["status"], problem["kind"]) == (429, "too_many")
                assert response.headers["Retry-After"]
        await server.wait_for_readers(2)
        async with reading(server, chat_id) as again, deadline():
            await again.readuntil(b"event: snapshot\n")


async def test_s108_feeds_that_are_hung_up_leave_nothing_and_lock_nobody_out(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, user_max_feeds=20)
    chat_id = (await server.client.create_chat(title="Rain"))["id"]
    for _ in range(20):
        async with AsyncExitStack() as stack:
            for _ in range(20):
                await stack.enter_async_context(reading(server, chat_id))
        await server.wait_for_readers(0)
    async with reading(server, chat_id) as reader, deadline():
        await reader.readuntil(b"event: snapshot\n")
