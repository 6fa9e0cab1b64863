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
from tests.feed.process import Process, Talk, wait_until
from tests.server.asking import read_problem
from tests.server.conftest import Serve
from tests.server.serving import API, PATIENCE_S, Here, has_said, read_until, wait_until_idle
from tests.store.driver import settle_in

from indelible.content import TextDelta
from indelible.errors import NotFound, StoreFailed
from indelible.models.http.sse import SseDecoder, SseEvent
from indelible.server.sse import FeedResponse, Pace
from indelible.testing import ScriptedModel, parts

LONG_PACE = Pace(heartbeat_interval_s=PATIENCE_S, stuck_after_s=PATIENCE_S)
FLOOD_BYTES = 60_000
COMMENT = b": still here\n\n"
REPLY = [parts.text_start("1"), parts.text_delta("1", "It is "), parts.text_delta("1", "raining."), parts.finish()]


# --- at the seam ---


class WireFormat:
    """A connection: what was sent over it, whether it takes anything, and whether the other end has gone."""

    def __init__(self) -> None:
        self.sent = b""
        self.is_over = False
        self.takes = asyncio.Event()
        self.takes.set()
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.takes.wait()
        self.sent += message.get("body", b"")
        self.is_over = message["type"] == "http.response.body" and not message["more_body"]

    @property
    def events(self) -> list[SseEvent]:
        return SseDecoder().feed(self.sent)

    @property
    def kinds(self) -> list[str]:
        return [event.event for event in self.events]


@asynccontextmanager
async def respond(
    process: Process, talk: Talk, pace: Pace = LONG_PACE, after: str | None = None
) -> AsyncIterator[tuple[WireFormat, asyncio.Task[None]]]:
    """Send a chat's feed over a wire; the block ends when the response has."""
    wire = WireFormat()
    response = FeedResponse(process.feed, talk.id, after, pace=pace)
    task = asyncio.create_task(response({}, wire.receive, wire.send))
    yield wire, task
    await asyncio.wait([task])
    assert process.counted.readers == 0
    assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"sending a feed", "watching for a disconnect"})


@pytest.fixture
async def process(engine: AsyncEngine) -> AsyncIterator[Process]:
    await settle_in(engine)
    async with Process(engine, buffer_bytes=2_000, resync_bytes=20_000).running() as started:
        yield started


async def start_talking(process: Process) -> Talk:
    talk = await (await process.talk()).hold()
    await talk.start()
    return talk


async def test_after_a_disconnect_nothing_is_left_running(process: Process) -> None:
    talk = await start_talking(process)
    async with respond(process, talk) as (wire, task):
        await wait_until(lambda: wire.kinds == ["snapshot"])
        wire.gone.set()
    assert task.exception() is None
    assert not wire.is_over


async def test_a_response_that_is_cancelled_leaves_nothing_behind(process: Process) -> None:
    talk = await start_talking(process)
    async with respond(process, talk) as (wire, task):
        await wait_until(lambda: wire.kinds == ["snapshot"])
        task.cancel()
    assert task.cancelled()


async def test_a_chat_that_is_gone_before_the_response_begins_is_not_found(process: Process) -> None:
    talk = Talk(process)
    talk.id = "chat_that_was_never_there"
    async with respond(process, talk) as (wire, task):
        pass
    assert isinstance(task.exception(), NotFound)
    assert wire.sent == b""


async def test_a_wire_that_takes_nothing_is_given_up_after_a_while(process: Process) -> None:
    talk = await start_talking(process)
    async with respond(process, talk, Pace(heartbeat_interval_s=PATIENCE_S, stuck_after_s=0.02)) as (wire, task):
        await wait_until(lambda: wire.kinds == ["snapshot"])
        wire.takes.clear()
        await talk.speak("Nobody hears this.")
    assert task.exception() is None


async def test_a_comment_says_that_the_server_is_there_and_no_event_is_lost_to_it(process: Process) -> None:
    talk = await start_talking(process)
    async with respond(process, talk, Pace(heartbeat_interval_s=0.005, stuck_after_s=PATIENCE_S)) as (wire, _):
        for number in range(5):
            comments = wire.sent.count(COMMENT)
            await wait_until(lambda seen=comments: wire.sent.count(COMMENT) > seen)  # type: ignore[misc]
            await talk.speak(f"{number} ")
        await wait_until(lambda: len(wire.events) == 6)
        wire.gone.set()
    said = [part["delta"] for event in wire.events[1:] for part in json.loads(event.data)["parts"]]
    assert said == ["0 ", "1 ", "2 ", "3 ", "4 "]


async def test_a_reader_that_does_not_read_is_told_to_begin_anew_and_has_everything_then(process: Process) -> None:
    talk = await start_talking(process)
    async with respond(process, talk) as (wire, _):
        await wait_until(lambda: wire.kinds == ["snapshot"])
        wire.takes.clear()
        for number in range(60):
            await talk.speak(f"{number:1000}")
        assert process.counted.resyncs == 1
        wire.takes.set()
        await wait_until(lambda: wire.kinds[-1] == "snapshot" and len(wire.kinds) > 1)
        wire.gone.set()
    assert wire.kinds[-2:] == ["resync", "snapshot"]
    [block] = json.loads(wire.events[-1].data)["live"]["blocks"]
    assert block["text"] == "".join(f"{number:1000}" for number in range(60))


async def test_the_end_of_the_feed_is_the_end_of_the_response(process: Process) -> None:
    talk = await start_talking(process)
    async with respond(process, talk) as (wire, task):
        await wait_until(lambda: wire.kinds == ["snapshot"])
        process.feed.close()
    assert wire.is_over
    assert task.exception() is None
    assert json.loads(wire.events[-1].data) == {"reason": "shutdown"}
    assert wire.events[-1].id == wire.events[0].id


async def test_a_database_that_fails_cuts_the_stream_and_does_not_pretend_an_end(process: Process) -> None:
    talk = await start_talking(process)
    await talk.speak("Hello")
    process.store.failures["changes"] = 1
    async with respond(process, talk, after="start") as (wire, task):
        pass
    assert isinstance(task.exception(), StoreFailed)
    assert not wire.is_over


# --- over HTTP ---


async def read_stream(here: Here, chat_id: str, count: int, **more: Any) -> list[SseEvent]:
    """So many events of a stream, as they are sent."""
    events: list[SseEvent] = []
    decoder = SseDecoder()
    async with asyncio.timeout(PATIENCE_S), here.ask("GET", f"/chats/{chat_id}/events", **more) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert response.headers["Cache-Control"] == "no-cache, no-transform"
        while len(events) < count:
            events += decoder.feed(await response.content.readany())
    return events[:count]


async def talk_over(here: Here) -> str:
    """A chat with a reply that has ended."""
    chat_id: str = (await here.client.create_chat("Is it raining?"))["id"]
    await wait_until_idle(here.client, chat_id)
    return chat_id


async def test_every_id_is_a_cursor_and_either_way_to_bring_it_gives_the_rest(serve: Serve) -> None:
    here = await serve(ScriptedModel([REPLY]))
    chat_id = await talk_over(here)
    told = await read_until(here.client, chat_id, lambda events: events[-1].data.get("status") == "idle", after="start")
    everything = await read_stream(here, chat_id, len(told), params={"after": "start"})
    assert [event.event for event in everything] == [event.kind for event in told]
    assert everything[0].event == "message"

    for place in range(len(everything) - 1):
        cursor, rest = str(everything[place].id), everything[place + 1 :]
        assert await read_stream(here, chat_id, len(rest), params={"after": cursor}) == rest
        assert await read_stream(here, chat_id, len(rest), headers={"Last-Event-ID": cursor}) == rest
    assert everything[-1].id == (await here.client.get_chat(chat_id))["cursor"]


async def test_the_browsers_own_header_counts_before_the_address(serve: Serve) -> None:
    here = await serve(ScriptedModel([REPLY]))
    chat_id = await talk_over(here)
    first, second = await read_stream(here, chat_id, 2, params={"after": "start"})

    [told] = await read_stream(here, chat_id, 1, params={"after": "start"}, headers={"Last-Event-ID": str(first.id)})

    assert told == second


async def test_a_cursor_that_is_none_gives_a_snapshot(serve: Serve) -> None:
    here = await serve(ScriptedModel([REPLY, REPLY]))
    chat_id, other_id = await talk_over(here), await talk_over(here)
    theirs = (await here.client.get_chat(other_id))["cursor"]
    for cursor in ("garbage", "", "\N{PILE OF POO}", "%00", theirs, "A" * 2000):
        [told] = await read_stream(here, chat_id, 1, params={"after": cursor})
        assert told.event == "snapshot"
        assert json.loads(told.data)["id"] == chat_id


async def test_a_reader_that_leaves_is_not_counted_and_stops_nothing(serve: Serve) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def speak_slowly(_call: Any) -> AsyncIterator[Any]:
        yield parts.text_delta("1", "It is ")
        begun.set()
        await go_on.wait()
        yield parts.text_delta("1", "raining.")
        yield parts.finish()

    here = await serve(ScriptedModel([speak_slowly]))
    chat = await here.client.create_chat("Is it raining?")
    assert await here.read_metric("indelible_feed_readers") == 0
    async with here.ask("GET", f"/chats/{chat['id']}/events") as response:
        await response.content.readany()
        assert await here.read_metric("indelible_feed_readers") == 1
        await begun.wait()
    await here.wait_for_readers(0)

    go_on.set()

    await wait_until_idle(here.client, chat["id"])
    assert (await here.client.get_chat(chat["id"]))["messages"][-1]["blocks"] == [
        {"type": "text", "text": "It is raining."}
    ]


async def test_a_stream_that_is_idle_still_says_that_it_is_there(serve: Serve) -> None:
    here = await serve(worker=False, pace=Pace(heartbeat_interval_s=0.02))
    chat = await here.client.create_chat()
    async with here.ask("GET", f"/chats/{chat['id']}/events") as response:
        sent = b""
        async with asyncio.timeout(PATIENCE_S):
            while not SseDecoder().feed(sent):
                sent += await response.content.readany()
            before = sent.count(COMMENT)
            while sent.count(COMMENT) < before + 2:
                sent += await response.content.readany()
    [event] = SseDecoder().feed(sent)
    assert event.event == "snapshot"


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_a_socket_that_is_never_read_is_closed(serve: Serve) -> None:
    """More is said than all buffers between the two hold, and the other end has stopped reading."""
    flood = [TextDelta("1", f"{number:{FLOOD_BYTES}}") for number in range(250)]
    here = await serve(ScriptedModel([[*flood, parts.finish()]]), pace=Pace(stuck_after_s=0.3))
    chat_id = await talk_over(here)
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.settimeout(0)
        loop = asyncio.get_running_loop()
        host, _, port = here.url.removeprefix("http://").partition(":")
        await loop.sock_connect(stuck, (host, int(port)))
        request = f"GET {API}/chats/{chat_id}/events?after=start HTTP/1.1\r\nHost: {host}\r\n\r\n"
        await loop.sock_sendall(stuck, request.encode())
        assert (await loop.sock_recv(stuck, 15)).startswith(b"HTTP/1.1 200")

        await here.wait_for_readers(0)
        await wait_until(lambda: stuck.getsockname() not in list_peers(here))
        assert await count_bytes_left(stuck) < len(flood) * FLOOD_BYTES


async def count_bytes_left(closed: socket.socket) -> int:
    """How much had been sent before the other end closed the connection, or reset it."""
    count = 0
    with suppress(ConnectionResetError):
        while piece := await asyncio.get_running_loop().sock_recv(closed, 1 << 20):
            count += len(piece)
    return count


def list_peers(here: Here) -> set[Any]:
    """Who is connected to the server now."""
    transports = [getattr(connection, "transport", None) for connection in here.process.server_state.connections]
    return {transport.get_extra_info("peername") for transport in transports if transport is not None}


async def test_a_feed_of_nobody_is_an_ordinary_problem(serve: Serve) -> None:
    here = await serve(worker=False)
    async with here.ask("GET", "/chats/nobody/events") as response:
        assert (await read_problem(response))["kind"] == "not_found"


async def test_two_readers_of_one_chat_are_told_the_same(serve: Serve) -> None:
    here = await serve(ScriptedModel([REPLY]))
    chat = await here.client.create_chat("Is it raining?")
    async with asyncio.TaskGroup() as group:
        reading = [
            group.create_task(read_until(here.client, chat["id"], has_said("raining."), after="start"))
            for _ in range(2)
        ]
    assert reading[0].result() == reading[1].result()
