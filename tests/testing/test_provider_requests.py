"""A request is parsed back into a neutral call; one that a real provider would reject is rejected with its message.

Requests are made by the product's own adapters (so what they send can be parsed) and by hand.
"""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import msgspec
import pytest
from tests.testing.provider_scripts import HELLO, WIRES

from indelible.content import File, Reasoning, Text, ToolCall, ToolResult, ToolSpec
from indelible.models.catalog import make_wire_format
from indelible.models.profile import Profile
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.testing import ScriptedModel, SimulatedProvider, parts
from indelible.testing.provider import WireName
from indelible.testing.provider.exchange import DIALECTS

HEADERS: Final = {"anthropic-version": "2023-06-01"}
ASK: Final = [{"role": "user", "content": "Hello"}]
RIGHT: Final[dict[WireName, dict[str, Any]]] = {
    "anthropic": {"model": "m", "max_tokens": 9, "messages": ASK},
    "openai": {"model": "m", "input": "Hello"},
    "openai-chat": {"model": "m", "messages": ASK},
}


def make_message(role: Any, *blocks: Any, cache: bool = False) -> PromptMessage:
    return PromptMessage(role=role, blocks=list(blocks), cache=cache)


async def post(
    provider: SimulatedProvider, wire: WireName, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    async with (
        aiohttp.ClientSession() as session,
        session.post(provider.url + DIALECTS[wire].path, data=raw, headers={**HEADERS, **(headers or {})}) as answer,
    ):
        return answer.status, await answer.json(content_type=None)


# --- what a request says -----------------------------------------------------------------

HISTORY: Final = [
    make_message("system", Text("Be kind.")),
    make_message("user", Text("First.")),
    make_message("user", Text("Second."), File(media_type="image/png", data=b"\x89PNG")),
    make_message("assistant", Text("I look it up."), ToolCall("call_1", "weather", '{"city":"Oslo"}')),
    make_message("tool", ToolResult("call_1", "weather", "rain")),
    make_message("assistant", Text("It rains.")),
    make_message("user", Text("Thanks.")),
]
TOOL: Final = ToolSpec(
    name="weather",
    description="Look out of the window.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}},
)


@pytest.mark.parametrize("wire", WIRES)
async def test_what_an_adapter_writes_is_read_back_as_the_same_call(wire: WireName) -> None:
    call = Call(messages=HISTORY, tools=[TOOL], options=CallOptions(parameters={"max_tokens": 99}))
    written = make_wire_format(wire, official=False).write(call, "m", Profile())
    async with SimulatedProvider([HELLO]) as provider:
        status, _ = await post(provider, wire, {**written.body, "stream": False})
        (seen,) = provider.requests
    assert status == 200
    assert (seen.wire, seen.path) == (wire, DIALECTS[wire].path)
    assert seen.headers["anthropic-version"] == "2023-06-01"
    assert seen.body == msgspec.json.decode(seen.raw)
    assert seen.call is not None
    spoken = [msgspec.structs.replace(message, cache=False) for message in seen.call.messages]
    expected = HISTORY
    if wire == "openai-chat":  # neighbours of one role are one message there, and a list of parts
        assert [block for message in spoken for block in message.blocks if isinstance(block, File)]
        spoken, expected = spoken[-4:], expected[-4:]
    assert spoken == expected
    assert seen.call.tools == [TOOL]
    assert seen.call.parameters["max_tokens"] == 99


async def test_reasoning_and_cache_markers_of_anthropic_are_read_back() -> None:
    messages = [
        make_message("system", Text("Be kind."), cache=True),
        make_message("user", Text("Hello.")),
        make_message(
            "assistant",
            Reasoning(text="Hm.", signature="finalized"),
            Reasoning(metadata={"redacted_thinking": "dark"}),
            ToolCall(
                "own_1",
                "web_search",
                '{"query":"cats"}',
                provider_executed=True,
                metadata={"type": "server_tool_use"},
            ),
            ToolResult("own_1", "web_search", [], provider_executed=True, metadata={"type": "web_search_tool_result"}),
            Text("Well."),
            cache=True,
        ),
        make_message("user", Text("And?"), cache=True),
    ]
    written = make_wire_format("anthropic", official=False).write(Call(messages=messages), "m", Profile())
    async with SimulatedProvider([HELLO]) as provider:
        await post(provider, "anthropic", {**written.body, "stream": False})
        (seen,) = provider.requests
    assert seen.call is not None
    assert seen.call.messages == messages


async def test_the_model_is_asked_what_was_read() -> None:
    model = ScriptedModel([HELLO])
    async with SimulatedProvider(model) as provider:
        await post(provider, "openai", {**RIGHT["openai"], "instructions": "Be kind."})
        assert model.calls == [provider.requests[0].call]
    assert [(message.role, message.blocks) for message in model.calls[0].messages] == [
        ("system", [Text("Be kind.")]),
        ("user", [Text("Hello")]),
    ]


# --- stored responses --------------------------------------------------------------------


async def test_a_chained_request_reaches_the_model_with_its_history() -> None:
    model = ScriptedModel([HELLO, HELLO, HELLO])
    async with SimulatedProvider(model) as provider:
        _, first = await post(provider, "openai", {"model": "m", "input": "One", "instructions": "Be kind."})
        _, second = await post(
            provider,
            "openai",
            {"model": "m", "input": "Two", "previous_response_id": first["id"], "instructions": "Be odd."},
        )
        status, _ = await post(
            provider, "openai", {"model": "m", "input": "Three", "previous_response_id": second["id"]}
        )
    assert status == 200
    assert second["previous_response_id"] == first["id"]
    assert provider.requests[1].body == {
        "model": "m",
        "input": "Two",
        "previous_response_id": first["id"],
        "instructions": "Be odd.",
    }
    hello = Text("Hello wörld 𝄞")
    assert [(message.role, message.blocks[0]) for message in model.calls[1].messages] == [
        ("system", Text("Be odd.")),
        ("user", Text("One")),
        ("assistant", hello),
        ("user", Text("Two")),
    ]
    assert [message.blocks[0] for message in model.calls[2].messages] == [
        Text("One"),
        hello,
        Text("Two"),
        hello,
        Text("Three"),
    ]


async def test_a_result_may_answer_a_call_of_the_stored_response() -> None:
    calls = [parts.tool_call("call_1", "weather", "{}"), parts.finish("tool_calls")]
    async with SimulatedProvider([calls, HELLO]) as provider:
        _, first = await post(provider, "openai", {"model": "m", "input": "One"})
        answer = [{"type": "function_call_output", "call_id": "call_1", "output": "rain"}]
        status, _ = await post(provider, "openai", {"model": "m", "input": answer, "previous_response_id": first["id"]})
    assert status == 200


@pytest.mark.parametrize("how", ["unknown", "not stored", "forgotten", "truncated"])
async def test_a_response_that_is_not_there_is_a_broken_chain(how: str) -> None:
    script = HELLO[:-1] if how == "truncated" else HELLO
    model = ScriptedModel([script])
    async with SimulatedProvider(model) as provider:
        previous = "resp_of_nobody"
        if how != "unknown":
            _, first = await post(provider, "openai", {**RIGHT["openai"], "store": how != "not stored"})
            previous = first.get("id", "resp_000000000001")
        if how == "forgotten":
            provider.forget_responses()
        asked = len(model.calls)
        status, body = await post(provider, "openai", {**RIGHT["openai"], "previous_response_id": previous})
        assert len(model.calls) == asked
    assert status == 400
    assert body["error"]["code"] == "previous_response_not_found"
    assert body["error"]["message"] == f"Previous response with id '{previous}' not found."


# --- what is refused ---------------------------------------------------------------------


def use_tool(**more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "call_1", "name": "weather", "input": {}, **more}


REFUSED: Final[list[tuple[WireName, Any, str]]] = [
    ("anthropic", {"model": "m", "messages": ASK}, "max_tokens: Field required"),
    ("anthropic", {**RIGHT["anthropic"], "messages": []}, "at least one message is required"),
    ("anthropic", {**RIGHT["anthropic"], "messages": [{"role": "user", "content": []}]}, "non-empty content"),
    ("anthropic", {**RIGHT["anthropic"], "messages": [{"role": "user", "content": " "}]}, "non-whitespace text"),
    ("anthropic", {**RIGHT["anthropic"], "messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
    (
        "anthropic",
        {**RIGHT["anthropic"], "messages": [*ASK, {"role": "assistant", "content": [use_tool()]}, *ASK]},
        "`tool_use` ids were found without `tool_result` blocks immediately after: call_1",
    ),
    (
        "anthropic",
        {
            **RIGHT["anthropic"],
            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_9"}]}],
        },
        "unexpected `tool_use_id` found in `tool_result` blocks: call_9",
    ),
    (
        "anthropic",
        {**RIGHT["anthropic"], "messages": [*ASK, {"role": "assistant", "content": "So "}]},
        "cannot end with trailing whitespace",
    ),
    ("anthropic", {**RIGHT["anthropic"], "messages": [{"role": "user", "content": [{"type": "x"}]}]}, "Input tag 'x'"),
    ("openai", {"input": "Hello"}, "Missing required parameter: 'model'"),
    ("openai", {"model": "m", "input": [{"type": "x"}]}, "Invalid value: 'x'"),
    ("openai", {"model": "m", "input": [{"role": "user"}]}, "Missing required parameter: 'input[0].content'"),
    (
        "openai",
        {"model": "m", "input": [{"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}]},
        "No tool output found for function call call_1.",
    ),
    (
        "openai",
        {"model": "m", "input": [{"type": "function_call_output", "call_id": "call_9", "output": ""}]},
        "No tool call found for function call output with call_id call_9.",
    ),
    (
        "openai",
        {"model": "m", "input": [{"type": "reasoning", "id": "rs_1", "summary": []}, *ASK]},
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    ),
    ("openai-chat", {"model": "m"}, "Missing required parameter: 'messages'"),
    ("openai-chat", {"model": "m", "messages": []}, "empty array"),
    ("openai-chat", {"model": "m", "messages": [{"role": "king", "content": "x"}]}, "Invalid value: 'king'"),
    (
        "openai-chat",
        {
            "model": "m",
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"name": "f", "arguments": "{}"}}]},
                *ASK,
            ],
        },
        "did not have response messages: call_1",
    ),
    (
        "openai-chat",
        {"model": "m", "messages": [*ASK, {"role": "tool", "tool_call_id": "call_9", "content": "x"}]},
        "must be a response to a preceeding message with 'tool_calls'",
    ),
]


@pytest.mark.parametrize(("wire", "body", "words"), REFUSED)
async def test_a_wrong_request_is_refused_in_the_providers_words(wire: WireName, body: Any, words: str) -> None:
    model = ScriptedModel()
    async with SimulatedProvider(model) as provider:
        status, answer = await post(provider, wire, body)
        (seen,) = provider.requests
    assert status == 400
    assert words in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert (seen.body, seen.call) == (body, None)
    assert model.calls == []


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"model": 1, "messages": [1], "input": 1, "max_tokens": 1}']
)
async def test_garbage_is_refused_and_remembered_as_it_came(wire: WireName, body: bytes) -> None:
    async with SimulatedProvider([]) as provider:
        status, answer = await post(provider, wire, body)
        (seen,) = provider.requests
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert (seen.raw, seen.call) == (body, None)


@pytest.mark.parametrize("wire", WIRES)
async def test_only_the_required_key_is_taken(wire: WireName) -> None:
    async with SimulatedProvider([HELLO], require_key="secret") as provider:
        bare, no_key = await post(provider, wire, RIGHT[wire])
        wrong, bad_key = await post(
            provider, wire, RIGHT[wire], {"authorization": "Bearer sk-wrong", "x-api-key": "no"}
        )
        right, _ = await post(provider, wire, RIGHT[wire], {"authorization": "Bearer secret"})
    assert (bare, wrong, right) == (401, 401, 200)
    expected = "authentication_error" if wire == "anthropic" else "invalid_request_error"
    assert {no_key["error"]["type"], bad_key["error"]["type"]} == {expected}
    assert "secret" not in str(bad_key)


async def test_anthropic_gets_the_version_of_its_api() -> None:
    async with (
        SimulatedProvider([]) as provider,
        aiohttp.ClientSession() as session,
        session.post(provider.url + "/v1/messages", json=RIGHT["anthropic"]) as answer,
    ):
        assert answer.status == 400
        assert "anthropic-version" in await answer.text()


async def test_an_unknown_path_is_not_found_and_no_request() -> None:
    async with SimulatedProvider([]) as provider, aiohttp.ClientSession() as session:
        async with session.post(provider.url + "/v1/embeddings") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["message"] == "Invalid URL (POST /v1/embeddings)"
        assert provider.requests == []
