"""Reading OpenAI Chat Completions: the official stream, each dialect as its server sends it, and hostile chunks."""

from __future__ import annotations

import contextlib
import json
from itertools import groupby
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.content import (
    Block,
    File,
    Finish,
    KeepAlive,
    Part,
    Reasoning,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    Text,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolSpec,
    Usage,
    decode_part,
    encode,
)
from indelible.content.assemble import PartAssembler
from indelible.errors import ModelFailed
from indelible.loop.normalize import MAX_CALLS, MAX_NAME_CHARACTERS
from indelible.models.http.http_model import ResponseReader, WireFormat
from indelible.models.http.sse import SseDecoder
from indelible.models.profile import Profile
from indelible.models.protocol import Call, PromptMessage
from indelible.models.providers.openai_chat.response import ChatReader, ChatWire

WEATHER = ToolSpec(name="get_weather", input_schema={"type": "object", "properties": {"city": {"type": "string"}}})
CALL = Call(messages=[PromptMessage(role="user", blocks=[Text("Hello")])], tools=[WEATHER])
OSLO = '{"city": "Oslo"}'
Json = dict[str, Any]


# --- streams -----------------------------------------------------------------------------


def open_reader(*, returns_reasoning: bool = False, call: Call = CALL) -> ChatReader:
    return ChatWire(official=False).open_reader(call, Profile(returns_reasoning=returns_reasoning))


def to_sse(*events: Json | str) -> bytes:
    """A stream of chunks. A text stands for itself: `[DONE]`, or a comment."""
    lines = (event if isinstance(event, str) else "data: " + json.dumps(event) for event in events)
    return "".join(f"{line}\n\n" for line in lines).encode()


DONE = "data: [DONE]"


def say(delta: Json | None = None, finish_reason: str | None = None, **others: Any) -> Json:
    """A chunk as OpenAI sends it; `others` are more fields of it."""
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion.chunk",
        "created": 1741569952,
        "model": "gpt-4.1-2025-04-14",
        "service_tier": "default",
        "system_fingerprint": "fp_b376dfbbd5",
        "choices": [choice],
        **others,
    }


def call_piece(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = "") -> Json:
    """A delta with one piece of one call; what is None is not there."""
    function = {"name": name, "arguments": arguments}
    piece = {"index": index, "id": id, "function": {key: value for key, value in function.items() if value is not None}}
    return {"tool_calls": [{key: value for key, value in piece.items() if value is not None}]}


def read_all(reader: ResponseReader, stream: bytes) -> list[Part]:
    return [part for event in SseDecoder().feed(stream) for part in reader.read(event)]


def read(*events: Json | str, returns_reasoning: bool = False) -> list[Part]:
    """The parts of a stream, with its finish, if it is complete, and without its signs of life."""
    reader = open_reader(returns_reasoning=returns_reasoning)
    parts: list[Part] = [part for part in read_all(reader, to_sse(*events)) if not isinstance(part, KeepAlive)]
    return [*parts, reader.finish()] if reader.complete else parts


def collect(*events: Json | str, returns_reasoning: bool = False) -> tuple[list[Block], Finish | None]:
    assembler = PartAssembler()
    for part in read(*events, returns_reasoning=returns_reasoning):
        assembler.add(part)
    return assembler.blocks(), assembler.finish


def read_calls(*deltas: Json) -> list[ToolCall]:
    blocks, finish = collect(*map(say, deltas), say(finish_reason="tool_calls"), DONE)
    assert finish is not None
    assert finish.reason == "tool_calls"
    return [block for block in blocks if isinstance(block, ToolCall)]


# --- OpenAI ------------------------------------------------------------------------------


def test_a_text_is_started_streamed_and_ended() -> None:
    usage = {
        "prompt_tokens": 19,
        "completion_tokens": 10,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0},
    }
    assert read(
        say({"role": "assistant", "content": "", "refusal": None}, usage=None),
        say({"content": "Hel"}, usage=None),
        say({"content": "lo"}, usage=None),
        say(finish_reason="stop", usage=None),
        say() | {"choices": [], "usage": usage},
        DONE,
    ) == [
        TextStart("text_0"),
        TextDelta("text_0", "Hel"),
        TextDelta("text_0", "lo"),
        TextEnd("text_0"),
        Finish(usage=Usage(input_tokens=19, output_tokens=10, reasoning_tokens=4, cache_read_tokens=8)),
    ]


def test_arguments_of_a_call_come_as_deltas_and_whole() -> None:
    assert read(
        say(call_piece(0, "call_DdmO9pD3xa9XTPNJ32zg2hcA", "get_weather") | {"role": "assistant", "content": None}),
        say(call_piece(0, arguments='{"city"')),
        say(call_piece(0, arguments=': "Oslo"}')),
        say(finish_reason="tool_calls"),
        DONE,
    ) == [
        ToolInputStart(id="call_DdmO9pD3xa9XTPNJ32zg2hcA", name="get_weather"),
        ToolInputDelta("call_DdmO9pD3xa9XTPNJ32zg2hcA", '{"city"'),
        ToolInputDelta("call_DdmO9pD3xa9XTPNJ32zg2hcA", ': "Oslo"}'),
        ToolInputEnd("call_DdmO9pD3xa9XTPNJ32zg2hcA"),
        ToolCall(id="call_DdmO9pD3xa9XTPNJ32zg2hcA", name="get_weather", arguments=OSLO),
        Finish(reason="tool_calls"),
    ]


def test_a_refusal_is_text_that_the_content_filter_ended() -> None:
    blocks, finish = collect(say({"refusal": "I can't "}), say({"refusal": "do that."}), say(finish_reason="stop"))
    assert blocks == [Text("I can't do that.")]
    assert finish == Finish(reason="content_filter")


def test_the_function_call_of_old_servers_is_a_call() -> None:
    blocks, finish = collect(
        say({"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": ""}}),
        say({"function_call": {"arguments": '{"city": '}}),
        say({"function_call": {"arguments": '"Oslo"}'}}),
        say(finish_reason="function_call"),
    )
    assert blocks == [ToolCall(id="call_0", name="get_weather", arguments=OSLO)]
    assert finish == Finish(reason="tool_calls")


def test_citations_are_sources() -> None:
    cited = {"url": "https://yr.no/oslo", "title": "Weather", "content": "Rain.", "start_index": 0, "end_index": 5}
    blocks, _ = collect(
        say({"content": "Rain [1]"}),
        say(
            {"annotations": [{"type": "url_citation", "url_citation": cited}, {"type": "file", "file": {"hash": "x"}}]}
        ),
        say(
            {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://met.no", "title": None}}]},
            "stop",
        ),
    )
    assert blocks == [
        Text("Rain [1]"),
        Source(id="source_1", url="https://yr.no/oslo", title="Weather", quote="Rain."),
        Source(id="source_2", url="https://met.no"),
    ]


@pytest.mark.parametrize(
    "chunk",
    [
        say({"role": "assistant", "content": ""}),
        say({"content": None, "tool_calls": [], "function_call": {"name": "", "arguments": ""}}),
        say({"audio": {"id": "audio_1", "data": "AAAA"}}),
        say() | {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
        say() | {"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]},
        say() | {"choices": None},
        {},
        "data: null",
        "data:",
        "event: ping\ndata: {}",
    ],
    ids=repr,
)
def test_a_chunk_that_says_nothing_is_a_sign_of_life(chunk: Json | str) -> None:
    assert read_all(open_reader(), to_sse(chunk)) == [KeepAlive()]


# --- blocks ------------------------------------------------------------------------------


def test_a_new_block_begins_whenever_the_kind_changes() -> None:
    assert read(
        say({"reasoning_content": "Hm"}),
        say({"reasoning_content": "m."}),
        say({"content": "One. "}),
        say({"reasoning_content": "And?"}),
        say({"content": "Two."}),
        say(call_piece(0, "a", "get_weather", OSLO)),
        say({"content": "Three."}),
        say(finish_reason="stop"),
    ) == [
        ReasoningStart("reasoning_0"),
        ReasoningDelta("reasoning_0", "Hm"),
        ReasoningDelta("reasoning_0", "m."),
        ReasoningEnd("reasoning_0"),
        TextStart("text_1"),
        TextDelta("text_1", "One. "),
        TextEnd("text_1"),
        ReasoningStart("reasoning_2"),
        ReasoningDelta("reasoning_2", "And?"),
        ReasoningEnd("reasoning_2"),
        TextStart("text_3"),
        TextDelta("text_3", "Two."),
        TextEnd("text_3"),
        ToolInputStart("a", "get_weather"),
        ToolInputDelta("a", OSLO),
        TextStart("text_4"),
        TextDelta("text_4", "Three."),
        TextEnd("text_4"),
        ToolInputEnd("a"),
        ToolCall(id="a", name="get_weather", arguments=OSLO),
        Finish(reason="tool_calls"),
    ]


@given(st.lists(st.tuples(st.sampled_from(["content", "reasoning", "reasoning_content"]), st.text(max_size=3))))
def test_whatever_comes_in_whatever_order_nothing_is_lost(said: list[tuple[str, str]]) -> None:
    blocks, _ = collect(*(say({field: text}) for field, text in said), say(finish_reason="stop"))
    spoken = [(field == "content", text) for field, text in said if text]
    runs = [(is_text, "".join(text for _, text in run)) for is_text, run in groupby(spoken, key=lambda pair: pair[0])]
    assert blocks == [Text(text) if is_text else Reasoning(text) for is_text, text in runs]


def test_content_and_the_finish_reason_in_one_chunk_both_count() -> None:
    blocks, finish = collect(say({"content": "Hello"}), say({"content": " there"}, "length"))
    assert blocks == [Text("Hello there")]
    assert finish == Finish(reason="length")


def test_reasoning_that_is_sent_under_two_names_is_read_once() -> None:
    details = [{"type": "reasoning.text", "text": "Hm."}]
    delta = {"reasoning_content": "Hm.", "reasoning": "Hm.", "reasoning_details": details, "content": ""}
    assert collect(say(delta), say(finish_reason="stop"))[0] == [Reasoning("Hm.")]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_that_its_model_wants_back_names_its_field(field: str) -> None:
    stream = say({field: "Hm."}), say(call_piece(0, "a", "get_weather", "{}")), say(finish_reason="tool_calls")
    assert collect(*stream, returns_reasoning=True)[0][0] == Reasoning("Hm.", metadata={"field": field})
    assert collect(*stream, returns_reasoning=False)[0][0] == Reasoning("Hm.")


def test_reasoning_that_has_no_field_to_go_back_to_stays_unsigned() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    blocks, _ = collect(say({"content": [thinking]}), say({"content": "Hi"}, "stop"), returns_reasoning=True)
    assert blocks == [Reasoning("Hm."), Text("Hi")]


def test_half_a_surrogate_pair_is_handed_on() -> None:
    halves = (r"\uD83D", r"\ude00")
    assert read(*(f'data: {{"choices": [{{"delta": {{"content": "{half}"}}}}]}}' for half in halves)) == [
        TextStart("text_0"),
        TextDelta("text_0", "\ud83d"),
        TextDelta("text_0", "\ude00"),
    ]


def test_an_image_that_can_not_be_read_is_left_out() -> None:
    urls: list[Any] = ["data:image/png;base64,iVBO!", "data:image/png;base64,", "data:", "", None, 5]
    images = [*({"image_url": {"url": url}} for url in urls), {"image_url": "x"}, {}, None, 5]
    assert collect(say({"content": "Hi", "images": images}, "stop"))[0] == [Text("Hi")]


# --- dialects ----------------------------------------------------------------------------

PNG = b"\x89PNG\r\n\x1a\n"

DIALECTS: dict[str, tuple[list[Json | str], list[Block], Finish]] = {
    "vllm": (
        [
            say({"role": "assistant", "content": ""}),
            say({"reasoning_content": "The user"}),
            say({"reasoning_content": " greets.", "content": None}),
            say({"content": "\n\nHello"}, usage={"prompt_tokens": 11, "total_tokens": 14, "completion_tokens": 3}),
            say({"content": "!"}, "stop") | {"choices": [
                {"index": 0, "delta": {"content": "!"}, "finish_reason": "stop", "stop_reason": None, "token_ids": None}
            ]},
            say() | {"choices": [], "usage": {"prompt_tokens": 11, "total_tokens": 21, "completion_tokens": 10,
                                              "prompt_tokens_details": None}},
            DONE,
        ],
        [Reasoning("The user greets."), Text("\n\nHello!")],
        Finish(usage=Usage(input_tokens=11, output_tokens=10)),
    ),
    "vllm with a new id in every piece": (
        [
            say(call_piece(0, "chatcmpl-tool-1f2e", "get_weather", None)),
            say(call_piece(0, "chatcmpl-tool-3d4c", arguments='{"city": "Os')),
            say(call_piece(0, "chatcmpl-tool-5b6a", arguments='lo"}')),
            say(call_piece(0, "chatcmpl-tool-7f8e", arguments="")),
            say({"content": ""}, "tool_calls"),
            DONE,
        ],
        [ToolCall(id="chatcmpl-tool-1f2e", name="get_weather", arguments=OSLO)],
        Finish(reason="tool_calls"),
    ),
    "ollama": (
        [
            {"id": "chatcmpl-287", "object": "chat.completion.chunk", "created": 1747, "model": "qwen3",
             "system_fingerprint": "fp_ollama", "choices": [
                {"index": 0, "finish_reason": None,
                 "delta": {"role": "assistant", "content": "", "reasoning": "Okay."}}]},
            say({"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_9xk2", "index": 0, "type": "function",
                 "function": {"name": "get_weather", "arguments": OSLO}}]}),
            say({"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_p3vd", "index": 0, "type": "function",
                 "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}]}),
            say({"role": "assistant", "content": ""}, "stop"),
            say() | {"choices": [], "usage": {"prompt_tokens": 169, "completion_tokens": 23, "total_tokens": 192}},
            DONE,
        ],
        [
            Reasoning("Okay."),
            ToolCall(id="call_9xk2", name="get_weather", arguments=OSLO),
            ToolCall(id="call_p3vd", name="get_weather", arguments='{"city":"Rome"}'),
        ],
        Finish(reason="tool_calls", usage=Usage(input_tokens=169, output_tokens=23)),
    ),
    "ollama, and sglang, with an empty finish reason in every chunk": (
        [
            say({"role": "assistant", "content": " Hello"}, ""),
            say({"role": "assistant", "content": " there"}, ""),
            say({"role": "assistant", "content": ""}, "stop"),
            DONE,
        ],
        [Text(" Hello there")],
        Finish(),
    ),
    "openrouter": (
        [
            ": OPENROUTER PROCESSING",
            ": OPENROUTER PROCESSING",
            say({"role": "assistant", "content": "", "reasoning": "I should", "reasoning_details": [
                {"type": "reasoning.text", "text": "I should", "format": "anthropic-claude-v1", "index": 0}]},
                provider="Anthropic"),
            say({"role": "assistant", "content": "", "reasoning": " look.", "reasoning_details": [
                {"type": "reasoning.text", "text": " look.", "format": "anthropic-claude-v1", "index": 0}]}),
            say({"role": "assistant", "content": "", "reasoning_details": [
                {"type": "reasoning.text", "signature": "ErUB", "format": "anthropic-claude-v1", "index": 0}]}),
            say({"role": "assistant", "content": "Let me see."}),
            say({"role": "assistant", "content": None, "tool_calls": [
                {"index": 0, "id": "toolu_01", "type": "function",
                 "function": {"name": "get_weather", "arguments": ""}}]}),
            say({"tool_calls": [{"index": 0, "function": {"arguments": OSLO}, "type": "function"}]}),
            say({"role": "assistant", "content": ""}, "tool_calls"),
            say({"role": "assistant", "content": ""}, usage={
                "prompt_tokens": 590, "completion_tokens": 81, "total_tokens": 671, "cost": 0.0029, "is_byok": False,
                "prompt_tokens_details": {"cached_tokens": 512, "cache_write_tokens": 64, "audio_tokens": 0},
                "cost_details": {"upstream_inference_cost": None},
                "completion_tokens_details": {"reasoning_tokens": 12}}),
            DONE,
        ],
        [
            Reasoning("I should look."),
            Text("Let me see."),
            ToolCall(id="toolu_01", name="get_weather", arguments=OSLO, metadata={"reasoning_details": [
                {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "signature": "ErUB",
                 "text": "I should look."}]}),
        ],
        Finish(reason="tool_calls", usage=Usage(
            input_tokens=590, output_tokens=81, reasoning_tokens=12, cache_read_tokens=512, cache_write_tokens=64)),
    ),
    "openrouter with gemini, whose signature comes after the call": (
        [
            say({"content": "", "reasoning_details": [
                {"type": "reasoning.summary", "summary": "**Looking**", "index": 0}]}),
            say(call_piece(0, "tool_0_get_weather", "get_weather", OSLO)),
            say({"content": "", "reasoning_details": [
                {"type": "reasoning.encrypted", "data": "CiQB", "id": "tool_0_get_weather", "index": 0}]},
                "tool_calls"),
            DONE,
        ],
        [
            Reasoning("**Looking**"),
            ToolCall(id="tool_0_get_weather", name="get_weather", arguments=OSLO, metadata={"reasoning_details": [
                {"type": "reasoning.summary", "index": 0, "summary": "**Looking**"},
                {"type": "reasoning.encrypted", "data": "CiQB", "id": "tool_0_get_weather", "index": 0}]}),
        ],
        Finish(reason="tool_calls"),
    ),
    "openrouter with an image model": (
        [
            say({"role": "assistant", "content": "Here: "}),
            say({"content": "", "images": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}, "index": 0},
                {"type": "image_url", "image_url": {"url": "https://img.example/cat.png"}}]}),
            say(finish_reason="stop"),
            DONE,
        ],
        [Text("Here: "), File("image/png", data=PNG), File("image/png", url="https://img.example/cat.png")],
        Finish(),
    ),
    "groq": (
        [
            say({"role": "assistant", "content": ""}, x_groq={"id": "req_01jx"}),
            say({"reasoning": "Short.", "channel": "analysis"}),
            say({"content": "Hello"}),
            say(finish_reason="stop", x_groq={"id": "req_01jx", "usage": {
                "queue_time": 0.05, "prompt_tokens": 72, "prompt_time": 0.003, "completion_tokens": 15,
                "completion_time": 0.03, "total_tokens": 87, "total_time": 0.034,
                "completion_tokens_details": {"reasoning_tokens": 5}}}),
            DONE,
        ],
        [Reasoning("Short."), Text("Hello")],
        Finish(usage=Usage(input_tokens=72, output_tokens=15, reasoning_tokens=5)),
    ),
    "deepseek": (
        [
            say({"role": "assistant", "content": None, "reasoning_content": ""}),
            say({"content": None, "reasoning_content": "9.11 or 9.8?"}),
            say({"content": "9.8", "reasoning_content": None}),
            say({"content": "", "reasoning_content": None}, "stop", usage={
                "prompt_tokens": 16, "completion_tokens": 40, "total_tokens": 56,
                "prompt_cache_hit_tokens": 12, "prompt_cache_miss_tokens": 4,
                "completion_tokens_details": {"reasoning_tokens": 30}}),
            DONE,
        ],
        [Reasoning("9.11 or 9.8?"), Text("9.8")],
        Finish(usage=Usage(input_tokens=16, output_tokens=40, reasoning_tokens=30, cache_read_tokens=12)),
    ),
    "mistral": (
        [
            say({"role": "assistant", "content": ""}),
            say({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Let me"}]}]}),
            say({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " think."}], "closed": True}]}),
            say({"content": [{"type": "text", "text": "It "}, {"type": "reference", "reference_ids": [1]}]}),
            say({"content": "rains."}),
            say({"content": "", "tool_calls": [
                {"id": "D681PevKs", "function": {"name": "get_weather", "arguments": OSLO}, "index": 0}]},
                "tool_calls", usage={"prompt_tokens": 94, "total_tokens": 118, "completion_tokens": 24}),
            DONE,
        ],
        [
            Reasoning("Let me think."),
            Text("It rains."),
            ToolCall(id="D681PevKs", name="get_weather", arguments=OSLO),
        ],
        Finish(reason="tool_calls", usage=Usage(input_tokens=94, output_tokens=24)),
    ),
    "together": (
        [
            say({"token_id": 9906, "role": "assistant", "content": "Hello", "tool_calls": None}) | {"usage": None},
            say({"token_id": 128009, "role": "assistant", "content": "", "tool_calls": None}, "eos", usage={
                "prompt_tokens": 37, "completion_tokens": 2, "total_tokens": 39, "cached_tokens": 3}),
            DONE,
        ],
        [Text("Hello")],
        Finish(usage=Usage(input_tokens=37, output_tokens=2, cache_read_tokens=3), metadata={"finish_reason": "eos"}),
    ),
    "lm studio": (
        [
            say({"role": "assistant", "reasoning_content": "Hm."}),
            say({"role": "assistant", "content": "Hi"}),
            say(call_piece(0, "365174485", "get_weather") | {"role": "assistant"}),
            say(call_piece(0, arguments='{"')),
            say(call_piece(0, arguments='city": "Oslo"}')),
            say({}, "tool_calls"),
            say() | {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}},
            DONE,
        ],
        [Reasoning("Hm."), Text("Hi"), ToolCall(id="365174485", name="get_weather", arguments=OSLO)],
        Finish(reason="tool_calls", usage=Usage(input_tokens=5, output_tokens=7)),
    ),
    "llama.cpp": (
        [
            say({"role": "assistant", "content": None}),
            say({"content": "Hello"}),
            say({}, "length"),
            say() | {"choices": [], "usage": {"completion_tokens": 1, "prompt_tokens": 14, "total_tokens": 15},
                     "timings": {"prompt_n": 14, "prompt_ms": 82.1, "predicted_n": 1}},
            DONE,
        ],
        [Text("Hello")],
        Finish(reason="length", usage=Usage(input_tokens=14, output_tokens=1)),
    ),
    "gemini": (
        [
            say({"role": "assistant", "tool_calls": [
                {"extra_content": {"google": {"thought_signature": "EpIC"}},
                 "type": "function", "id": "function-call-1", "function": {"arguments": OSLO, "name": "get_weather"}},
                {"type": "function", "id": "function-call-2",
                 "function": {"arguments": "{}", "name": "get_weather"}}]},
                usage={"prompt_tokens": 20, "completion_tokens": 30, "total_tokens": 150}),
            say({"role": "assistant"}, "stop",
                usage={"prompt_tokens": 20, "completion_tokens": 30, "total_tokens": 150}),
            DONE,
        ],
        [
            ToolCall(id="function-call-1", name="get_weather", arguments=OSLO,
                     metadata={"extra_content": {"google": {"thought_signature": "EpIC"}}}),
            ToolCall(id="function-call-2", name="get_weather", arguments="{}"),
        ],
        Finish(reason="tool_calls", usage=Usage(input_tokens=20, output_tokens=130, reasoning_tokens=100)),
    ),
    "azure": (
        [
            {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": [
                {"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}]},
            say({"content": "", "role": "assistant"}),
            say({"content": "Hello"}),
            say() | {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 44},
                                  "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}]},
            say({}, "content_filter"),
            DONE,
        ],
        [Text("Hello")],
        Finish(reason="content_filter"),
    ),
    "moonshot, which counts inside the choice, and sends no [DONE]": (
        [
            say({"content": "Hello"}),
            say() | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": {
                "prompt_tokens": 19, "completion_tokens": 13, "total_tokens": 32, "cached_tokens": 9}}]},
        ],
        [Text("Hello")],
        Finish(usage=Usage(input_tokens=19, output_tokens=13, cache_read_tokens=9)),
    ),
    "a server that sends the whole message at once": (
        [
            {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
                "role": "assistant", "reasoning_content": "Hm.", "content": "Wait.", "tool_calls": [
                    {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}},
                    {"type": "function", "function": {"name": "get_weather", "arguments": {}}}]}}]},
        ],
        [
            Reasoning("Hm."),
            Text("Wait."),
            ToolCall(id="call_0", name="get_weather", arguments='{"city":"Oslo"}'),
            ToolCall(id="call_1", name="get_weather", arguments="{}"),
        ],
        Finish(reason="tool_calls"),
    ),
    "a server that sends the whole message after its pieces": (
        [
            say({"content": "Hello"}),
            say() | {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]},
        ],
        [Text("Hello")],
        Finish(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_is_understood(dialect: str) -> None:
    stream, blocks, finish = DIALECTS[dialect]
    assert collect(*stream) == (blocks, finish)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_that_is_cut_at_any_byte_is_complete_only_after_its_finish_reason(dialect: str) -> None:
    stream, _, finish = DIALECTS[dialect]
    at_end = next(at for at, event in enumerate(stream) if isinstance(event, dict) and _get_finish_reason(event))
    promised = len(to_sse(*stream[: at_end + 1]))
    for cut in range(len(whole := to_sse(*stream))):
        reader = open_reader()
        read_all(reader, whole[:cut])
        assert reader.complete == (cut >= promised)
        if reader.complete:
            assert reader.finish().reason == finish.reason


def _get_finish_reason(chunk: Json) -> str | None:
    return next((choice["finish_reason"] for choice in chunk["choices"] or [] if choice["finish_reason"]), None)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_ids_are_unique_within_a_reply(dialect: str) -> None:
    starts = (TextStart, ReasoningStart, ToolInputStart, Source)
    ids = [part.id for part in read(*DIALECTS[dialect][0]) if isinstance(part, starts)]
    assert len(ids) == len(set(ids))


def test_details_are_kept_only_where_there_are_tools_that_could_be_called() -> None:
    stream = to_sse(*DIALECTS["openrouter"][0])
    parts = read_all(open_reader(call=Call(messages=CALL.messages)), stream)
    assert [part.metadata for part in parts if isinstance(part, ToolCall)] == [None]


# --- calls in pieces ---------------------------------------------------------------------


def test_parallel_calls_are_distinguished_by_their_index() -> None:
    assert read_calls(
        call_piece(0, "a", "get_weather", '{"city": '),
        call_piece(0, arguments='"Oslo"}'),
        call_piece(1, "b", "get_time"),
        call_piece(1, arguments="{}"),
    ) == [ToolCall(id="a", name="get_weather", arguments=OSLO), ToolCall(id="b", name="get_time", arguments="{}")]


def test_a_whole_call_is_ended_when_the_next_begins() -> None:
    parts = read(say(call_piece(0, "a", "get_weather", OSLO)), say(call_piece(1, "b", "get_time")))
    assert parts[2:] == [
        ToolInputEnd("a"),
        ToolCall(id="a", name="get_weather", arguments=OSLO),
        ToolInputStart("b", "get_time"),
    ]


def test_calls_whose_pieces_alternate_are_both_read_to_their_end() -> None:
    assert read_calls(
        call_piece(0, "a", "get_weather", '{"city": '),
        call_piece(1, "b", "get_weather", '{"city": '),
        call_piece(0, arguments='"Oslo"}'),
        call_piece(1, arguments='"Rome"}'),
    ) == [
        ToolCall(id="a", name="get_weather", arguments=OSLO),
        ToolCall(id="b", name="get_weather", arguments='{"city": "Rome"}'),
    ]


@pytest.mark.parametrize("index", [0, None])
def test_a_new_id_with_a_name_is_a_new_call_even_under_the_same_index(index: int | None) -> None:
    assert read_calls(
        call_piece(index, "a", "get_weather"),
        call_piece(index, "", arguments=OSLO),
        call_piece(index, "b", "get_weather"),
        call_piece(index, "", arguments="{}"),
    ) == [ToolCall(id="a", name="get_weather", arguments=OSLO), ToolCall(id="b", name="get_weather", arguments="{}")]


@pytest.mark.parametrize("index", [0, None])
def test_whole_calls_without_ids_are_several_calls(index: int | None) -> None:
    assert read_calls(
        call_piece(index, "", "get_weather", OSLO),
        call_piece(index, "", "get_weather", OSLO),
        call_piece(index, None, "get_time", "{}"),
    ) == [
        ToolCall(id="call_0", name="get_weather", arguments=OSLO),
        ToolCall(id="call_1", name="get_weather", arguments=OSLO),
        ToolCall(id="call_2", name="get_time", arguments="{}"),
    ]


def test_without_an_index_pieces_are_distinguished_by_their_id() -> None:
    assert read_calls(
        call_piece(None, "a", "get_weather", '{"city": '),
        call_piece(None, "b", "get_time", "{"),
        call_piece(None, "a", arguments='"Oslo"}'),
        call_piece(None, "b", arguments="}"),
    ) == [ToolCall(id="a", name="get_weather", arguments=OSLO), ToolCall(id="b", name="get_time", arguments="{}")]


def test_without_index_and_id_a_piece_belongs_to_the_last_call() -> None:
    assert read_calls(
        call_piece(None, "a", "get_time", "{}"),
        call_piece(None, "b", "get_weather"),
        call_piece(None, None, arguments='{"city": '),
        call_piece(None, None, arguments='"Oslo"}'),
    ) == [ToolCall(id="a", name="get_time", arguments="{}"), ToolCall(id="b", name="get_weather", arguments=OSLO)]


def test_missing_ids_are_made_up_and_never_one_that_is_taken() -> None:
    calls = read_calls(
        call_piece(0, "call_1", "get_time", "{}"),
        call_piece(1, None, "get_time", "{}"),
        call_piece(2, "call_1", "get_time", "{}"),
    )
    assert [call.id for call in calls] == ["call_1", "call_2", "call_3"]


@pytest.mark.parametrize(("length", "is_own"), [(200, True), (201, False), (16 * 1024, False), (16 * 1024 + 1, True)])
def test_a_long_id_is_kept_beside_the_call_and_one_without_end_is_refused_by_the_loop(
    length: int, is_own: bool
) -> None:
    given = "x" * length
    (call,) = read_calls(call_piece(0, given, "get_time"), call_piece(0, given, None, "{}"))
    assert (call.id, call.metadata) == ((given, None) if is_own else ("call_0", {"given_id": given}))


@pytest.mark.parametrize(
    "names",
    [
        ["get_weather", None, None],
        ["get_", "weather", None],
        ["get_weather", "get_weather", "get_weather"],
        ["get_", "get_weather", None],
        ["get_weather", "", ""],
    ],
    ids=str,
)
def test_a_name_may_come_whole_in_pieces_or_again_and_again(names: list[str | None]) -> None:
    first, second, third = names
    assert read_calls(
        call_piece(0, "a", first), call_piece(0, None, second, '{"city": '), call_piece(0, None, third, '"Oslo"}')
    ) == [ToolCall(id="a", name="get_weather", arguments=OSLO)]


def test_arguments_wait_for_a_late_name() -> None:
    assert read(say(call_piece(0, "a", None, '{"city": ')), say(call_piece(0, None, "get_weather", '"Oslo"}'))) == [
        ToolInputStart("a", "get_weather"),
        ToolInputDelta("a", '{"city": '),
        ToolInputDelta("a", '"Oslo"}'),
    ]


def test_a_call_that_is_never_named_is_still_reported() -> None:
    assert read(say(call_piece(0, "a", None, OSLO)), say(finish_reason="tool_calls")) == [
        ToolInputStart("a", ""),
        ToolInputDelta("a", OSLO),
        ToolInputEnd("a"),
        ToolCall(id="a", name="", arguments=OSLO),
        Finish(reason="tool_calls"),
    ]


def test_arguments_do_not_wait_for_a_name_until_they_fill_the_memory() -> None:
    pieces = [say(call_piece(0, "a", None, "x" * 1000)) for _ in range(100)]
    told = "".join(part.delta for part in read(*pieces) if isinstance(part, ToolInputDelta))
    assert told == "x" * 100_000
    (call,) = read_calls(*[call_piece(0, "a", None, "x" * 1000)] * 100, call_piece(0, None, "get_time"))
    assert (call.name, call.arguments) == ("get_time", "x" * 100_000)


@pytest.mark.parametrize("name", ["get_time", None])
def test_of_endlessly_many_calls_there_are_only_more_than_the_loop_takes(name: str | None) -> None:
    pieces = [piece for at in range(10_000) for piece in call_piece(at, f"c{at}", name, "{")["tool_calls"]]
    told = read(say({"tool_calls": pieces}), say(finish_reason="tool_calls"))
    assert len([part for part in told if isinstance(part, ToolInputStart)]) == MAX_CALLS + 1


def test_a_name_does_not_grow_without_end() -> None:
    (call,) = read_calls(*[call_piece(0, "a", "get_" * 25)] * 2, *[call_piece(0, None, "x" * 100)] * 1000)
    assert MAX_NAME_CHARACTERS < len(call.name) <= 2000


@pytest.mark.parametrize("arguments", ["", None, "  ", {}])
def test_a_call_without_arguments_has_an_empty_object_of_them(arguments: Any) -> None:
    assert read_calls(call_piece(0, "a", "get_time", arguments)) == [ToolCall(id="a", name="get_time", arguments="{}")]


def test_a_call_that_is_sent_again_whole_is_read_once() -> None:
    assert read_calls(
        call_piece(0, "a", "get_weather", '{"city": '),
        call_piece(0, None, None, '"Oslo"}'),
        call_piece(0, "a", "get_weather", OSLO),
    ) == [ToolCall(id="a", name="get_weather", arguments=OSLO)]


@pytest.mark.parametrize(
    "arguments",
    ['{"a":' * 5000 + "}" * 5000, '{"a": "\ud83d"}', '{"a": }', "}", "[{}"],
    ids=["deep", "half a surrogate pair", "no value", "no beginning", "no end"],
)
def test_arguments_that_are_no_object_are_ended_at_the_end(arguments: str) -> None:
    calls = read_calls(call_piece(0, "a", "get_weather", arguments), call_piece(1, "b", "get_time", "{}"))
    assert [call.arguments for call in calls] == [arguments, "{}"]


def test_an_object_of_arguments_is_written_as_text_even_with_half_a_surrogate_pair() -> None:
    assert read_calls(call_piece(0, "a", "f", {"a": "\ud83d"})) == [
        ToolCall(id="a", name="f", arguments='{"a":"\ufffd"}')
    ]


def test_what_comes_for_a_call_that_has_ended_is_dropped() -> None:
    begun = [say(call_piece(0, "a", "get_weather", OSLO)), say(call_piece(1, "b", "get_time"))]
    assert read(*begun, say(call_piece(0, arguments=" "))) == read(*begun)


def test_an_id_that_comes_late_tells_the_next_call_apart() -> None:
    assert read_calls(
        call_piece(0, None, "get_weather"),
        call_piece(0, "a", arguments='{"city": '),
        call_piece(0, "b", "get_time", "{}"),
    ) == [
        ToolCall(id="call_0", name="get_weather", arguments='{"city": '),
        ToolCall(id="b", name="get_time", arguments="{}"),
    ]


def test_pieces_of_calls_that_say_nothing_begin_none() -> None:
    empty = {"tool_calls": [{"index": 0, "function": {}}], "function_call": {"name": "", "arguments": ""}}
    assert collect(say({"content": "Hi"} | empty), say(finish_reason="stop")) == ([Text("Hi")], Finish())


def test_details_go_with_the_last_call_only() -> None:
    details = [{"type": "reasoning.encrypted", "data": "CiQB"}]
    calls = read_calls({"reasoning_details": details}, call_piece(0, "a", "get_time"), call_piece(1, "b", "get_time"))
    assert [call.metadata for call in calls] == [None, {"reasoning_details": details}]


def test_a_call_that_the_length_limit_cut_is_not_ended() -> None:
    parts = read(
        say(call_piece(0, "a", "get_weather", OSLO)),
        say(call_piece(1, "b", "get_weather", '{"city": "O')),
        say(finish_reason="length"),
    )
    assert parts[-3:] == [
        ToolInputStart("b", "get_weather"),
        ToolInputDelta("b", '{"city": "O'),
        Finish(reason="length"),
    ]


@given(st.lists(st.tuples(st.text('ab{}"é ', max_size=3), st.integers(0, 2)), max_size=30))
def test_however_arguments_are_cut_no_character_is_lost(pieces: list[tuple[str, int]]) -> None:
    begun = [say(call_piece(index, f"call-{index}", "f", "[")) for index in range(3)]
    stream = [say(call_piece(index, arguments=text)) for text, index in pieces]
    blocks, _ = collect(*begun, *stream, say(finish_reason="tool_calls"))
    said = ["[" + "".join(text for text, at in pieces if at == index) for index in range(3)]
    assert [block.arguments for block in blocks if isinstance(block, ToolCall)] == said


# --- the end -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish_reason", "reason"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("end_turn", "stop"),
        ("tool_calls", "stop"),
        ("COMPLETE", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("content_filter", "content_filter"),
        ("content_filter: PROHIBITED_CONTENT", "content_filter"),
        ("sensitive", "content_filter"),
    ],
)
def test_finish_reasons_of_all_dialects_are_known(finish_reason: str, reason: str) -> None:
    _, finish = collect(say({"content": "Hi"}, finish_reason))
    assert finish is not None
    assert finish.reason == reason


@pytest.mark.parametrize("finish_reason", [None, "", "null"])
def test_done_without_a_finish_reason_is_no_end(finish_reason: str | None) -> None:
    reader = open_reader()
    read_all(reader, to_sse(say({"content": "Hi"}, finish_reason), DONE))
    assert (reader.complete, reader.over) == (False, True)


def test_after_the_end_only_usage_counts() -> None:
    reader: ResponseReader = open_reader()
    read_all(reader, to_sse(say({"content": "Hi"}, "stop")))
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    rest = to_sse(
        say({"content": "more"}, "length"),
        {"error": {"message": "too late", "code": 500}},
        "event: error\ndata: too late",
        "data: {",
        b"data: \xff".decode("latin-1"),
        "data: " + '{"a":' * 100_000,
        say() | {"choices": [], "usage": usage},
    )
    assert (read_all(reader, rest), reader.over) == ([], False)
    assert (read_all(reader, to_sse(DONE)), reader.over) == ([], True)
    assert reader.finish() == Finish(usage=Usage(input_tokens=1, output_tokens=2))
    assert reader.resume() is None


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        "many",
        [1],
        {"prompt_tokens": None, "completion_tokens": "three", "total_tokens": -5},
        {"prompt_tokens": 10**30, "prompt_tokens_details": "none", "completion_tokens_details": []},
    ],
    ids=str,
)
def test_usage_that_is_none_is_not_read(usage: Any) -> None:
    _, finish = collect(say({"content": "Hi"}, "stop", usage=usage))
    assert finish is not None
    assert (finish.usage or Usage()) == Usage()


def test_of_a_running_usage_the_last_counts() -> None:
    counts = [{"prompt_tokens": 5, "completion_tokens": n, "total_tokens": 5 + n} for n in (0, 1, 2)]
    _, finish = collect(
        *(say({"content": "x"}, usage=usage) for usage in counts), say(finish_reason="stop", usage=None)
    )
    assert finish == Finish(usage=Usage(input_tokens=5, output_tokens=2))


def test_reasoning_that_a_server_counts_apart_is_output() -> None:
    details = {"reasoning_tokens": 300}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 315, "completion_tokens_details": details}
    _, finish = collect(say({"content": "Hi"}, "stop", usage=usage))
    assert finish == Finish(usage=Usage(input_tokens=10, output_tokens=305, reasoning_tokens=300))


# --- errors inside a stream --------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        # OpenAI
        (
            {"error": {"message": "The server had an error", "type": "server_error", "param": None, "code": None}},
            "server_error",
        ),
        # OpenRouter
        (
            say({"content": ""}, "error") | {"error": {"code": 502, "message": "Provider disconnected"}},
            "timeout",
        ),
        (
            {"error": {"code": 429, "message": "Provider returned error", "metadata": {"raw": "rate-limited"}}},
            "rate_limit",
        ),
        (
            say() | {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {
                "code": "rate_limit_exceeded", "message": "Slow down"}}]},
            "rate_limit",
        ),
        # vLLM, before and after its errors were wrapped
        (
            {"object": "error", "message": "internal", "type": "InternalServerError", "param": None, "code": 500},
            "server_error",
        ),
        (
            {"error": {"message": "Its maximum context length is 4096.", "type": "BadRequestError", "code": 400}},
            "context_overflow",
        ),
        # Groq
        ({"x_groq": {"id": "req_1", "error": "over capacity"}, "choices": []}, "overloaded"),
        # Ollama, LM Studio
        ({"error": "model runner has unexpectedly stopped: internal server error"}, "server_error"),
        (
            'event: error\ndata: {"error": {"message": "Context length exceeded", "type": "invalid_request_error"}}',
            "context_overflow",
        ),
        ("event: error\ndata: overloaded", "overloaded"),
        # Azure
        (
            {"error": {"code": "content_filter", "message": "The response was filtered", "status": 400}},
            "content_filter",
        ),
        # finish reasons that are failures
        (say(finish_reason="error"), "server_error"),
        (say(finish_reason="abort"), "server_error"),
        (say(finish_reason="network_error"), "server_error"),
        (say(finish_reason="function_call_filter: MALFORMED_FUNCTION_CALL"), "server_error"),
        (say(finish_reason="insufficient_system_resource"), "overloaded"),
    ],
    ids=str,
)  # fmt: skip
def test_an_error_inside_a_stream_is_a_failure_of_its_kind(error: Json | str, kind: str) -> None:
    reader = open_reader()
    read_all(reader, to_sse(say({"content": "Hel"})))
    with pytest.raises(ModelFailed) as failed:
        read_all(reader, to_sse(error))
    assert failed.value.kind == kind
    assert failed.value.provider == "openai-chat"
    assert not reader.complete


@pytest.mark.parametrize("error", [None, "", {}, False])
def test_an_empty_error_is_none(error: Any) -> None:
    assert collect(say({"content": "Hi"}, "stop", error=error))[0] == [Text("Hi")]


@pytest.mark.parametrize(
    "data", ["{", "hello", "[1]", '{"choices": 1}', '{"choices": [{"delta": {"content": 5}}]}', '{"a":' * 100_000]
)
def test_what_is_no_chunk_is_a_decoding_error(data: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_all(open_reader(), f"data: {data}\n\n".encode())


# --- hostile chunks ----------------------------------------------------------------------

KEYS = ["type", "text", "thinking", "url", "url_citation", "image_url", "index", "id", "summary", "message", "code"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=6,
)
FUNCTIONS = st.fixed_dictionaries(
    {}, optional={"name": JSON | st.just("f"), "arguments": JSON | st.sampled_from(["{", "}"])}
)
PIECES = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(0, 2) | JSON,
        "id": st.sampled_from(["a", "b", ""]) | JSON,
        "function": FUNCTIONS | JSON,
        "extra_content": JSON,
    },
)
DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.text(max_size=5) | st.lists(JSON, max_size=3) | JSON,
        "reasoning_content": st.text(max_size=5) | JSON,
        "reasoning": JSON,
        "reasoning_details": st.lists(JSON, max_size=3) | JSON,
        "refusal": JSON,
        "tool_calls": st.lists(PIECES, max_size=3) | JSON,
        "function_call": FUNCTIONS | JSON,
        "annotations": st.lists(JSON, max_size=3) | JSON,
        "images": st.lists(JSON, max_size=3) | JSON,
    },
)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "delta": DELTAS | JSON,
        "message": DELTAS | JSON,
        "finish_reason": st.sampled_from(["stop", "length", "", "error"]) | JSON,
        "usage": JSON,
        "error": JSON,
    },
)
CHUNKS = JSON | st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICES, max_size=2) | JSON,
        "usage": st.dictionaries(st.sampled_from(["prompt_tokens", "total_tokens", "prompt_tokens_details"]), JSON)
        | JSON,
        "error": JSON,
        "object": JSON,
        "x_groq": st.dictionaries(st.sampled_from(["usage", "error"]), JSON) | JSON,
    },
)


@given(st.lists(CHUNKS, max_size=8), st.booleans())
def test_hostile_chunks_give_parts_that_have_a_json_form_or_a_failure(chunks: list[Any], returned: bool) -> None:
    reader = open_reader(returns_reasoning=returned)
    assembler = PartAssembler()
    for chunk in chunks:
        was_complete = reader.complete
        try:
            parts = read_all(reader, b"data: " + json.dumps(chunk).encode() + b"\n\n")
        except (ModelFailed, msgspec.MsgspecError, UnicodeDecodeError):
            assert not was_complete
            continue
        assert not (was_complete and parts)
        for part in parts:
            assert decode_part(encode(part)) == part or _holds_surrogates(part)
            assembler.add(part)
    assembler.blocks()
    if reader.complete:
        assembler.add(reader.finish())


def _holds_surrogates(part: Part) -> bool:
    try:
        msgspec.json.encode(part)
    except UnicodeEncodeError:
        return True
    return False


@given(st.binary(max_size=40), st.sampled_from(["message", "error", "ping"]))
def test_arbitrary_bytes_give_nothing_but_failures_and_decoding_errors(data: bytes, event: str) -> None:
    line = data.replace(b"\n", b"").replace(b"\r", b"")
    reader = open_reader()
    with contextlib.suppress(ModelFailed, msgspec.MsgspecError, UnicodeDecodeError):
        read_all(reader, b"event: " + event.encode() + b"\ndata: " + line + b"\n\n")
    assert not reader.complete


@pytest.mark.parametrize("depth", [10, 400, 900, 990, 1000, 5000])
def test_deeply_nested_arguments_give_a_call_or_a_decoding_error(depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    chunk = json.dumps(say(call_piece(0, None, "f", "HERE"))).replace('"HERE"', nested)
    reader = open_reader()
    try:
        parts = read_all(reader, f"data: {chunk}\n\n".encode())
    except msgspec.MsgspecError:
        assert depth > 500
        return
    assert parts[-1] == ToolInputDelta("call_0", nested)


# --- the wire ----------------------------------------------------------------------------


def test_the_key_is_a_bearer_token_and_the_path_that_of_chat_completions() -> None:
    wire: WireFormat = ChatWire(official=True)
    assert wire.name == "openai-chat"
    assert wire.authorise("sk-1") == {"authorization": "Bearer sk-1"}
    written = wire.write(CALL, "gpt-4.1", Profile())
    assert (written.path, written.body["model"], written.headers) == ("/chat/completions", "gpt-4.1", {})
