"""A server that leaves while replies are streamed to clients that have no cursor: whole, or the client raises.

The compatible APIs have no way to reconnect, and neither has a program that reads the reply from the response of its
command. Their streams stay open while the server drains. A stream that cannot be finished breaks off in a way that no
HTTP client takes for an end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from compat.running import CLIENTS
from tests.server.compat.compat_clients import open_openai
from tests.support.app_harness import NEVER_S, AppHarness, serve_app
from tests.support.engine import get_name
from tests.support.node import run_module
from tests.support.running_server import RunningServer, say_half
from tests.support.waiting import deadline, poll_until

from indelible.content import Part
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
STREAM = {"Accept": "text/event-stream"}
MESSAGES = [{"role": "user", "content": "A story"}]
HOOK = {"id": "mine", "messages": [{"id": "u1", "role": "user", "parts": [{"type": "text", "text": "A story"}]}]}
REQUESTS: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "chat completions": ("//v1/chat/completions", {"messages": MESSAGES, "stream": True}, b"data: [DONE]"),
    "responses": ("//v1/responses", {"input": "A story", "stream": True}, b"event: response.completed"),
    "ai sdk": ("//ai-sdk/chat", HOOK, b'data: {"type":"finish"'),
    "native": ("/chats", {"message": "A story"}, b'"status":"idle"'),
}
APIS = [name for name in REQUESTS if name != "native"]
COLLECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat completions": ("//v1/chat/completions", {"messages": MESSAGES}),
    "responses": ("//v1/responses", {"input": "A story"}),
}
STORY = "Once upon a time."
NPM_CLIENTS = ("completions", "responses", "ai-7", "ai-6")


class HeldReply:
    """A model that says `Once`, and the rest when the test says so."""

    def __init__(self, calls: int = 1) -> None:
        self.has_begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.model = ScriptedModel([self._tell] * calls)

    async def _tell(self, call: Call) -> AsyncIterator[Part]:
        yield parts.text_start("1")
        yield parts.text_delta("1", "Once")
        self.has_begun.set()
        await self.go_on.wait()
        yield parts.text_delta("1", STORY.removeprefix("Once"))
        yield parts.text_end("1")
        yield parts.finish()


def request_reply(server: RunningServer, api: str) -> Any:
    path, body, _ = REQUESTS[api]
    return server.request("POST", path, json=body, headers=STREAM if api == "native" else {})


async def read_beginning(response: aiohttp.ClientResponse) -> bytes:
    """Until the reply has begun."""
    assert response.status in (200, 201), await response.text()
    read = b""
    async with deadline():
        while b"Once" not in read:
            read += await response.content.readline()
    return read


async def read_rest(response: aiohttp.ClientResponse) -> bytes:
    async with deadline():
        return await response.content.read()


@pytest.mark.parametrize("api", REQUESTS)
async def test_a_reply_is_streamed_to_its_end_while_its_server_drains_and_feeds_end_at_once(
    database: str, api: str
) -> None:
    held = HeldReply()
    async with deadline(), serve_app(database, held.model, drain_s=NEVER_S) as server:
        async with request_reply(server, api) as response:
            await read_beginning(response)
            (chat,) = (await server.client.list_chats())["items"]
            async with server.request("GET", f"/chats/{chat['id']}/events") as feed:
                server.process.shut_down()
                assert (await read_rest(feed)).endswith(b'event: end\ndata: {"reason":"shutdown"}\n\n')
            held.go_on.set()
            rest = await read_rest(response)
        assert b"upon a time" in rest
        assert REQUESTS[api][2] in rest


@pytest.mark.parametrize("api", APIS)
async def test_the_drain_limits_a_streamed_reply_and_the_grace_of_the_listener_does_not(
    database: str, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indelible.server.process.GRACE_S", 0)
    held = HeldReply()
    async with deadline(), serve_app(database, held.model, drain_s=NEVER_S) as server:
        server.process.config.timeout_graceful_shutdown = int(NEVER_S)
        async with request_reply(server, api) as response:
            await read_beginning(response)
            idle, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await idle.readline()
            server.process.shut_down()
            await idle.read()  # closed: the server drains
            writer.close()
            held.go_on.set()
            assert REQUESTS[api][2] in await read_rest(response)


@pytest.mark.parametrize("api", COLLECTED)
async def test_a_reply_in_one_piece_is_waited_for_while_its_server_drains(database: str, api: str) -> None:
    held = HeldReply()
    path, body = COLLECTED[api]
    async with deadline(), serve_app(database, held.model, drain_s=NEVER_S) as server, asyncio.TaskGroup() as group:
        ask = group.create_task(ask_for(server, path, body))
        await server.wait_for_readers(1)
        await held.has_begun.wait()  # a worker that drains begins nothing new
        server.process.shut_down()
        held.go_on.set()
        status, text = await ask
        assert (status, STORY in text) == (200, True), text


async def ask_for(server: RunningServer, path: str, body: Any) -> tuple[int, str]:
    async with server.request("POST", path, json=body) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("drain_s", [0, 0.3])
@pytest.mark.parametrize("api", APIS)
async def test_a_reply_that_is_not_finished_when_its_server_goes_is_no_complete_response(
    database: str, api: str, drain_s: float
) -> None:
    model = ScriptedModel([say_half("Once")])
    async with (
        deadline(),
        serve_app(database, model, drain_s=drain_s) as server,
        request_reply(server, api) as response,
    ):
        await read_beginning(response)
        server.process.shut_down()
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_rest(response)


async def test_a_native_reply_that_is_not_finished_ends_with_an_end(database: str) -> None:
    model = ScriptedModel([say_half("Once")])
    async with (
        deadline(),
        serve_app(database, model, drain_s=0.3) as server,
        request_reply(server, "native") as response,
    ):
        await read_beginning(response)
        server.process.shut_down()
        assert (await read_rest(response)).endswith(b'event: end\ndata: {"reason":"shutdown"}\n\n')


@pytest.mark.parametrize("drain_s", [0, NEVER_S])
async def test_the_sdks_from_npm_read_the_whole_reply_or_raise(database: str, tmp_path: Path, drain_s: float) -> None:
    held, begun = HeldReply(4), tmp_path / "begun"
    async with deadline(), serve_app(database, held.model, drain_s=drain_s) as server, asyncio.TaskGroup() as group:
        program = (CLIENTS / "streams.mjs", server.url, "scripted", str(begun), "A story", "1", "leave", *NPM_CLIENTS)
        running = group.create_task(run_module(*program))
        await poll_until(lambda: begun.exists() or running.done(), what="the beginning of every reply")
        server.process.shut_down()
        if drain_s:
            held.go_on.set()
        status, printed = await running
    assert status == 0, printed
    ended = [json.loads(line) for line in printed.splitlines()]
    assert {each["kind"] for each in ended} == set(NPM_CLIENTS)
    assert {each["text"] for each in ended} == {STORY if drain_s else "Once"}
    assert [each for each in ended if (each["raised"] is None) != bool(drain_s)] == []


@pytest.mark.parametrize("api", COLLECTED)
async def test_the_sdk_for_python_raises(database: str, api: str) -> None:
    serving = serve_app(database, ScriptedModel([say_half("Once")]))
    async with deadline(), serving as server, open_openai(server) as client:

        async def read() -> None:
            _, body = COLLECTED[api]
            create: Any = client.responses.create if api == "responses" else client.chat.completions.create
            async for event in await create(**{"model": "scripted", **body, "stream": True}):
                if "Once" in str(event):
                    server.process.shut_down()

        with pytest.raises(openai.APIConnectionError):
            await read()


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_whose_chat_is_deleted_is_no_complete_response(harness: AppHarness, api: str) -> None:
    server = await harness.start_server(ScriptedModel([say_half("Once")]))
    async with deadline(), request_reply(server, api) as response:
        await read_beginning(response)
        (chat,) = (await server.client.list_chats())["items"]
        async with server.request("DELETE", f"/chats/{chat['id']}") as deleted:
            assert deleted.status == 204
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_rest(response)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_gives_up_does_not_hold_a_server_that_drains(
    harness: AppHarness, *, is_streamed: bool
) -> None:
    """The reply is written elsewhere and does not end: only its reader keeps the server."""
    await harness.start_worker(ScriptedModel([say_half("Once")]))
    path, body, _ = REQUESTS["chat completions"]
    serving = serve_app(get_name(harness.engine), "demo", worker=False, drain_s=NEVER_S)
    async with deadline(), serving as server, asyncio.TaskGroup() as group:
        ask = group.create_task(ask_for(server, path, {**body, "stream": is_streamed}))
        await server.wait_for_readers(1)
        server.process.shut_down()
        ask.cancel()
