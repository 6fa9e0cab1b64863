"""Reading Anthropic Messages: every kind of event, every stop reason, pauses, and arbitrary events.

Streams are written as Anthropic sends them. What goes back to Anthropic is in test_anthropic_request.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples

from indelible.content import (
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
    ToolResult,
    ToolSpec,
    Usage,
    UsageUpdate,
    decode_part,
    encode,
)
from indelible.content.assemble import PartAssembler, assemble
from indelible.errors import ModelFailed
from indelible.models.http.sse import SseDecoder, SseEvent
from indelible.models.profile import Profile
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.models.providers.anthropic.request import PausedCall, write_call
from indelible.models.providers.anthropic.response import MAX_RESUMES, AnthropicReader, AnthropicWire

EXAMPLES = settings(max_examples=count_examples(30))

Json = dict[str, Any]

CALL = Call(messages=[PromptMessage(role="user", blocks=[Text("Hello")])])
WEB_SEARCH = ToolSpec(
    name="web_search", provider_executed=True, options={"type": "web_search_20250305", "name": "web_search"}
)
SEARCHING = Call(
    messages=CALL.messages, tools=[WEB_SEARCH], options=CallOptions(parameters={"temperature": 0.5}, store=True)
)

# --- streams, as they come ---------------------------------------------------------------

RECORDED = b"""\
event: message_start
data: {"type":"message_start","message":{"model":"claude-sonnet-4-5-20250929","id":"msg_01XFDUDYJgAACzvnptvVoYEL",\
"type":"message","role":"assistant","content":[],"stop_reason":null,"stop_sequence":null,\
"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,\
"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0},"output_tokens":1,\
"service_tier":"standard"}}    }

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}              }

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}  }

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"! \xf0\x9f\x8c\x8d"}      }

event: content_block_stop
data: {"type":"content_block_stop","index":0 }

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}  }

event: message_stop
data: {"type":"message_stop"    }

"""


def event(name: str, **data: Any) -> SseEvent:
    return SseEvent(name, msgspec.json.encode({"type": name, **data}), None)


def start(**usage: Any) -> SseEvent:
    return event("message_start", message={"id": "msg_01", "usage": {"input_tokens": 7, "output_tokens": 1, **usage}})


def open_block(index: int, type_: str, **content: Any) -> SseEvent:
    return event("content_block_start", index=index, content_block={"type": type_, **content})


def delta(index: int, type_: str, **content: Any) -> SseEvent:
    return event("content_block_delta", index=index, delta={"type": type_, **content})


def close_block(index: int) -> SseEvent:
    return event("content_block_stop", index=index)


def end(reason: str | None = "end_turn", *, usage: Json | None = None, **change: Any) -> list[SseEvent]:
    counted = {"output_tokens": 9} if usage is None else usage
    return [event("message_delta", delta={"stop_reason": reason, **change}, usage=counted), event("message_stop")]


def text_block(index: int, text: str) -> list[SseEvent]:
    return [open_block(index, "text", text=""), delta(index, "text_delta", text=text), close_block(index)]


SEARCH_BLOCKS = [
    open_block(0, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
    delta(0, "input_json_delta", partial_json=""),
    delta(0, "input_json_delta", partial_json='{"query": '),
    delta(0, "input_json_delta", partial_json='"weather"}'),
    close_block(0),
    open_block(
        1,
        "web_search_tool_result",
        tool_use_id="srvtoolu_1",
        content=[{"type": "web_search_result", "title": "W", "url": "https://w.test", "encrypted_content": "E=="}],
    ),
    close_block(1),
]


def read(
    events: Iterable[SseEvent], *, call: Call = CALL, reader: AnthropicReader | None = None
) -> tuple[AnthropicReader, list[Part]]:
    """The parts of these events, without signs of life and running counts."""
    reader = reader or AnthropicWire().open_reader(call, Profile())
    parts = [part for each in events for part in reader.read(each)]
    return reader, [part for part in parts if not isinstance(part, KeepAlive | UsageUpdate)]


def read_blocks(*events: SseEvent) -> Sequence[object]:
    return assemble(read([start(), *events, *end()])[1])


# --- text --------------------------------------------------------------------------------


def test_a_recorded_reply_is_shown_part_by_part() -> None:
    events = SseDecoder().feed(RECORDED)
    reader = AnthropicWire().open_reader(CALL, Profile())
    assert [list(reader.read(each)) for each in events] == [
        [UsageUpdate(Usage(input_tokens=25, output_tokens=1))],
        [TextStart("0")],
        [KeepAlive()],
        [TextDelta("0", "Hello")],
        [TextDelta("0", "! 🌍")],
        [TextEnd("0")],
        [KeepAlive()],
        [KeepAlive()],
    ]
    assert reader.complete
    assert reader.over
    assert reader.resume() is None
    assert reader.finish() == Finish(reason="stop", usage=Usage(input_tokens=25, output_tokens=15))


def test_a_reply_is_complete_after_its_very_last_event_and_not_before() -> None:
    events = SseDecoder().feed(RECORDED)
    reader = AnthropicWire().open_reader(CALL, Profile())
    complete = []
    for each in events:
        reader.read(each)
        complete.append((reader.complete, reader.over))
    assert complete == [*[(False, False)] * (len(events) - 1), (True, True)]


@pytest.mark.parametrize("reason", [None, "", 7, ["end_turn"]])
def test_a_stop_without_a_reason_is_no_end(reason: Any) -> None:
    reader, parts = read([start(), open_block(0, "tool_use", id="t", name="add", input={}), *end(reason)])
    assert not reader.complete
    assert parts == [ToolInputStart("t", "add")]


def test_events_without_a_name_are_known_by_their_data() -> None:
    named = SseDecoder().feed(RECORDED)
    unnamed = [SseEvent("message", each.data, None) for each in named]
    assert read(unnamed)[1] == read(named)[1]
    assert read(unnamed)[0].finish() == read(named)[0].finish()


def test_text_that_the_block_is_opened_with_is_kept() -> None:
    assert read_blocks(open_block(0, "text", text="He"), delta(0, "text_delta", text="y"), close_block(0)) == [
        Text("Hey")
    ]


def test_halves_of_a_character_are_handed_on_and_go_back_joined() -> None:
    halves = [
        SseEvent("content_block_delta", b'{"index": 0, "delta": {"text": "%s"}}' % half, None)
        for half in (b"\\ud83c", b"\\uDF0D")
    ]
    whole = SseEvent("content_block_start", b'{"content_block": {"type": "tool_use", "input": {"a": "\\ud83c"}}}', None)
    reader, parts = read([start(), *halves, whole, *end("pause_turn")], call=SEARCHING)
    assert [part.delta for part in parts if isinstance(part, TextDelta)] == ["\ud83c", "\udf0d"]
    asked = reader.resume()
    assert asked is not None
    assert asked.messages[-1].blocks == [Text("🌍"), ToolCall("call_1", "", '{"a":"\ufffd"}')]


def test_event_that_is_broken_beside_half_a_character_is_refused() -> None:
    for broken in (b'{"delta": {"text": "\\ud83c"', b'{"delta": {"text": "\\ud83c"}, "index": ' + b"9" * 5000 + b"}"):
        with pytest.raises(msgspec.DecodeError):
            read([SseEvent("content_block_delta", broken, None)])


def test_delta_of_a_block_that_nobody_opened_opens_it() -> None:
    _, parts = read([start(), delta(4, "text_delta", text="Hel"), delta(4, "text_delta", text="lo"), *end()])
    assert parts == [TextStart("0"), TextDelta("0", "Hel"), TextDelta("0", "lo"), TextEnd("0")]
    assert read_blocks(delta(0, "thinking_delta", thinking="hm"), close_block(0)) == [Reasoning("hm")]
    assert read_blocks(delta(0, "input_json_delta", partial_json="{")) == []


def test_blocks_that_were_not_closed_are_closed_by_the_end() -> None:
    _, parts = read([start(), open_block(0, "tool_use", id="t", name="add", input={}), *end("tool_use")])
    assert parts[-2:] == [ToolInputEnd("t"), ToolCall(id="t", name="add", arguments="{}")]


def test_block_that_is_opened_in_the_place_of_another_closes_it() -> None:
    _, parts = read([start(), open_block(0, "text", text="a"), *text_block(0, "b"), *end()])
    assert assemble(parts) == [Text("a"), Text("b")]
    assert parts.count(TextEnd("0")) == 1


# --- thinking ----------------------------------------------------------------------------


def test_thinking_comes_in_deltas_and_its_signature_at_the_end() -> None:
    _, parts = read(
        [
            start(),
            open_block(0, "thinking", thinking="", signature=""),
            delta(0, "thinking_delta", thinking="Let me "),
            delta(0, "thinking_delta", thinking="see"),
            delta(0, "signature_delta", signature="EqQBCg=="),
            close_block(0),
            *text_block(1, "27"),
            *end(),
        ]
    )
    assert parts == [
        ReasoningStart("0"),
        ReasoningDelta("0", "Let me "),
        ReasoningDelta("0", "see"),
        ReasoningEnd("0", signature="EqQBCg=="),
        TextStart("1"),
        TextDelta("1", "27"),
        TextEnd("1"),
    ]


def test_thinking_that_is_not_shown_keeps_its_signature() -> None:
    blocks = read_blocks(
        open_block(0, "thinking", thinking="", signature=""), delta(0, "signature_delta", signature="S"), close_block(0)
    )
    assert blocks == [Reasoning(signature="S")]


def test_thinking_that_comes_whole_is_kept() -> None:
    assert read_blocks(open_block(0, "thinking", thinking="hm", signature="S"), close_block(0)) == [
        Reasoning("hm", signature="S")
    ]


def test_redacted_thinking_is_reasoning_that_only_its_metadata_tells() -> None:
    _, parts = read([start(), open_block(0, "redacted_thinking", data="EmwK"), close_block(0), *end()])
    assert parts == [ReasoningStart("0", metadata={"redacted_thinking": "EmwK"}), ReasoningEnd("0")]


# --- calls -------------------------------------------------------------------------------


def test_call_arrives_in_deltas_and_whole() -> None:
    _, parts = read(
        [
            start(),
            open_block(0, "tool_use", id="toolu_1", name="get_weather", input={}, caller={"type": "direct"}),
            delta(0, "input_json_delta", partial_json=""),
            delta(0, "input_json_delta", partial_json='{"location":'),
            delta(0, "input_json_delta", partial_json=' "Bern"}'),
            close_block(0),
            *end("tool_use"),
        ]
    )
    assert parts == [
        ToolInputStart(id="toolu_1", name="get_weather"),
        ToolInputDelta("toolu_1", '{"location":'),
        ToolInputDelta("toolu_1", ' "Bern"}'),
        ToolInputEnd("toolu_1"),
        ToolCall(
            id="toolu_1",
            name="get_weather",
            arguments='{"location": "Bern"}',
            metadata={"caller": {"type": "direct"}},
        ),
    ]


@pytest.mark.parametrize(
    ("given_input", "pieces", "arguments"),
    [
        ({}, [], "{}"),
        (None, [""], "{}"),
        ({"a": 1}, [], '{"a":1}'),
        ({}, ['{"a', '": "b'], '{"a": "b'),
    ],
    ids=["nothing", "empty", "whole", "broken"],
)
def test_arguments_are_raw_and_never_empty(given_input: object, pieces: list[str], arguments: str) -> None:
    blocks = read_blocks(
        open_block(0, "tool_use", id="t", name="add", input=given_input),
        *(delta(0, "input_json_delta", partial_json=piece) for piece in pieces),
        close_block(0),
    )
    assert blocks == [ToolCall(id="t", name="add", arguments=arguments)]


def test_two_calls_may_grow_side_by_side() -> None:
    blocks = read_blocks(
        open_block(0, "tool_use", id="a", name="add", input={}),
        open_block(1, "tool_use", id="b", name="add", input={}),
        delta(1, "input_json_delta", partial_json='{"b":1}'),
        delta(0, "input_json_delta", partial_json='{"a":1}'),
        close_block(1),
        close_block(0),
    )
    assert blocks == [ToolCall("a", "add", '{"a":1}'), ToolCall("b", "add", '{"b":1}')]


def test_call_without_an_id_gets_one_of_its_own() -> None:
    blocks = read_blocks(open_block(0, "tool_use", name="add"), close_block(0), open_block(1, "tool_use", name="add"))
    assert blocks == [ToolCall("call_0", "add", "{}"), ToolCall("call_1", "add", "{}")]


# --- the provider's own tools ------------------------------------------------------------


def test_the_providers_own_call_and_result_come_in_order() -> None:
    _, parts = read([start(), *SEARCH_BLOCKS, *text_block(2, "Sunny."), *end()])
    assert parts[0] == ToolInputStart("srvtoolu_1", "web_search", provider_executed=True)
    assert assemble(parts) == [
        ToolCall(
            id="srvtoolu_1",
            name="web_search",
            arguments='{"query": "weather"}',
            provider_executed=True,
            metadata={"type": "server_tool_use"},
        ),
        ToolResult(
            call_id="srvtoolu_1",
            name="web_search",
            output=[{"type": "web_search_result", "title": "W", "url": "https://w.test", "encrypted_content": "E=="}],
            provider_executed=True,
            metadata={"type": "web_search_tool_result"},
        ),
        Text("Sunny."),
    ]


@pytest.mark.parametrize(
    ("result", "is_error"),
    [
        ({"content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}}, True),
        ({"content": {"type": "code_execution_result", "stdout": "", "stderr": "", "return_code": 1}}, False),
        ({"content": "it broke", "is_error": True}, True),
        ({"content": [{"type": "text", "text": "fine"}], "is_error": False}, False),
        ({"content": None}, False),
    ],
    ids=["error object", "exit code", "mcp error", "mcp", "nothing"],
)
def test_result_of_any_tool_tells_whether_it_is_an_error(result: Json, is_error: bool) -> None:
    blocks = read_blocks(open_block(0, "brand_new_tool_result", tool_use_id="s", caller=None, **result), close_block(0))
    (block,) = blocks
    assert isinstance(block, ToolResult)
    assert (block.name, block.call_id, block.provider_executed) == ("brand_new", "s", True)
    assert (block.is_error, block.output) == (is_error, result["content"])


def test_mcp_call_keeps_the_name_of_its_server() -> None:
    blocks = read_blocks(
        open_block(0, "mcp_tool_use", id="mcptoolu_1", name="echo", server_name="shell", input={"x": 1}),
        close_block(0),
        open_block(1, "mcp_tool_result", tool_use_id="mcptoolu_1", is_error=False, content="x"),
        close_block(1),
    )
    assert blocks == [
        ToolCall(
            id="mcptoolu_1",
            name="echo",
            arguments='{"x":1}',
            provider_executed=True,
            metadata={"type": "mcp_tool_use", "server_name": "shell"},
        ),
        ToolResult(
            call_id="mcptoolu_1",
            name="echo",
            output="x",
            provider_executed=True,
            metadata={"type": "mcp_tool_result", "is_error": False},
        ),
    ]


def test_file_in_the_providers_container_is_named_but_is_none_of_ours() -> None:
    upload = {"type": "container_upload", "file_id": "file_011"}
    assert read_blocks(open_block(0, "container_upload", file_id="file_011"), close_block(0)) == [
        File(media_type="application/octet-stream", name="file_011", metadata=upload)
    ]


# --- citations ---------------------------------------------------------------------------

WEB_CITATION = {
    "type": "web_search_result_location",
    "url": "https://w.test",
    "title": "Weather",
    "encrypted_index": "Eo8B",
    "cited_text": "It is sunny…",
}
PAGE_CITATION = {
    "type": "page_location",
    "cited_text": "Water is wet.",
    "document_index": 0,
    "document_title": "Facts",
    "file_id": None,
    "start_page_number": 5,
    "end_page_number": 6,
}


def test_citation_is_a_source_at_once_and_goes_back_with_its_text() -> None:
    _, parts = read(
        [
            start(),
            open_block(0, "text", text="", citations=[]),
            delta(0, "citations_delta", citation=WEB_CITATION),
            delta(0, "text_delta", text="Sunny."),
            delta(0, "citations_delta", citation=PAGE_CITATION),
            close_block(0),
            *end(),
        ]
    )
    assert parts == [
        TextStart("0"),
        Source(
            id="1",
            url="https://w.test",
            title="Weather",
            quote="It is sunny…",
            metadata={"type": "web_search_result_location"},
        ),
        TextDelta("0", "Sunny."),
        Source(
            id="2",
            title="Facts",
            quote="Water is wet.",
            metadata={"type": "page_location", "document_index": 0, "start_page_number": 5, "end_page_number": 6},
        ),
        TextEnd("0", metadata={"citations": [WEB_CITATION, PAGE_CITATION]}),
    ]


def test_citations_that_the_block_is_opened_with_are_kept() -> None:
    blocks = read_blocks(open_block(0, "text", text="Sunny.", citations=[WEB_CITATION, "?"]), close_block(0))
    assert blocks[0] == Text("Sunny.", metadata={"citations": [WEB_CITATION]})
    assert [type(block) for block in blocks] == [Text, Source]


# --- what is not known, and what fails ---------------------------------------------------


@pytest.mark.parametrize(
    "unknown",
    [
        event("brand_new_event", anything=[1]),
        SseEvent("brand_new_event", b"not even JSON", None),
        SseEvent("ping", b"", None),
        SseEvent("message", b'{"type": "brand_new_event"}', None),
        SseEvent("message", b"{}", None),
        open_block(0, "brand_new_block", text="?"),
        open_block(0, "redacted_thinking"),
        open_block(0, "web_search_tool_result", content=[]),
        delta(0, "brand_new_delta", anything=1),
        event("content_block_delta", index=0, delta=None),
        event("content_block_start", index=[], content_block=7),
        event("content_block_stop"),
        event("message_start", message=None),
        SseEvent("message_delta", b"[]", None),
    ],
    ids=lambda unknown: f"{unknown.event} {unknown.data.decode()[:60]}",
)
def test_what_is_not_known_is_a_sign_of_life(unknown: SseEvent) -> None:
    reader = AnthropicReader(CALL)
    assert list(reader.read(unknown)) == [KeepAlive()]
    assert assemble(read([*text_block(1, "x"), *end()], reader=reader)[1]) == [Text("x")]


def test_what_comes_in_a_block_that_is_not_known_is_a_sign_of_life() -> None:
    reader = AnthropicReader(CALL)
    events = [open_block(0, "compaction"), delta(0, "compaction_delta", content="…"), close_block(0)]
    assert [list(reader.read(each)) for each in events] == [[KeepAlive()]] * 3


@pytest.mark.parametrize(
    ("error_type", "kind"),
    [
        ("overloaded_error", "overloaded"),
        ("api_error", "server_error"),
        ("rate_limit_error", "rate_limit"),
        ("authentication_error", "auth"),
        ("invalid_request_error", "config"),
    ],
)
@pytest.mark.parametrize("name", ["error", "message"])
def test_error_inside_the_stream_is_a_failure_of_its_kind(name: str, error_type: str, kind: str) -> None:
    error = {"type": "error", "error": {"type": error_type, "message": "…"}, "request_id": "req_1"}
    with pytest.raises(ModelFailed) as failed:
        read([start(), *text_block(0, "x"), SseEvent(name, msgspec.json.encode(error), None)])
    assert (failed.value.kind, failed.value.provider) == (kind, "anthropic")


def test_error_that_a_proxy_sends_bare_is_a_failure_too() -> None:
    with pytest.raises(ModelFailed) as failed:
        read([SseEvent("message", b'{"error": {"message": "upstream", "code": 502}}', None)])
    assert failed.value.retryable


def test_event_that_is_no_json_is_not_passed_over() -> None:
    with pytest.raises(msgspec.DecodeError):
        read([SseEvent("content_block_delta", b'{"index": 0, "delta": {"text": "x', None)])


def test_event_that_is_nested_without_end_is_a_failure() -> None:
    deep = b'{"index": 0, "content_block": ' + b"[" * 100_000
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        read([SseEvent("content_block_start", deep, None)])


def test_what_follows_the_end_is_not_read() -> None:
    reader, parts = read([start(), *text_block(0, "x"), *end(), SseEvent("message", b"[DONE]", None), event("error")])
    assert reader.complete
    assert assemble(parts) == [Text("x")]


# --- the end -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "change", "reason", "metadata"),
    [
        ("end_turn", {"stop_sequence": None}, "stop", None),
        (
            "stop_sequence",
            {"stop_sequence": "end_turn"},
            "stop",
            {"stop_reason": "stop_sequence", "stop_sequence": "end_turn"},
        ),
        ("tool_use", {}, "tool_calls", None),
        ("max_tokens", {}, "length", None),
        ("model_context_window_exceeded", {}, "length", {"stop_reason": "model_context_window_exceeded"}),
        (
            "refusal",
            {"stop_details": {"type": "refusal", "category": "cyber"}},
            "content_filter",
            {"stop_reason": "refusal", "stop_details": {"type": "refusal", "category": "cyber"}},
        ),
        ("pause_turn", {}, "stop", {"stop_reason": "pause_turn"}),
        ("brand_new_reason", {}, "stop", {"stop_reason": "brand_new_reason"}),
        ("end_turn", {"container": {"id": "container_1"}}, "stop", {"container": {"id": "container_1"}}),
    ],
)
def test_every_stop_reason_has_its_word(stop: str, change: Json, reason: str, metadata: Json | None) -> None:
    reader, _ = read([start(), *text_block(0, "x"), *end(stop, **change)])
    assert reader.complete
    assert reader.resume() is None
    finish = reader.finish()
    assert (finish.reason, finish.metadata, finish.response_id) == (reason, metadata, None)


def test_usage_counts_all_input_and_knows_its_shares() -> None:
    reader, _ = read(
        [
            start(input_tokens=10, cache_creation_input_tokens=200, cache_read_input_tokens=3000),
            *text_block(0, "x"),
            *end(usage={"output_tokens": 90, "output_tokens_details": {"thinking_tokens": 60}}),
        ]
    )
    assert reader.finish().usage == Usage(
        input_tokens=3210, output_tokens=90, reasoning_tokens=60, cache_read_tokens=3000, cache_write_tokens=200
    )


def test_later_counters_replace_earlier_ones_and_garbage_replaces_none() -> None:
    reader, _ = read(
        [
            start(input_tokens=10, cache_read_input_tokens=5),
            *end(usage={"input_tokens": 400, "cache_read_input_tokens": None, "output_tokens": "many"}),
        ]
    )
    assert reader.finish().usage == Usage(input_tokens=405, output_tokens=1, cache_read_tokens=5)
    reader, _ = read(
        [event("message_start", message={"usage": {"input_tokens": -1}}), *end(usage={"output_tokens": True})]
    )
    assert reader.finish().usage == Usage()
    reader, _ = read(end(usage={"output_tokens": 3, "output_tokens_details": {"thinking_tokens": 5}}))
    assert reader.finish().usage == Usage(output_tokens=3, reasoning_tokens=3)


# --- pauses ------------------------------------------------------------------------------


def test_paused_reply_is_resumed_with_its_text_and_goes_on() -> None:
    opening = [start(cache_read_input_tokens=5), *text_block(2, "Looking. "), *SEARCH_BLOCKS]
    reader, first = read([*opening, *end("pause_turn", container={"id": "container_1"})], call=SEARCHING)
    asked = reader.resume()
    assert isinstance(asked, PausedCall)
    assert (asked.tools, asked.options, asked.container) == (SEARCHING.tools, SEARCHING.options, "container_1")
    assert asked.messages == [*SEARCHING.messages, PromptMessage(role="assistant", blocks=assemble(first))]

    assert not reader.complete
    going_on, second = read([start(), *text_block(0, "Sunny."), *end(usage={"output_tokens": 4})], reader=reader)
    assert going_on.complete
    assert going_on.resume() is None
    usage = Usage(input_tokens=19, output_tokens=13, cache_read_tokens=5)
    assert going_on.finish() == Finish(reason="stop", usage=usage, metadata={"container": {"id": "container_1"}})
    assert [part.id for part in (*first, *second) if isinstance(part, TextStart)] == ["0", "2"]
    assert assemble([*first, *second]) == [*assemble(first), Text("Sunny.")]


def test_each_pause_adds_to_one_message() -> None:
    reader, first = read([start(), *text_block(0, "a"), *end("pause_turn", container={"id": "c1"})], call=SEARCHING)
    reader.resume()
    _, second = read([start(), *text_block(0, "b"), *end("pause_turn")], reader=reader)
    asked = reader.resume()
    assert isinstance(asked, PausedCall)
    assert asked.container == "c1"
    assert [message.role for message in asked.messages] == ["user", "assistant"]
    assert asked.messages[-1].blocks == assemble([*first, *second]) == [Text("a"), Text("b")]


def test_reply_that_never_stops_pausing_is_ended() -> None:
    reader = AnthropicReader(SEARCHING)
    for _ in range(MAX_RESUMES):
        read([start(), *text_block(0, "."), *end("pause_turn")], reader=reader)
        assert reader.resume() is not None
    read([start(), *text_block(0, "."), *end("pause_turn")], reader=reader)
    assert reader.resume() is None
    assert MAX_RESUMES == 10
    finish = reader.finish()
    assert (finish.reason, finish.metadata) == ("stop", {"stop_reason": "pause_turn"})
    assert finish.usage == Usage(input_tokens=7 * 11, output_tokens=9 * 11)


def test_pause_that_is_cut_after_the_take_up_is_not_complete() -> None:
    reader, _ = read([start(), *text_block(0, "a"), *end("pause_turn")], call=SEARCHING)
    assert reader.resume() is not None
    assert not read([start(), *text_block(0, "b"), event("message_stop")], reader=reader)[0].complete


def test_the_key_travels_in_its_header() -> None:
    assert AnthropicWire().authorise("sk-ant-x") == {"x-api-key": "sk-ant-x"}
    assert AnthropicWire.name == "anthropic"


# --- whatever comes ----------------------------------------------------------------------

NAMES = [
    *("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"),
    *("message_stop", "ping", "error", "message"),
]
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
)
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
_types = st.sampled_from(
    [
        *("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use"),
        *("web_search_tool_result", "container_upload", "brand_new", "text_delta", "citations_delta"),
    ]
)
_keys = st.sampled_from(
    [
        *("type", "text", "thinking", "signature", "data", "id", "name", "input", "tool_use_id", "content", "is_error"),
        *("citation", "citations", "partial_json", "file_id", "stop_reason", "stop_sequence", "container", "usage"),
    ]
)
_values = st.one_of(_json, _types, st.just("t1"), st.just("end_turn"), st.just("pause_turn"), st.just({"id": "c"}))
_inner = st.dictionaries(_keys, _values, max_size=5) | _json
_typed_inner = st.builds(lambda inner, type_: {**inner, "type": type_}, st.dictionaries(_keys, _values), _types)
_shaped = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(NAMES) | _json,
        "index": st.integers(0, 2) | _json,
        "message": _inner,
        "content_block": _inner | _typed_inner,
        "delta": _inner | _typed_inner,
        "usage": st.dictionaries(st.sampled_from(["input_tokens", "output_tokens", "output_tokens_details"]), _json),
        "error": _json,
    },
)
_events = st.builds(
    SseEvent,
    st.sampled_from(NAMES),
    st.one_of(_shaped, _shaped, _shaped, _json).map(msgspec.json.encode) | st.binary(max_size=10),
    st.none(),
)
_EXPECTED = (ModelFailed, msgspec.MsgspecError, UnicodeDecodeError)


def read_whatever(events: Iterable[SseEvent]) -> None:
    """Read these as a stream. Everything that comes out is sound, and can go back."""
    reader = AnthropicReader(SEARCHING)
    assembler = PartAssembler()
    used: set[str] = set()
    for each in events:
        try:
            parts = reader.read(each)
        except _EXPECTED:
            continue
        assert parts or reader.complete
        for part in parts:
            assert type(decode_part(encode(part))) is type(part)
            assembler.add(part)
            if isinstance(part, TextStart | ReasoningStart | Source):
                assert part.id not in used
                used.add(part.id)
        if reader.complete and (asked := reader.resume()):
            assert msgspec.json.encode(write_call(asked, "claude", Profile()).body)
    if reader.complete:
        assert isinstance(decode_part(encode(reader.finish())), Finish)


@given(st.lists(_events, max_size=12))
@EXAMPLES
def test_whatever_comes_is_read_or_refused(events: list[SseEvent]) -> None:
    read_whatever(events)


SOUND = [
    start(output_tokens_details={"thinking_tokens": 1}),
    open_block(7, "thinking", thinking="", signature=""),
    delta(7, "thinking_delta", thinking="hm"),
    delta(7, "signature_delta", signature="S"),
    close_block(7),
    open_block(8, "redacted_thinking", data="R"),
    close_block(8),
    *SEARCH_BLOCKS,
    open_block(2, "text", text="", citations=[WEB_CITATION]),
    delta(2, "text_delta", text="Sunny."),
    delta(2, "citations_delta", citation=WEB_CITATION),
    close_block(2),
    open_block(3, "container_upload", file_id="f"),
    close_block(3),
    *end("pause_turn", container={"id": "c"}, stop_sequence="x", stop_details={"type": "refusal"}),
]


def list_places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in this value, itself included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(deeper for name, each in inner for deeper in list_places(each, (*place, name)))]


def put(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    if not place:
        return other
    value[place[0]] = put(value[place[0]], place[1:], other)
    return value


PLACES = [(at, place) for at, each in enumerate(SOUND) for place in list_places(msgspec.json.decode(each.data))]


@given(st.sampled_from(PLACES), _json | st.sampled_from([[], {}, [{}], "", 10**30, "\ud83d", {"\ude00": "\ud83d"}]))
@EXAMPLES
def test_one_strange_value_anywhere_in_a_sound_stream_does_no_harm(place: tuple[int, Any], strange: Any) -> None:
    at, where = place
    data = json.dumps(put(msgspec.json.decode(SOUND[at].data), where, strange)).encode()
    for event_name in (SOUND[at].event, "message"):
        read_whatever([*SOUND[:at], SseEvent(event_name, data, None), *SOUND[at + 1 :]])
