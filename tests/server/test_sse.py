"""The feed over SSE: cursors, heartbeats, slow readers and those that have gone.

The response itself is tried at its seam, ASGI: a wire that takes nothing is then a gate that is closed. What only a
real socket shows is tried on one.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import Message
from tests.feed.feed_harness import FeedHarness, StreamedChat
from tests.server.asking import read_problem
from tests.store.driver import settle_in
from tests.support.app_harness import AppHarness
from tests.support.running_server import API, RunningServer, has_text, list_contents, read_until, wait_until_idle
from tests.support.waiting import DEADLINE_S, Watched, deadline, poll_until

from indelible.content import TextDelta
from indelible.errors import NotFound
from indelible.feed.feed import POLL_INTERVAL_S
from indelible.models.http.sse import SseDecoder, SseEvent
from indelible.server.connections import ABORT
from indelible.server.sse import FeedResponse, Pace
from indelible.testing import ScriptedModel, parts

LONG_PACE = Pace(heartbeat_interval_s=DEADLINE_S, stuck_after_s=DEADLINE_S)
FLOOD_BYTES = 60_000
COMMENT = b": still here\n\n"
REPLY = [parts.text_start("1"), parts.text_delta("1", "It is "), parts.text_delta("1", "raining."), parts.finish()]


# --- at the seam ---


class WireFormat(Watched):
    """A connection: what was sent over it, whether it takes anything, and whether the other end has gone."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.begun: list[bytes] = []
        self.is_over = False
        self.is_aborted = False
        self.takes = asyncio.Event()
        self.takes.set()
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.begun.append(message.get("body", b""))
        self.changed()
        await self.takes.wait()
        self.sent += message.get("body", b"")
        self.is_over = message["type"] == "http.response.body" and not message["more_body"]
        self.changed()

    def abort(self) -> None:
        self.is_aborted = True

    @property
    def events(self) -> list[SseEvent]:
        return SseDecoder().feed(self.sent)

    @property
    def kinds(self) -> list[str]:
        return [event.event for event in self.events]


@asynccontextmanager
async def respond(
    feed_harness: FeedHarness, chat: StreamedChat, pace: Pace = LONG_PACE, after: str | None = None
) -> AsyncIterator[tuple[WireFormat, asyncio.Task[None]]]:
    """Send a chat's feed over a wire; the block ends when the response has."""
    wire = WireFormat()
    response = FeedResponse(lambda: feed_harness.feed.open(chat.id, after), pace=pace)
    task = asyncio.create_task(response({"extensions": {ABORT: {"close": wire.abort}}}, wire.receive, wire.send))
    yield wire, task
    await asyncio.wait([task])
    assert feed_harness.metrics.readers == 0
    assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"sending a feed", "watching for a disconnect"})


@pytest.fixture
async def feed_harness(engine: AsyncEngine) -> AsyncIterator[FeedHarness]:
    await settle_in(engine)
    async with FeedHarness(engine, buffer_bytes=2_000, resync_bytes=20_000).opened() as opened:
        yield opened


async def test_after_a_disconnect_nothing_is_left_running(feed_harness: FeedHarness) -> None:
    chat = await feed_harness.create_streaming()
    async with respond(feed_harness, chat) as (wire, task):
        await wire.wait_until(lambda: wire.kinds == ["snapshot"])
        wire.gone.set()
    assert task.exception() is None
    assert not wire.is_over


async def test_a_response_that_is_cancelled_leaves_nothing_behind(feed_harness: FeedHarness) -> None:
    chat = await feed_harness.create_streaming()
    async with respond(feed_harness, chat) as (wire, task):
        await wire.wait_until(lambda: wire.kinds == ["snapshot"])
        task.cancel()
    assert task.cancelled()


async def test_a_chat_that_is_gone_before_the_response_begins_is_not_found(feed_harness: FeedHarness) -> None:
    chat = StreamedChat(feed_harness)
    chat.id = "chat_that_was_never_there"
    async with respond(feed_harness, chat) as (wire, task):
        pass
    assert isinstance(task.exception(), NotFound)
    assert wire.sent == b""


async def test_a_wire_that_takes_nothing_is_given_up_after_a_while(feed_harness: FeedHarness) -> None:
    chat = await feed_harness.create_streaming()
    async with respond(feed_harness, chat, Pace(heartbeat_interval_s=DEADLINE_S, stuck_after_s=0.02)) as (wire, task):
        await wire.wait_until(lambda: wire.kinds == ["snapshot"])
        wire.takes.clear()
        await chat.write("Nobody hears this.")
    assert task.exception() is None
    assert wire.is_aborted


async def test_a_comment_says_that_the_server_is_there_and_no_event_is_lost_to_it(feed_harness: FeedHarness) -> None:
    chat = await feed_harness.create_streaming()
    async with respond(feed_harness, chat, Pace(heartbeat_interval_s=0.005, stuck_after_s=DEADLINE_S)) as (wire, _):
        await wire.wait_until(lambda: wire.kinds == ["snapshot"])
        for number in range(5):
            comments = wire.sent.count(COMMENT)
            await wire.wait_until(lambda seen=comments: wire.sent.count(COMMENT) > seen)  # type: ignore[misc]
            await chat.write(f"{number} ")
        await wire.wait_until(lambda: len(wire.events) == 6)
        wire.gone.set()
    said = [part["delta"] for event in wire.events[1:] for part in json.loads(event.data)["parts"]]
    assert said == ["0 ", "1 ", "2 ", "3 ", "4 "]


async def test_no_event_begins_while_a_comment_waits_for_the_client(feed_harness: FeedHarness) -> None:
    """Else the comment could end up in the middle of an event that is sent in pieces."""
    chat = await feed_harness.create_streaming()
    async with respond(feed_harness, chat, Pace(heartbeat_interval_s=0.005, stuck_after_s=DEADLINE_S)) as (wire, _):
        await wire.wait_until(lambda: wire.kinds == ["snapshot"])
        wire.takes.clear()
        await wire.wait_until(lambda: wire.begun[-1] == COMMENT)
        await chat.write("A word.")
        (reader,) = feed_harness.feed._readers
        await poll_until(lambda: reader.held_bytes == 0, what="the event is with its sender")
        assert wire.begun[-1] == COMMENT
        wire.takes.set()
        await wire.wait_until(lambda: wire.kinds == ["snapshot", "part"])
        wire.gone.set()


async def test_a_reader_that_does_not_read_has_to_begin_anew_and_then_has_everything(
    feed_harness: FeedHarness,
) -> None:
    chat = await feed_harness.create_streaming()
    async with respond(feed_harness, chat) as (wire, _):
        await wire.wait_until(lambda: wire.kinds == ["snapshot"])
        wire.takes.clear()
        for number in range(60):
            await chat.write(f"{number:1000}")
        assert feed_harness.metrics.resyncs == 1
        wire.takes.set()
        await wire.wait_until(lambda: wire.kinds[-1] == "snapshot" and len(wire.kinds) > 1)
        wire.gone.set()
    assert wire.kinds[-2:] == ["resync", "snapshot"]
    [block] = json.loads(wire.events[-1].data)["live"]["blocks"]
    assert block["text"] == "".join(f"{number:1000}" for number in range(60))


async def test_the_end_of_the_feed_is_the_end_of_the_response(feed_harness: FeedHarness) -> None:
    chat = await feed_harness.create_streaming()
    async with respond(feed_harness, chat) as (wire, task):
        await wire.wait_until(lambda: wire.kinds == ["snapshot"])
        feed_harness.feed.close()
    assert wire.is_over
    assert task.exception() is None
    assert json.loads(wire.events[-1].data) == {"reason": "shutdown"}
    assert wire.events[-1].id == wire.events[0].id


async def test_a_database_that_fails_delays_the_stream_and_does_not_end_it(feed_harness: FeedHarness) -> None:
    chat = await feed_harness.create_streaming()
    await chat.write("Hello")
    feed_harness.store.failures["changes"] = 2
    async with respond(feed_harness, chat, after="start") as (wire, task):
        while "part" not in wire.kinds:
            await feed_harness.clock.advance(POLL_INTERVAL_S)
        assert feed_harness.store.failures["changes"] == 0
        wire.gone.set()
    assert task.exception() is None


# --- over HTTP ---


async def read_stream(server: RunningServer, chat_id: str, count: int, **more: Any) -> list[SseEvent]:
    """So many events of a stream, as they are sent."""
    events: list[SseEvent] = []
    decoder = SseDecoder()
    async with deadline(), server.request("GET", f"/chats/{chat_id}/events", **more) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert response.headers["Cache-Control"] == "no-cache, no-transform"
        while len(events) < count:
            events += decoder.feed(await response.content.readany())
    return events[:count]


async def finish_chat(server: RunningServer) -> str:
    """A chat with a reply that has ended."""
    chat_id: str = (await server.client.create_chat("Is it raining?"))["id"]
    await wait_until_idle(server.client, chat_id)
    return chat_id


async def test_every_id_is_a_cursor_and_either_way_to_bring_it_gives_the_rest(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([REPLY]))
    chat_id = await finish_chat(server)
    told = await read_until(
        server.client, chat_id, lambda events: events[-1].data.get("status") == "idle", after="start"
    )
    everything = await read_stream(server, chat_id, len(told), params={"after": "start"})
    assert [event.event for event in everything] == [event.kind for event in told]
    assert everything[0].event == "message"

    for place in range(len(everything) - 1):
        cursor, rest = str(everything[place].id), everything[place + 1 :]
        assert await read_stream(server, chat_id, len(rest), params={"after": cursor}) == rest
        assert await read_stream(server, chat_id, len(rest), headers={"Last-Event-ID": cursor}) == rest
    assert everything[-1].id == (await server.client.get_chat(chat_id))["cursor"]


async def test_the_browsers_own_header_counts_before_the_address(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([REPLY]))
    chat_id = await finish_chat(server)
    first, second = await read_stream(server, chat_id, 2, params={"after": "start"})

    [told] = await read_stream(server, chat_id, 1, params={"after": "start"}, headers={"Last-Event-ID": str(first.id)})

    assert told == second


async def test_a_cursor_that_is_none_gives_a_snapshot(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([REPLY, REPLY]))
    chat_id, other_id = await finish_chat(server), await finish_chat(server)
    theirs = (await server.client.get_chat(other_id))["cursor"]
    for cursor in ("garbage", "", "\N{PILE OF POO}", "%00", theirs, "A" * 2000):
        [told] = await read_stream(server, chat_id, 1, params={"after": cursor})
        assert told.event == "snapshot"
        assert json.loads(told.data)["id"] == chat_id


async def test_a_reader_that_leaves_is_not_counted_and_stops_nothing(harness: AppHarness) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def speak_slowly(_call: Any) -> AsyncIterator[Any]:
        yield parts.text_delta("1", "It is ")
        begun.set()
        await go_on.wait()
        yield parts.text_delta("1", "raining.")
        yield parts.finish()

    server = await harness.start_server(ScriptedModel([speak_slowly]))
    chat = await server.client.create_chat("Is it raining?")
    assert await server.read_metric("indelible_feed_readers") == 0
    async with server.request("GET", f"/chats/{chat['id']}/events") as response:
        await response.content.readany()
        assert await server.read_metric("indelible_feed_readers") == 1
        await begun.wait()
    await server.wait_for_readers(0)

    go_on.set()

    await wait_until_idle(server.client, chat["id"])
    assert (await server.client.get_chat(chat["id"]))["messages"][-1]["blocks"] == [
        {"type": "text", "text": "It is raining."}
    ]


async def test_a_stream_that_is_idle_still_says_that_it_is_there(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, pace=Pace(heartbeat_interval_s=0.02))
    chat = await server.client.create_chat()
    async with server.request("GET", f"/chats/{chat['id']}/events") as response:
        sent = b""
        async with deadline():
            while not SseDecoder().feed(sent):
                sent += await response.content.readany()
            before = sent.count(COMMENT)
            while sent.count(COMMENT) < before + 2:
                sent += await response.content.readany()
    [event] = SseDecoder().feed(sent)
    assert event.event == "snapshot"


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_a_socket_that_is_never_read_is_closed(harness: AppHarness) -> None:
    """More is said than all buffers between the two hold, and the other end has stopped reading."""
    flood = [TextDelta("1", f"{number:{FLOOD_BYTES}}") for number in range(250)]
    server = await harness.start_server(ScriptedModel([[*flood, parts.finish()]]), pace=Pace(stuck_after_s=0.3))
    chat_id = await finish_chat(server)
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.settimeout(0)
        loop = asyncio.get_running_loop()
        host, _, port = server.url.removeprefix("http://").partition(":")
        await loop.sock_connect(stuck, (host, int(port)))
        request = f"GET {API}/chats/{chat_id}/events?after=start HTTP/1.1\r\nHost: {host}\r\n\r\n"
        await loop.sock_sendall(stuck, request.encode())
        assert (await loop.sock_recv(stuck, 15)).startswith(b"HTTP/1.1 200")

        await server.wait_for_readers(0)
        await poll_until(lambda: stuck.getsockname() not in list_peers(server))
        assert await count_bytes_left(stuck) < len(flood) * FLOOD_BYTES


async def count_bytes_left(closed: socket.socket) -> int:
    """How much had been sent before the other end closed the connection, or reset it."""
    count = 0
    with suppress(ConnectionResetError):
        while piece := await asyncio.get_running_loop().sock_recv(closed, 1 << 20):
            count += len(piece)
    return count


def list_peers(server: RunningServer) -> set[Any]:
    """Who is connected to the server now."""
    transports = [getattr(connection, "transport", None) for connection in server.process.server_state.connections]
    return {transport.get_extra_info("peername") for transport in transports if transport is not None}


async def test_a_feed_of_nobody_is_an_ordinary_problem(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    async with server.request("GET", "/chats/nobody/events") as response:
        assert (await read_problem(response))["kind"] == "not_found"


async def test_two_readers_of_one_chat_get_the_same(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([REPLY]))
    chat = await server.client.create_chat("Is it raining?")
    async with asyncio.TaskGroup() as group:
        reading = [
            group.create_task(read_until(server.client, chat["id"], has_text("raining."), after="start"))
            for _ in range(2)
        ]
    assert list_contents(reading[0].result()) == list_contents(reading[1].result())
