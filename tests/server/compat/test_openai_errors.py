"""Errors on `/v1` have OpenAI's shape, and nobody reaches the chats of somebody else on any API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.server.asking import read_problem
from tests.server.compat.compat_clients import open_openai
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, say
from tests.support.waiting import deadline

import indelible
from indelible.content import ToolSpec
from indelible.server.app import compatible
from indelible.server.compat.openai import ResponseName, name_conversation
from indelible.testing import ScriptedModel
from indelible.tools.tool import tool

DOCS = Path(__file__).parents[3] / "docs"
ROUTES = [(each.method, each.path) for each in compatible.facts]


@tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


_FILE = b'{"type": "file", "url": "https://example.org/rain.png", %b}'
_EARLIER = b'{"messages": [{"role": "user", "content": [%s]}, {"role": "user", "content": "Hi"}]}'
_TOOL = b'{"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": %b}]}'
REFUSED = [
    ("//v1/responses", b"{", 400),
    ("//v1/responses", b"[]", 400),
    ("//v1/responses", b'{"input": []}', 400),
    ("//v1/responses", b'{"input": "Hi", "model": "no-such-model"}', 404),
    ("//v1/responses", b'{"input": "Hi", "tools": [{"type": 1}]}', 400),
    ("//v1/responses", b'{"input": "Hi", "background": true, "store": false}', 400),
    ("//v1/responses", b'{"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}', 400),
    ("//v1/responses", b'{"input": "Hi", "previous_response_id": "resp_1"}', 400),
    ("//v1/responses", b'{"input": [{"role": "user", "content": []}]}', 400),
    ("//v1/chat/completions", b'{"messages": []}', 400),
    ("//v1/chat/completions", _TOOL % b"null", 400),
    ("//v1/chat/completions", b'{"messages": [{"role": "user", "content": "Hi"}], "n": 2}', 400),
    ("//v1/responses", b'{"input": "\xff"}', 400),
    ("//v1/responses", b'{"input": "Hi", "conversation": {}}', 400),
    ("//v1/responses", b'{"input": [{"role": "user", "content": [{"type": []}]}]}', 400),
    (
        "//v1/responses",
        b'{"input": [{"role": "user", "content": ["Rain", {"type": "input_text", "text": "Hi"}]}]}',
        400,
    ),
    (
        "//v1/chat/completions",
        b'{"messages": [{"role": "user", "content": ["Rain", {"type": "text", "text": "Hi"}]}]}',
        400,
    ),
    ("//v1/chat/completions", b'{"messages": [{"role": "user", "content": [{"type": {}}]}]}', 400),
    (
        "//v1/chat/completions",
        b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": 1}]}',
        400,
    ),
    ("//v1/chat/completions", _EARLIER % b'{"type": "file", "file": {"file_id": "file_1", "filename": 5}}', 400),
    ("//v1/chat/completions", _TOOL % b'{"name": 1}', 400),
    ("//v1/chat/completions", _TOOL % b'{"name": "rain", "parameters": []}', 400),
    ("//v1/conversations", b'{"metadata": {"place": "\xed\xa0\x80"}}', 400),
    ("//v1/conversations/conv_1", b"{}", 404),
    ("//v1/nothing", b"{}", 404),
]


async def test_a_refusal_has_the_shape_that_clients_of_openai_read(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    for path, body, status in REFUSED:
        async with server.request("POST", path, data=body) as response:
            assert (response.status, response.content_type) == (status, "application/json"), (path, body)
            error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"]
    assert (await server.client.list_chats())["items"] == []


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {"n": 2}),
    ("chat/completions", {"n": 0}),
    ("chat/completions", {"logprobs": True}),
    ("chat/completions", {"top_logprobs": 3}),
    ("chat/completions", {"logit_bias": {"50256": -100}}),
    ("chat/completions", {"modalities": ["text", "audio"]}),
    ("chat/completions", {"audio": {"voice": "alloy", "format": "wav"}}),
    ("chat/completions", {"functions": [{"name": "weather", "parameters": {}}]}),
    ("chat/completions", {"function_call": {"name": "weather"}}),
    ("chat/completions", {"web_search_options": {}}),
    ("responses", {"include": ["message.output_text.logprobs"]}),
    ("responses", {"top_logprobs": 3}),
    ("responses", {"prompt": {"id": "pmpt_1"}}),
    ("responses", {"max_tool_calls": 3}),
    ("responses", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
    ("responses", {"tools": [{"type": "custom", "name": "p"}], "tool_choice": {"type": "function", "name": "p"}}),
    ("responses", {"tools": [{"type": "web_search"}], "tool_choice": "required"}),
    ("chat/completions", {"tools": [{"type": "custom", "custom": {"name": "patch"}}], "tool_choice": "required"}),
]


async def test_a_parameter_that_nothing_here_fulfils_is_refused_by_name(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    for route, asked in UNSUPPORTED:
        body = {"messages": [{"role": "user", "content": "Hi"}], "input": "Hi", **asked}
        async with server.request("POST", f"//v1/{route}", json=body) as response:
            assert response.status == 400, asked
            error = (await response.json())["error"]
        *_, name = asked
        assert (error["param"], error["code"], error["type"]) == (
            name,
            "unsupported_parameter",
            "invalid_request_error",
        )
        assert repr(name) in error["message"]
    assert (await server.client.list_chats())["items"] == []


@pytest.mark.both_databases
@pytest.mark.parametrize("stream", [False, True])
async def test_a_message_without_content_is_refused_at_once_and_leaves_nothing(
    harness: AppHarness, *, stream: bool
) -> None:
    server: RunningServer = await harness.start_server(worker=False, user_max_feeds=1)
    call = {"id": "c", "type": "function", "function": {"name": "rain", "arguments": "{}"}}
    empty = {"role": "user", "content": []}
    result = {"role": "tool", "tool_call_id": "c", "content": "rain"}
    for messages in ([empty], [empty, {"role": "assistant", "tool_calls": [call]}, result]):
        for headers in ({}, {"X-Indelible-Chat": "support"}):
            body = {"messages": messages, "stream": stream}
            async with (
                deadline(),
                server.request("POST", "//v1/chat/completions", json=body, headers=headers) as response,
            ):
                assert response.status == 400
                assert (await response.json())["error"]["message"] == "The message is empty."
    assert (await server.client.list_chats())["items"] == []
    assert (await server.client.list_chats(archived=True))["items"] == []


async def test_a_previous_response_that_is_gone_is_refused_in_openais_words(harness: AppHarness) -> None:
    """Agents look for this code, and send everything again."""
    server = await harness.start_server(ScriptedModel([say("One."), say("Two.")]))
    async with open_openai(server) as client:
        gone = (await client.responses.create(input="Hi")).id
        await client.responses.delete(gone)
        for name in (gone, "resp_1"):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.responses.create(input="And?", previous_response_id=name)
            error: Any = refused.value.body
            assert error["message"] == f"Previous response with id {name!r} not found."
            assert (error["type"], error["param"], error["code"]) == (
                "invalid_request_error",
                "previous_response_id",
                "previous_response_not_found",
            )


async def test_a_model_that_does_not_exist_is_not_found(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    messages: Any = [{"role": "user", "content": "Hi"}]
    async with open_openai(server) as client:
        for ask in (
            lambda: client.responses.create(input="Hi", model="gpt-none"),
            lambda: client.chat.completions.create(model="openai:gpt-none", messages=messages),
            lambda: client.models.retrieve("gpt-none"),
        ):
            with pytest.raises(openai.NotFoundError, match="gpt-none") as refused:
                await ask()
            assert (refused.value.code, refused.value.type) == ("model_not_found", "invalid_request_error")
    assert (await server.client.list_chats())["items"] == []


TOOL = {"name": "weather", "description": "", "input_schema": {"type": "object"}}


@pytest.mark.both_databases
async def test_a_function_with_the_name_of_a_tool_of_the_server_is_refused_by_name(harness: AppHarness) -> None:
    """On every way in. The server's would run in its place, and no client would see it."""
    server = await harness.start_server(ScriptedModel([say("Hello.")]), tools=[weather])
    function = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    messages = [{"role": "user", "content": "Hi"}]
    chat_id = (await server.client.create_chat())["id"]
    async with open_openai(server) as client:
        before = (await client.responses.create(input="Hi")).id
    completion = {"messages": messages, "tools": [{"type": "function", "function": function}]}
    asked: list[tuple[str, str, Any, dict[str, str]]] = [
        ("POST", "/chats", {"message": "Hi", "tools": [TOOL]}, {}),
        ("PATCH", f"/chats/{chat_id}", {"tools": [TOOL]}, {}),
        ("POST", "//v1/responses", {"input": "Hi", "tools": [function]}, {}),
        ("POST", "//v1/responses", {"input": "Hi", "tools": [function], "previous_response_id": before}, {}),
        ("POST", "//v1/chat/completions", completion, {}),
        ("POST", "//v1/chat/completions", completion, {"X-Indelible-Chat": chat_id}),
    ]
    for method, path, body, headers in asked:
        async with deadline(), server.request(method, path, json=body, headers=headers) as response:
            assert response.status in (400, 422), (method, path)
            assert "the server has a tool named 'weather'. Rename yours." in await response.text()
    assert len((await server.client.list_chats())["items"]) == 2


async def test_a_worker_with_a_tool_of_that_name_fails_the_turn_instead_of_replacing_it(harness: AppHarness) -> None:
    """The server that accepted it may not know the tools of the workers."""
    server = await harness.start_server(worker=False)
    await harness.start_worker(ScriptedModel(), tools=[weather])
    async with deadline():
        chat_id = (await server.client.create_chat("Hi", tools=[TOOL]))["id"]
        await harness.wait_until(await harness.app.chat(chat_id), lambda view: view.status == "error")
    error = (await server.client.get_chat(chat_id))["error"]
    assert error["kind"] == "config"
    assert "'weather'" in error["message"]


async def test_a_chats_own_declaration_of_a_client_tool_is_the_one_that_the_model_gets(harness: AppHarness) -> None:
    """The client runs it either way, and knows best what it takes."""
    model = ScriptedModel([say("Hello.")])
    spec = ToolSpec(name="weather", description="Of everybody.", input_schema={"type": "object"})
    server = await harness.start_server(model, client_tools=[spec])
    function: Any = {"type": "function", "name": "weather", "description": "Of mine.", "parameters": {}, "strict": None}
    async with open_openai(server) as client:
        await client.responses.create(input="Hi", tools=[function])
    assert [tool.description for tool in model.calls[0].tools] == ["Of mine."]


async def test_a_parameter_that_asks_for_nothing_is_accepted(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two."), say("Three."), say("Four.")]))
    off = {"n": 1, "logprobs": False, "top_logprobs": 0, "modalities": ["text"], "functions": [], "logit_bias": {}}
    messages: Any = [{"role": "user", "content": "Hi"}]
    async with open_openai(server) as client:
        for given in (off, dict.fromkeys([*off, "audio", "function_call", "web_search_options"])):
            made: Any = {"model": "scripted", "messages": messages, "extra_body": given}
            assert (await client.chat.completions.create(**made)).choices[0].message.content
        for given in (
            {"include": ["reasoning.encrypted_content"], "top_logprobs": 0},
            dict.fromkeys(["include", "prompt"]),
        ):
            asked: Any = {"model": "scripted", "input": "Hi", "extra_body": given}
            assert (await client.responses.create(**asked)).output_text


@pytest.mark.parametrize(
    "part",
    [
        b'{"type": "text", "text": "\xff"}',
        _FILE % b'"filename": 1',
        _FILE % b'"mediaType": []',
        b'{"type": "text", "text": "Hi"}, {"type": "text", "text": 1}',
        b'{"type": "text", "text": "Hi"}, {"type": "file", "mediaType": "image/png"}',
    ],
    ids=repr,
)
async def test_a_malformed_message_of_the_ai_sdk_is_refused_and_begins_no_chat(
    harness: AppHarness, part: bytes
) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    body = b'{"id": "rain", "messages": [{"id": "1", "role": "user", "parts": [%b]}]}' % part
    async with server.request("POST", "//ai-sdk/chat", data=body) as response:
        assert (await read_problem(response))["kind"] == "invalid"
    assert (await server.client.list_chats())["items"] == []


async def test_a_stream_for_which_no_feed_is_left_is_refused_before_its_turn_begins(harness: AppHarness) -> None:
    """A client repeats what was refused: it must not begin a turn each time."""
    server: RunningServer = await harness.start_server(worker=False, user_max_feeds=1)
    said = {"role": "user", "content": "Hi"}
    asked = [
        ("//v1/responses", {"input": "Hi", "stream": True}),
        ("//v1/chat/completions", {"messages": [said], "stream": True}),
        ("//ai-sdk/chat", {"id": "a", "messages": [{**said, "id": "1", "parts": [{"type": "text", "text": "Hi"}]}]}),
    ]
    async with server.request("GET", "/events") as feed:
        assert feed.status == 200
        for path, body in asked:
            async with server.request("POST", path, json=body) as response:
                assert response.status == 429, path
        assert (await server.client.list_chats())["items"] == []


async def test_a_wrong_key_is_an_authentication_error(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token="secret", client_token="secret")  # noqa: S106
    async with open_openai(server) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
        assert refused.value.code == "invalid_api_key"
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret") as client:
        assert (await client.models.list()).data


async def test_a_response_that_is_not_in_the_background_cannot_be_cancelled(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat("Hi")
    seq = (await harness.store.status(chat["id"])).seq
    async with open_openai(server) as client:
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            await client.responses.cancel(str(ResponseName(chat["id"], seq)))
    await server.client.interrupt(chat["id"])


async def test_no_wire_knows_of_a_chat_of_somebody_else(harness: AppHarness, database: str) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    async with indelible.open(database, user="ada", worker=False) as app:
        hers = await app.create_chat("Hello")
        before = await app.store.view(hers.id)
        response_id = str(ResponseName(hers.id, before.seq))
        names = {"response_id": response_id, "conversation_id": name_conversation(hers.id), "item_id": "msg_1"}
        posts: list[tuple[str, Any]] = [
            ("/v1/responses/input_tokens", {"input": "Hi", "conversation": names["conversation_id"]}),
            ("/v1/responses", {"input": "Hi", "conversation": names["conversation_id"]}),
            (
                "/ai-sdk/chat",
                {"id": hers.id, "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]},
            ),
        ]
        for method, path in ROUTES:
            if "_id}" in path and "model_id" not in path:
                async with server.request(method, "/" + path.format(**names), json={}) as response:
                    assert response.status == 404, (method, path)
        for path, body in posts:
            async with server.request("POST", "/" + path, json=body) as response:
                assert response.status == 404, (path, await response.text())
        chained = {"input": "Hi", "previous_response_id": response_id}
        for path in ("//v1/responses", "//v1/responses/input_tokens"):
            async with server.request("POST", path, json=chained) as response:
                assert response.status == 400
                assert (await response.json())["error"]["code"] == "previous_response_not_found"
        async with server.request("POST", f"//ai-sdk/chat/{hers.id}/stop") as response:
            assert response.status == 404
        async with server.request("GET", f"//ai-sdk/chat/{hers.id}/stream") as response:
            assert response.status == 204
        async with server.request("GET", f"//ai-sdk/chat/{hers.id}/messages") as response:
            assert await response.json() == []
        headers = {"X-Indelible-Chat": hers.id}
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        async with server.request("POST", "//v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 404
        assert await app.store.view(hers.id) == before
    assert (await server.client.list_chats())["items"] == []


def test_the_pages_of_the_wires_have_every_route() -> None:
    page = (DOCS / "openai.md").read_text() + (DOCS / "ai-sdk.md").read_text()
    shown = {tuple(route.split(" ")) for route in re.findall(r"`([A-Z]+ /(?:v1|ai-sdk)/[^`?]*)`", page)}
    assert shown == {(method, re.sub(r":path\}", "}", path)) for method, path in ROUTES}
