"""What the client makes of a server that breaks off, is away, redirects, or is no Indelible server at all."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.support.app_harness import AppHarness
from tests.support.json_client import JsonClient
from tests.support.waiting import Watched, deadline

import indelible
from indelible.api.shapes import StoredFile
from indelible.client.client import RemoteFiles
from indelible.client.http_transport import ServerFailed
from indelible.errors import Invalid, NotFound
from indelible.models.http.sse import MAX_EVENT_BYTES
from indelible.testing import ManualClock

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
HTML = "<html><h1>Log in to this network</h1></html>"
SSE = "text/event-stream"


def respond(body: bytes | str = b"", status: int = 200, content_type: str = "application/json", **more: str) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        data = body.encode() if isinstance(body, str) else body
        return web.Response(status=status, body=data, content_type=content_type, headers=more)

    return answer


class Received(Watched):
    """How many bytes of a download have arrived."""

    size = 0

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.changed()


def break_off(begun: bytes, status: int = 200, *, received: Received | None = None, size: int = 300) -> Answer:
    """Send the beginning of a body and then, when so much was received, lose the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(begun)
        if received is not None:
            await received.wait_until(lambda: received.size >= size)
        assert request.transport is not None
        request.transport.close()
        return response

    return answer


async def refuse(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


NOT_FOUND = respond('{"kind": "not_found", "detail": "Gone."}', 404)


@asynccontextmanager
async def answer_with(*answers: Answer) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """A server that gives these answers, the last one for ever, and remembers what it was asked."""
    asked: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return await answers[min(len(asked), len(answers)) - 1](request)

    application = web.Application()
    application.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def open_client(url: str, **more: Any) -> JsonClient:
    """A client whose waits are skipped; its clock counts them."""
    return JsonClient(url, **{"clock": ManualClock(skip_sleeps=True), **more})


async def read_feed(client: JsonClient) -> list[str]:
    return [event.kind async for event in client.follow("/chats/chat_1/events")]


# --- a server that is away ---


async def test_a_proxy_without_a_server_behind_it_is_asked_again_under_the_same_key() -> None:
    away = [respond("<h1>Away</h1>", status, "text/html") for status in (502, 503, 504)]
    async with answer_with(*away, respond('{"id": "chat_1"}', 201)) as (url, asked), open_client(url) as client:
        assert (await client.create_chat("Hi"))["id"] == "chat_1"
    assert len(asked) == 4
    assert len({request.headers["Idempotency-Key"] for request in asked}) == 1


async def test_a_fault_of_the_server_is_not_asked_for_again() -> None:
    async with answer_with(respond("oh", 500)) as (url, asked), open_client(url) as client:
        with pytest.raises(ServerFailed, match="The server responded with status 500"):
            await client.create_chat("Hi")
    assert len(asked) == 1


async def test_the_time_that_requests_take_counts_as_time_without_a_server() -> None:
    clock = ManualClock(skip_sleeps=True)

    async def hang(_request: web.Request) -> web.StreamResponse:
        clock.advance(20)
        return web.Response(status=503)

    last = respond('{"items": []}')
    async with answer_with(*[hang] * 9, last) as (url, asked), open_client(url, clock=clock, retry_for_s=30) as client:
        with pytest.raises(ServerFailed, match="The server is unreachable"):
            await client.list_chats()
    assert len(asked) == 3  # at 0 s, 20 s after the first failure, and none after 40 s


async def test_a_server_that_is_back_just_before_the_time_is_over_is_reached() -> None:
    clock = ManualClock(skip_sleeps=True)

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []}, status=200 if clock.monotonic() > 29.9 else 503)

    async with answer_with(answer) as (url, _), open_client(url, clock=clock, retry_for_s=30) as client:
        assert await client.list_chats() == {"items": []}
    assert 29.9 < clock.monotonic() < 30.001


# --- a body that is cut, or somebody else's ---


async def test_a_read_whose_body_was_cut_is_repeated() -> None:
    cut = break_off(b'{"items":[')
    async with answer_with(cut, cut, respond('{"items":[]}')) as (url, asked), open_client(url) as client:
        assert await client.list_chats() == {"items": []}
    assert len(asked) == 3
    async with answer_with(cut) as (url, asked), open_client(url, retry_for_s=0) as client:
        with pytest.raises(ServerFailed):
            await client.list_chats()
    assert len(asked) == 1


async def test_a_write_whose_json_ends_early_is_repeated_with_its_key() -> None:
    early = respond('{"id": "chat')
    async with answer_with(early, respond('{"id": "chat_1"}', 201)) as (url, asked), open_client(url) as client:
        assert (await client.create_chat("Hi"))["id"] == "chat_1"
    assert len(asked) == 2
    assert len({request.headers["Idempotency-Key"] for request in asked}) == 1


@pytest.mark.parametrize(
    "answer", [respond(HTML, 200, "text/html"), respond('["a list"]'), respond('{"items": 1}'), respond("")]
)
async def test_a_body_that_is_not_the_servers_raises_a_sentence_and_is_not_repeated(answer: Answer) -> None:
    async with answer_with(answer) as (url, asked), indelible.Client(url) as client:
        with pytest.raises(ServerFailed, match=f"Is {url} an Indelible server"):
            await client.chats()
        with pytest.raises(ServerFailed, match=f"Is {url} an Indelible server"):
            await client.create_chat()
    assert len(asked) == 2


async def test_a_page_that_answers_a_deletion_does_not_pass_for_one() -> None:
    async with answer_with(respond(HTML, 200, "text/html")) as (url, _), open_client(url) as client:
        with pytest.raises(ServerFailed, match="an Indelible server"):
            await client.delete_chat("chat_1")


# --- redirects ---


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed_but_named(status: int) -> None:
    elsewhere = "https://chats.example/base"
    moved = respond(status=status, Location=f"{elsewhere}/api/v1/chats")
    async with answer_with(moved) as (url, asked), open_client(url) as client:
        with pytest.raises(ServerFailed, match=f"redirects to {elsewhere}: use that URL"):
            await client.create_chat("Hi")
    assert [request.method for request in asked] == ["POST"]


async def test_a_redirect_of_a_feed_to_a_relative_address_is_named_in_full() -> None:
    async with answer_with(respond(status=302, Location="/login?next=1")) as (url, asked), open_client(url) as client:
        with pytest.raises(ServerFailed) as failed:
            await read_feed(client)
    assert f"redirects to {url}/login?next=1: use that URL" in str(failed.value)
    assert len(asked) == 1


# --- feeds ---


@pytest.mark.parametrize("body", [b"", b'event: end\ndata: {"reason":"shutdown"}\n\n', b"event: mess"])
async def test_a_feed_that_is_closed_at_once_every_time_is_given_up(body: bytes) -> None:
    clock = ManualClock(skip_sleeps=True)
    answers = [*[respond(body, 200, SSE)] * 100, NOT_FOUND]
    async with answer_with(*answers) as (url, asked), open_client(url, clock=clock, retry_for_s=30) as client:
        with pytest.raises(ServerFailed, match="The server is unreachable"):
            await read_feed(client)
    assert clock.monotonic() == pytest.approx(30)
    assert max(clock.slept) > 1  # and not in a hurry
    assert len(asked) < 50


@pytest.mark.parametrize("received", [b": still here\n\n", b'id: c\nevent: chat\ndata: {"title":null}\n\n'])
async def test_a_feed_that_receives_something_has_all_its_time_again(received: bytes) -> None:
    clock = ManualClock(skip_sleeps=True)

    async def be_away(_request: web.Request) -> web.StreamResponse:
        clock.advance(20)
        return web.Response(status=503)

    answers = [*[respond(received, 200, SSE), be_away, be_away] * 5, NOT_FOUND]
    async with answer_with(*answers) as (url, asked), open_client(url, clock=clock, retry_for_s=30) as client:
        with pytest.raises(NotFound):
            await read_feed(client)
    assert len(asked) == 16


async def test_a_feed_that_stood_for_a_while_has_all_its_time_again_although_nothing_happened() -> None:
    clock, opened = ManualClock(skip_sleeps=True), asyncio.Event()

    async def stand(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": SSE})
        await response.prepare(request)
        await opened.wait()
        opened.clear()
        clock.advance(10)
        return response

    async def be_away(_request: web.Request) -> web.StreamResponse:
        clock.advance(20)
        return web.Response(status=503)

    event = b'id: c\nevent: chat\ndata: {"title":null}\n\n'
    answers = [respond(event, 200, SSE), *[stand, be_away] * 5, NOT_FOUND]
    async with answer_with(*answers) as (url, asked), open_client(url, clock=clock, retry_for_s=30) as client:
        with pytest.raises(NotFound):
            async for _ in client.follow("/chats/chat_1/events", on_reconnect=opened.set):
                pass
    assert len(asked) == 12


async def test_a_feed_that_is_a_web_page_raises_a_sentence() -> None:
    answers = [respond(HTML, 200, "text/html"), NOT_FOUND]
    async with answer_with(*answers) as (url, _), open_client(url) as client:
        with pytest.raises(ServerFailed, match=f"Is {url} an Indelible server"):
            await read_feed(client)


async def test_an_event_that_is_too_large_raises_a_sentence() -> None:
    huge = b"event: chat\ndata: " + b"x" * MAX_EVENT_BYTES + b"\n\n"
    async with answer_with(respond(huge, 200, SSE)) as (url, _), open_client(url) as client:
        with pytest.raises(ServerFailed, match="An event is larger than"):
            await read_feed(client)


@contextmanager
def noting_abandoned() -> Iterator[list[str]]:
    """The async generators that were dropped before they had ended."""
    abandoned: list[str] = []
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=lambda generator: abandoned.append(repr(generator)))
    try:
        yield abandoned
    finally:
        gc.collect()
        sys.set_asyncgen_hooks(*before)


async def test_a_reader_that_leaves_a_feed_early_leaves_nothing_open() -> None:
    two = b'id: 1\nevent: chat\ndata: {"title":null}\n\n' * 2
    async with answer_with(respond(two, 200, SSE)) as (url, _), open_client(url) as client:
        with noting_abandoned() as abandoned:
            async with aclosing(client.follow("/chats/chat_1/events")) as events:
                async for _event in events:
                    break
        assert abandoned == []


# --- downloads ---

DATA = bytes(range(256)) * 4


def describe(size: int) -> Answer:
    stored = StoredFile(
        id="file_1", name="a.bin", media_type="application/octet-stream", size=size, sha256="0", width=None,
        height=None, has_preview=False, created_at=ManualClock().now(),
    )  # fmt: skip
    return respond(msgspec.json.encode(stored))


async def send_range(request: web.Request) -> web.StreamResponse:
    wanted = request.http_range
    return web.Response(status=206, body=DATA[wanted.start : wanted.stop])


async def download(client: JsonClient, received: Received | None = None, **part: int) -> bytes:
    chunks: list[bytes] = []
    async with deadline(), RemoteFiles(client).open_file("file_1", **part) as arriving:
        async for chunk in arriving:
            chunks.append(chunk)
            if received is not None:
                received.add(chunk)
    return b"".join(chunks)


async def test_a_download_survives_a_restart_of_the_server() -> None:
    received = Received()
    cut = break_off(DATA[:300], 206, received=received)
    answers = [describe(len(DATA)), cut, *[refuse] * 8, respond(status=503), send_range]
    async with answer_with(*answers) as (url, asked), open_client(url) as client:
        assert await download(client, received) == DATA
    ranges = [request.headers.get("Range") for request in asked]
    assert ranges == [None, "bytes=0-1023", *["bytes=300-1023"] * 10]


async def test_a_download_that_is_cut_very_often_still_arrives() -> None:
    received = Received()

    async def send_some(request: web.Request) -> web.StreamResponse:
        start = request.http_range.start
        return await break_off(DATA[start : start + 100], 206, received=received, size=min(start + 100, len(DATA)))(
            request
        )

    async with answer_with(describe(len(DATA)), send_some) as (url, asked), open_client(url) as client:
        assert await download(client, received) == DATA
    assert len(asked) == 1 + 11


@pytest.mark.parametrize(
    ("answer", "message", "most_requests"),
    [(respond(b"", 206), "The server does not send the file", 7), (refuse, "The server is unreachable", 60)],
)
async def test_a_download_that_brings_nothing_more_is_given_up(
    answer: Answer, message: str, most_requests: int
) -> None:
    received = Received()
    answers = [describe(len(DATA)), break_off(DATA[:300], 206, received=received), *[answer] * 100, NOT_FOUND]
    async with answer_with(*answers) as (url, asked), open_client(url) as client:
        with pytest.raises(ServerFailed, match=message):
            await download(client, received)
    assert len(asked) <= most_requests


@pytest.mark.parametrize("part", [{}, {"start": 10}, {"start": 10, "stop": 700}])
async def test_a_server_that_ignores_ranges_repeats_no_byte(part: dict[str, int]) -> None:
    received = Received()
    answers = [
        describe(len(DATA)),
        break_off(DATA[:300], received=received, size=300 - part.get("start", 0)),
        respond(DATA),
    ]
    async with answer_with(*answers) as (url, _), open_client(url) as client:
        assert await download(client, received, **part) == DATA[part.get("start") : part.get("stop")]


async def test_a_reader_that_leaves_a_download_early_leaves_nothing_open() -> None:
    async with answer_with(describe(len(DATA)), send_range) as (url, _), open_client(url) as client:
        with noting_abandoned() as abandoned:
            async with RemoteFiles(client).open_file("file_1") as chunks:
                async for _chunk in chunks:
                    break
            del chunks
        assert abandoned == []


# --- a client that is not open ---


async def test_a_client_that_is_not_open_says_so() -> None:
    client = indelible.Client("http://127.0.0.1:1")
    sentence = r"The client is not open: use `async with indelible\.Client"
    for _ in ("before it is opened", "after it was closed"):
        with pytest.raises(Invalid, match=sentence):
            await client.chats()
        with pytest.raises(Invalid, match=sentence):
            async for _event in client.events():
                pass
        async with client:
            pass


async def test_a_feed_that_is_read_while_its_client_closes_ends(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat_id = (await server.client.create_chat())["id"]
    begun = asyncio.Event()
    kinds: list[str] = []

    async def read(client: JsonClient) -> None:
        async for event in client.follow(f"/chats/{chat_id}/events"):
            kinds.append(event.kind)
            begun.set()

    async with deadline(), asyncio.TaskGroup() as tasks, JsonClient(server.url) as client:
        tasks.create_task(read(client))
        await begun.wait()
    assert kinds == ["snapshot"]


async def test_a_server_without_tls_is_named_as_such() -> None:
    async with answer_with(NOT_FOUND) as (url, _):
        address = url.replace("http://", "https://")
        async with open_client(address, retry_for_s=0) as client:
            with pytest.raises(ServerFailed, match=r"can't connect to 127\.0\.0\.1:\d+ \(.*SSL"):
                await client.get_chat("chat_1")
