"""The official SDKs stream from the simulated provider without errors and read what the model sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.models.sdk_judges import make_event_judge
from tests.testing.provider_scripts import HELLO, PAGES, RICH, WIRES

from indelible.content import FinishReason
from indelible.models.http.sse import SseDecoder
from indelible.testing import ScriptedModel, SimulatedProvider, faults, parts, write_reply
from indelible.testing.model import Script
from indelible.testing.provider import WireName

if TYPE_CHECKING:
    import anthropic  # noqa: TC004  (the fixture `sdks` imports it)
    import openai.types.responses  # noqa: TC004  (as above)

SIGNS_OF_LIFE: Final = ("ping", "keepalive")
ASK: Final[Any] = [{"role": "user", "content": "Is it raining?"}]


@pytest.fixture(scope="module", autouse=True)
def sdks() -> None:
    """Imports the SDKs for the first test that runs, not for every process that collects this file."""
    globals().update(anthropic=import_module("anthropic"), openai=import_module("openai"))


@pytest.fixture
async def provider() -> AsyncIterator[SimulatedProvider]:
    async with SimulatedProvider([RICH]) as provider:
        yield provider


def open_anthropic(provider: SimulatedProvider) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=provider.base_url("anthropic"), api_key="key", max_retries=0)


def open_openai(provider: SimulatedProvider) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=provider.base_url("openai"), api_key="key", max_retries=0)


# --- Anthropic ---------------------------------------------------------------------------


def check_anthropic(message: anthropic.types.Message) -> None:
    whole = anthropic.types.Message.model_validate(message.to_dict()).to_dict()
    cited = {"type": "web_search_result_location", "url": "https://rain.test/", "title": "Rain"}
    assert whole["content"] == [
        {"type": "thinking", "thinking": "Let me think.", "signature": "finalized thought"},
        {
            "type": "text",
            "text": "It is raining.",
            "citations": [{**cited, "cited_text": "raining", "encrypted_index": "s"}],
        },
        {"type": "server_tool_use", "id": "own_1", "name": "web_search", "input": {"query": "cats"}},
        {"type": "web_search_tool_result", "tool_use_id": "own_1", "content": PAGES},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "call_2", "name": "clock", "input": {}},
    ]
    assert whole["usage"] == {
        "input_tokens": 30,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 10,
        "output_tokens": 50,
        "output_tokens_details": {"thinking_tokens": 20},
    }
    assert message.stop_reason == "tool_use"


async def test_anthropic_sdk_streams_a_whole_reply(provider: SimulatedProvider) -> None:
    async with (
        open_anthropic(provider) as client,
        client.messages.stream(model="claude-x", max_tokens=100, messages=ASK) as stream,
    ):
        said = [event.type async for event in stream]
        message = await stream.get_final_message()
    check_anthropic(message)
    assert message.model == "claude-x"
    assert {"text", "thinking", "signature", "citation", "input_json"} <= set(said)


async def test_anthropic_sdk_hears_raw_events_in_their_order(provider: SimulatedProvider) -> None:
    async with open_anthropic(provider) as client:
        stream = await client.messages.create(model="claude-x", max_tokens=100, messages=ASK, stream=True)
        types = [event.type async for event in stream]
    assert types[0] == "message_start"
    assert types[-2:] == ["message_delta", "message_stop"]
    assert types.count("content_block_start") == types.count("content_block_stop") == 6


async def test_anthropic_sdk_gets_the_whole_reply_at_once(provider: SimulatedProvider) -> None:
    async with open_anthropic(provider) as client:
        check_anthropic(await client.messages.create(model="claude-x", max_tokens=100, messages=ASK))


async def test_anthropic_sdk_gets_redacted_thinking_and_a_pause() -> None:
    script: list[Script] = [
        [
            parts.reasoning_start("r", metadata={"redacted_thinking": "finalized"}),
            parts.reasoning_end("r"),
            parts.reasoning_start("s"),
            parts.reasoning_end("s", metadata={"redacted_thinking": "finalized too"}),
            parts.finish(metadata={"stop_reason": "pause_turn"}),
        ]
    ]
    async with SimulatedProvider(script) as provider, open_anthropic(provider) as client:
        message = await client.messages.create(model="claude-x", max_tokens=100, messages=ASK)
    assert [(block.type, getattr(block, "data", None)) for block in message.content] == [
        ("redacted_thinking", "finalized"),
        ("redacted_thinking", "finalized too"),
    ]
    assert message.stop_reason == "pause_turn"


# --- OpenAI Responses --------------------------------------------------------------------


def check_response(response: openai.types.responses.Response) -> None:
    whole: dict[str, Any] = openai.types.responses.Response.model_validate(response.to_dict()).to_dict()
    reasoning, message, search, weather, clock = whole["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": "Let me think."}]
    assert reasoning["encrypted_content"] == "finalized thought"
    (said,) = message["content"]
    assert said["text"] == response.output_text == "It is raining."
    cited = {"type": "url_citation", "url": "https://rain.test/", "title": "Rain"}
    assert said["annotations"] == [{**cited, "start_index": 6, "end_index": 13}]
    found = [{"type": "url", "url": "https://c.test"}]
    assert search["action"] == {"type": "search", "query": "cats", "sources": found}
    assert (weather["type"], weather["call_id"], weather["name"]) == ("function_call", "call_1", "weather")
    assert (weather["arguments"], weather["status"]) == ('{"city":"Oslo"}', "completed")
    assert (clock["call_id"], clock["arguments"]) == ("call_2", "{}")
    assert whole["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 20},
        "total_tokens": 150,
    }
    assert response.status == "completed"


async def test_openai_sdk_streams_a_whole_response(provider: SimulatedProvider) -> None:
    numbers: list[int] = []
    said = thought = arguments = ""
    response = None
    async with open_openai(provider) as client:
        async for event in await client.responses.create(model="gpt-x", input="Is it raining?", stream=True):
            numbers.append(event.sequence_number)
            match event.type:
                case "response.output_text.delta":
                    said += event.delta
                case "response.reasoning_summary_text.delta":
                    thought += event.delta
                case "response.function_call_arguments.delta":
                    arguments += event.delta
                case "response.completed":
                    response = event.response
    assert (said, thought, arguments) == ("It is raining.", "Let me think.", '{"city":"Oslo"}{}')
    assert numbers == list(range(len(numbers)))
    assert response is not None
    check_response(response)
    assert response.model == "gpt-x"


async def test_openai_sdk_accumulates_a_response_by_itself(provider: SimulatedProvider) -> None:
    async with open_openai(provider) as client, client.responses.stream(model="gpt-x", input="Hello") as stream:
        async for _ in stream:
            pass
        check_response(await stream.get_final_response())


async def test_openai_sdk_gets_a_whole_response_at_once(provider: SimulatedProvider) -> None:
    async with open_openai(provider) as client:
        check_response(await client.responses.create(model="gpt-x", input="Is it raining?"))


async def test_openai_sdk_sees_the_provider_run_its_own_tools() -> None:
    script: list[Script] = [
        [
            parts.tool_call("ci_1", "code_interpreter", '{"code":"print(1)"}', provider_executed=True),
            parts.tool_result("ci_1", "code_interpreter", "1", provider_executed=True),
            parts.tool_call("fs_1", "file_search", '{"queries":["cats"]}', provider_executed=True),
            parts.tool_call("mcp_1", "lookup", '{"key":1}', provider_executed=True),
            parts.tool_result("mcp_1", "lookup", "no such key", provider_executed=True, is_error=True),
            parts.finish(),
        ]
    ]
    async with SimulatedProvider(script) as provider, open_openai(provider) as client:
        response = await client.responses.create(model="gpt-x", input="Compute.")
    whole: dict[str, Any] = openai.types.responses.Response.model_validate(response.to_dict()).to_dict()
    code, files, mcp = whole["output"]
    assert (code["type"], code["code"]) == ("code_interpreter_call", "print(1)")
    assert code["outputs"] == [{"type": "logs", "logs": "1"}]
    assert (files["type"], files["queries"], files["status"]) == ("file_search_call", ["cats"], "completed")
    assert (mcp["type"], mcp["name"], mcp["arguments"]) == ("mcp_call", "lookup", '{"key":1}')
    assert mcp["error"] == {"type": "mcp_tool_execution_error", "content": "no such key"}


# --- OpenAI Chat Completions -------------------------------------------------------------


async def test_openai_sdk_streams_a_whole_chat_completion(provider: SimulatedProvider) -> None:
    said = thought = ""
    calls: dict[int, list[str]] = {}
    reasons: list[str] = []
    usages: list[openai.types.CompletionUsage] = []
    async with open_openai(provider) as client:
        stream = await client.chat.completions.create(
            model="gpt-x", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            usages += [chunk.usage] if chunk.usage is not None else []
            for choice in chunk.choices:
                said += choice.delta.content or ""
                thought += getattr(choice.delta, "reasoning_content", "")
                reasons += [choice.finish_reason] if choice.finish_reason is not None else []
                for call in choice.delta.tool_calls or []:
                    assert call.function is not None
                    pieces = calls.setdefault(call.index, [call.id or "", call.function.name or "", ""])
                    pieces[2] += call.function.arguments or ""
    assert (said, thought) == ("It is raining.", "Let me think.")
    assert calls == {0: ["call_1", "weather", '{"city":"Oslo"}'], 1: ["call_2", "clock", "{}"]}
    assert reasons == ["tool_calls"]
    (usage,) = usages
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (100, 50, 150)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 60
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 20


async def test_usage_of_a_chat_stream_is_sent_only_on_request(provider: SimulatedProvider) -> None:
    async with open_openai(provider) as client:
        stream = await client.chat.completions.create(model="gpt-x", messages=ASK, stream=True)
        assert [chunk async for chunk in stream if chunk.usage is not None] == []


async def test_openai_sdk_gets_a_whole_chat_completion_at_once(provider: SimulatedProvider) -> None:
    async with open_openai(provider) as client:
        completion = await client.chat.completions.create(model="gpt-x", messages=ASK)
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("It is raining.", "tool_calls")
    assert choice.message.tool_calls is not None
    assert [call.id for call in choice.message.tool_calls] == ["call_1", "call_2"]
    assert choice.message.annotations is not None
    assert choice.message.annotations[0].url_citation.url == "https://rain.test/"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 150


# --- all ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
def test_every_event_is_one_of_the_sdks_own_types(wire: WireName) -> None:
    """The SDKs take what they get; their types, asked strictly, do not."""
    judge = make_event_judge(wire)
    judged = 0
    for event in SseDecoder().feed(b"".join(write_reply(wire, RICH))):
        if event.event in SIGNS_OF_LIFE or event.data == b"[DONE]":
            continue
        judge.validate_json(event.data)
        judged += 1
    assert judged > 10


@pytest.mark.parametrize(
    ("reason", "stop_reason", "status", "finish_reason"),
    [
        ("stop", "end_turn", "completed", "stop"),
        ("length", "max_tokens", "incomplete", "length"),
        ("content_filter", "refusal", "incomplete", "content_filter"),
    ],
)
async def test_every_finish_reason_has_its_word_on_every_wire(
    reason: FinishReason, stop_reason: str, status: str, finish_reason: str
) -> None:
    script = [parts.text_delta("t", "Hm."), parts.finish(reason)]
    async with SimulatedProvider([script] * 3) as provider:
        async with open_anthropic(provider) as client:
            message = await client.messages.create(model="claude-x", max_tokens=100, messages=ASK)
        async with open_openai(provider) as other:
            response = await other.responses.create(model="gpt-x", input="Hello")
            completion = await other.chat.completions.create(model="gpt-x", messages=ASK)
    assert (message.stop_reason, response.status) == (stop_reason, status)
    assert completion.choices[0].finish_reason == finish_reason


async def test_sync_clients_can_stream_too() -> None:
    def read_text(provider: SimulatedProvider) -> str:
        with openai.OpenAI(base_url=provider.base_url("openai"), api_key="key", max_retries=0) as client:
            events = client.responses.create(model="gpt-x", input="Hello", stream=True)
            return "".join(event.delta for event in events if event.type == "response.output_text.delta")

    async with SimulatedProvider([HELLO]) as provider:
        assert await asyncio.to_thread(read_text, provider) == "Hello wörld 𝄞"


async def test_sdks_raise_their_own_errors_for_a_status() -> None:
    model = ScriptedModel()
    async with SimulatedProvider(model) as provider:
        async with open_anthropic(provider) as client:
            provider.faults.append(faults.Status(529))
            with pytest.raises(anthropic.APIStatusError) as overloaded:
                await client.messages.create(model="claude-x", max_tokens=100, messages=ASK, stream=True)
            provider.faults.append(faults.Status(429, headers={"retry-after": "7"}))
            with pytest.raises(anthropic.RateLimitError) as limited:
                await client.messages.create(model="claude-x", max_tokens=100, messages=ASK, stream=True)
        async with open_openai(provider) as other:
            provider.faults.append(faults.Status(500))
            with pytest.raises(openai.InternalServerError):
                await other.responses.create(model="gpt-x", input="Hello", stream=True)
            provider.faults.append(faults.Status(401))
            with pytest.raises(openai.AuthenticationError) as refused:
                await other.chat.completions.create(model="gpt-x", messages=ASK, stream=True)
    assert overloaded.value.status_code == 529
    assert overloaded.value.type == "overloaded_error"
    assert limited.value.response.headers["retry-after"] == "7"
    assert refused.value.code == "invalid_api_key"
    assert model.calls == []


async def test_sdks_raise_their_own_errors_for_an_error_inside_the_stream() -> None:
    async with SimulatedProvider([HELLO] * 3, [faults.ErrorEvent(after_events=4)] * 3) as provider:
        async with open_anthropic(provider) as client:
            with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
                async for _ in await client.messages.create(
                    model="claude-x", max_tokens=100, messages=ASK, stream=True
                ):
                    pass
        async with open_openai(provider) as other:
            with pytest.raises(openai.APIError, match="had an error"):
                async for _ in await other.responses.create(model="gpt-x", input="Hello", stream=True):
                    pass
            with pytest.raises(openai.APIError, match="had an error"):
                async for _ in await other.chat.completions.create(model="gpt-x", messages=ASK, stream=True):
                    pass


async def test_sdks_list_the_model() -> None:
    async with SimulatedProvider(ScriptedModel(name="simulated-1")) as provider:
        async with open_anthropic(provider) as client:
            assert [model.id async for model in client.models.list()] == ["simulated-1"]
        async with open_openai(provider) as other:
            assert [model.id async for model in other.models.list()] == ["simulated-1"]
