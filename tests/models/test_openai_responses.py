"""Reading the Responses API: from events to parts.

The streams below are what the API sends, shortened; the first test validates them by the official SDK's own types.
Each is then read unchanged, without `event:` lines, with deltas missing, and cut.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.sdk_judges import make_event_judge

from indelible.clock import SystemClock
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
    ToolResult,
    Usage,
)
from indelible.content.assemble import assemble, finalize
from indelible.errors import FailureKind, ModelFailed
from indelible.loop.normalize import Normalizer
from indelible.models.http.http_model import WireFormat
from indelible.models.http.sse import SseDecoder, SseEvent
from indelible.models.profile import Profile
from indelible.models.protocol import Call
from indelible.models.providers.openai_responses.response import ResponsesReader, ResponsesWire

Event = dict[str, Any]

RESPONSE_ID = "resp_68af4030592c81938ec0a5fbab4a3e9f05438e46b5f69a3b"
MESSAGE_ID = "msg_68af4032f1a08193ae6c2a1f1b8d3f7105438e46b5f69a3b"
REASONING_ID = "rs_68af4030cfdc8193b1c74a3e4f5a6b7c05438e46b5f69a3b"
SEARCH_ID = "ws_68af403152c48193aa1b2c3d4e5f607105438e46b5f69a3b"
PIXEL = b"\x89PNG\r\n\x1a\n"

USAGE = {
    "input_tokens": 81,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 5},
    "output_tokens": 1035,
    "output_tokens_details": {"reasoning_tokens": 832},
    "total_tokens": 1116,
}


# --- streams -----------------------------------------------------------------------------


def make_response(status: str, **fields: Any) -> Event:
    return {
        "id": RESPONSE_ID,
        "object": "response",
        "created_at": 1756315696,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": "gpt-5.6-2026-05-01",
        "output": [],
        "parallel_tool_calls": True,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
        "metadata": {},
        **fields,
    }


def make_stream(*items: list[Event], end: str = "completed", **fields: Any) -> list[Event]:
    """A stream of these items, numbered, between its first events and its end."""
    done = [event["item"] for events in items for event in events if event["type"] == "response.output_item.done"]
    last = make_response(end, output=done, usage=USAGE, **fields)
    events: list[Event] = [
        {"type": "response.created", "response": make_response("in_progress")},
        {"type": "response.in_progress", "response": make_response("in_progress")},
        *({**event, "output_index": index} for index, events in enumerate(items) for event in events),
        {"type": f"response.{end}", "response": last},
    ]
    return [{"sequence_number": number, **event} for number, event in enumerate(events)]


def stream_item(begun: Event, whole: Event, *between: Event) -> list[Event]:
    return [
        {"type": "response.output_item.added", "item": begun},
        *({"item_id": whole["id"], **event} for event in between),
        {"type": "response.output_item.done", "item": whole},
    ]


def stream_message(*deltas: str, id: str = MESSAGE_ID, annotations: Sequence[Event] = (), **fields: Any) -> list[Event]:
    text = "".join(deltas)
    part = {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}
    item = {"id": id, "type": "message", "role": "assistant", **fields}
    place = {"content_index": 0}
    return stream_item(
        {**item, "status": "in_progress", "content": []},
        {"status": "completed", **item, "content": [part]},
        {"type": "response.content_part.added", **place, "part": {**part, "text": "", "annotations": []}},
        *(
            {"type": "response.output_text.delta", **place, "delta": delta, "logprobs": [], "obfuscation": "x7"}
            for delta in deltas
        ),
        *(
            {
                "type": "response.output_text.annotation.added",
                **place,
                "annotation_index": index,
                "annotation": annotation,
            }
            for index, annotation in enumerate(annotations)
        ),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
    )


def stream_refusal(*deltas: str) -> list[Event]:
    text = "".join(deltas)
    part = {"type": "refusal", "refusal": text}
    item = {"id": MESSAGE_ID, "type": "message", "role": "assistant"}
    return stream_item(
        {**item, "status": "in_progress", "content": []},
        {**item, "status": "completed", "content": [part]},
        {"type": "response.content_part.added", "content_index": 0, "part": {**part, "refusal": ""}},
        *({"type": "response.refusal.delta", "content_index": 0, "delta": delta} for delta in deltas),
        {"type": "response.refusal.done", "content_index": 0, "refusal": text},
        {"type": "response.content_part.done", "content_index": 0, "part": part},
    )


def stream_reasoning(*summary: list[str], encrypted: str | None = "gAAAAABo", id: str = REASONING_ID) -> list[Event]:
    item = {"id": id, "type": "reasoning"}
    texts = [{"type": "summary_text", "text": "".join(deltas)} for deltas in summary]
    between: list[Event] = []
    for index, deltas in enumerate(summary):
        place = {"summary_index": index}
        between += [
            {"type": "response.reasoning_summary_part.added", **place, "part": {**texts[index], "text": ""}},
            *({"type": "response.reasoning_summary_text.delta", **place, "delta": delta} for delta in deltas),
            {"type": "response.reasoning_summary_text.done", **place, "text": texts[index]["text"]},
            {"type": "response.reasoning_summary_part.done", **place, "part": texts[index]},
        ]
    return stream_item(
        {**item, "summary": [], "encrypted_content": "half"},
        {**item, "summary": texts, "encrypted_content": encrypted},
        *between,
    )


def stream_thinking(*deltas: str) -> list[Event]:
    """Reasoning in its own words, as open models give it."""
    item = {"id": REASONING_ID, "type": "reasoning", "summary": []}
    text = "".join(deltas)
    return stream_item(
        item,
        {**item, "content": [{"type": "reasoning_text", "text": text}]},
        *({"type": "response.reasoning_text.delta", "content_index": 0, "delta": delta} for delta in deltas),
        {"type": "response.reasoning_text.done", "content_index": 0, "text": text},
    )


def stream_call(*deltas: str, id: str = "fc_1", call_id: str = "call_1", status: str = "completed") -> list[Event]:
    item = {"id": id, "type": "function_call", "call_id": call_id, "name": "weather"}
    arguments = "".join(deltas)
    return stream_item(
        {**item, "status": "in_progress", "arguments": ""},
        {**item, "status": status, "arguments": arguments},
        *({"type": "response.function_call_arguments.delta", "delta": delta} for delta in deltas),
        {"type": "response.function_call_arguments.done", "name": "weather", "arguments": arguments},
    )


def stream_custom_call(*deltas: str) -> list[Event]:
    item = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "call_c", "name": "shell"}
    given = "".join(deltas)
    return stream_item(
        {**item, "input": ""},
        {**item, "input": given},
        *({"type": "response.custom_tool_call_input.delta", "delta": delta} for delta in deltas),
        {"type": "response.custom_tool_call_input.done", "input": given},
    )


def stream_web_search() -> list[Event]:
    item = {"id": SEARCH_ID, "type": "web_search_call"}
    action = {"type": "search", "query": "rain in Oslo", "queries": ["rain in Oslo"]}
    return stream_item(
        {**item, "status": "in_progress", "action": {"type": "search", "query": ""}},
        {**item, "status": "completed", "action": action},
        {"type": "response.web_search_call.in_progress"},
        {"type": "response.web_search_call.searching"},
        {"type": "response.web_search_call.completed"},
    )


def stream_file_search() -> list[Event]:
    item = {"id": "fs_1", "type": "file_search_call", "queries": ["deep research"]}
    results = [{"file_id": "file-1", "filename": "blog.pdf", "score": 0.9, "text": "A page.", "attributes": {}}]
    return stream_item(
        {**item, "status": "in_progress", "results": None},
        {**item, "status": "completed", "results": results},
        {"type": "response.file_search_call.in_progress"},
        {"type": "response.file_search_call.searching"},
        {"type": "response.file_search_call.completed"},
    )


def stream_code(*deltas: str, outputs: list[Event] | None = None) -> list[Event]:
    item = {"id": "ci_1", "type": "code_interpreter_call", "container_id": "cntr_1"}
    code = "".join(deltas)
    return stream_item(
        {**item, "status": "in_progress", "code": "", "outputs": None},
        {**item, "status": "completed", "code": code, "outputs": outputs},
        {"type": "response.code_interpreter_call.in_progress"},
        *({"type": "response.code_interpreter_call_code.delta", "delta": delta} for delta in deltas),
        {"type": "response.code_interpreter_call_code.done", "code": code},
        {"type": "response.code_interpreter_call.interpreting"},
        {"type": "response.code_interpreter_call.completed"},
    )


def stream_image() -> list[Event]:
    item = {"id": "ig_1", "type": "image_generation_call"}
    result = b64encode(PIXEL).decode()
    partial = {"partial_image_b64": result, "partial_image_index": 0}
    return stream_item(
        {**item, "status": "in_progress", "result": None},
        {**item, "status": "completed", "result": result, "output_format": "png", "revised_prompt": "A cat"},
        {"type": "response.image_generation_call.in_progress"},
        {"type": "response.image_generation_call.generating"},
        {"type": "response.image_generation_call.partial_image", **partial},
        {"type": "response.image_generation_call.completed"},
    )


def stream_mcp_tools() -> list[Event]:
    item = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "wiki"}
    return stream_item(
        {**item, "tools": []},
        {**item, "tools": [{"name": "ask", "input_schema": {"type": "object"}, "description": "Ask."}]},
        {"type": "response.mcp_list_tools.in_progress"},
        {"type": "response.mcp_list_tools.completed"},
    )


def stream_mcp_call(*deltas: str, end: str = "completed", **fields: Any) -> list[Event]:
    item = {"id": "mcp_1", "type": "mcp_call", "server_label": "wiki", "name": "ask"}
    arguments = "".join(deltas)
    return stream_item(
        {**item, "arguments": ""},
        {**item, "arguments": arguments, "status": end, **fields},
        {"type": "response.mcp_call.in_progress"},
        *({"type": "response.mcp_call_arguments.delta", "delta": delta} for delta in deltas),
        {"type": "response.mcp_call_arguments.done", "arguments": arguments},
        {"type": f"response.mcp_call.{end}"},
    )


def stream_shell() -> list[list[Event]]:
    call = {"id": "sh_1", "type": "shell_call", "call_id": "call_s", "action": {"commands": ["ls"]}}
    output = [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    answer = {"id": "sho_1", "type": "shell_call_output", "call_id": "call_s", "output": output, "status": "completed"}
    return [
        stream_item({**call, "status": "in_progress"}, {**call, "status": "completed"}),
        stream_item({**answer, "output": []}, answer),
    ]


CITATIONS: list[Event] = [
    {"type": "url_citation", "start_index": 3, "end_index": 9, "url": "https://yr.no", "title": "Yr"},
    {"type": "file_citation", "file_id": "file-1", "filename": "blog.pdf", "index": 9},
    {
        "type": "container_file_citation",
        "container_id": "cntr_1",
        "file_id": "cfile_1",
        "filename": "plot.png",
        "start_index": 0,
        "end_index": 2,
    },
    {"type": "file_path", "file_id": "file-2", "index": 0},
]

STREAMS: dict[str, list[Event]] = {
    "text": make_stream(stream_message("It ", "rains", ".")),
    "reasoning": make_stream(
        stream_reasoning(["**Checking", " rain**"], ["**Answering**"]), stream_message("Yes.", phase="final_answer")
    ),
    "silent reasoning": make_stream(stream_reasoning(), stream_message("Yes.")),
    "reasoning that is not encrypted": make_stream(stream_reasoning(["Hm."], encrypted=None), stream_message("Yes.")),
    "reasoning in its own words": make_stream(stream_thinking("We ", "need"), stream_message("Yes.")),
    "calls": make_stream(
        stream_reasoning(["Two calls."]),
        stream_call('{"city":', '"Oslo"}'),
        stream_call("{}", id="fc_2", call_id="call_2"),
    ),
    "a custom call": make_stream(stream_custom_call('say "', "hi\n", '"')),
    "a web search": make_stream(
        stream_reasoning(["Searching."]), stream_web_search(), stream_message("It rains", ".", annotations=CITATIONS)
    ),
    "a file search": make_stream(stream_file_search(), stream_message("Found.")),
    "code": make_stream(
        stream_code('print("', "é\n", '")', outputs=[{"type": "logs", "logs": "é"}]), stream_message("é")
    ),
    "an image": make_stream(stream_image()),
    "mcp": make_stream(
        stream_mcp_tools(), stream_mcp_call('{"q":', '"x"}', output="An answer."), stream_message("So.")
    ),
    "mcp that failed": make_stream(
        stream_mcp_call("{}", end="failed", error={"type": "http_error", "code": 500, "message": "down"})
    ),
    "a shell of the provider's": make_stream(*stream_shell(), stream_message("One file.")),
    "a refusal": make_stream(stream_refusal("I can", " not.")),
    "a reply that was cut": make_stream(
        stream_message("It rai", status="incomplete"),
        end="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
    "a call that was cut": make_stream(
        stream_call('{"city":', status="incomplete"),
        end="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
    "a reply that was filtered": make_stream(
        stream_message("It", status="incomplete"), end="incomplete", incomplete_details={"reason": "content_filter"}
    ),
}
every_stream = pytest.mark.parametrize("events", STREAMS.values(), ids=STREAMS)


def encode(events: Sequence[Event], *, named: bool = True) -> bytes:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n".encode() if named else b""
        lines.append(name + b"data: " + msgspec.json.encode(event) + b"\n\n")
    return b"".join(lines)


def read_with(reader: ResponsesReader, events: Sequence[Event], *, named: bool = True) -> list[Part]:
    decoded = SseDecoder().feed(encode(events, named=named))
    return [part for event in decoded for part in reader.read(event)]


def read(events: Sequence[Event], *, named: bool = True) -> list[Part]:
    """All parts of a whole stream, without the signs of life."""
    reader = ResponsesReader()
    parts = read_with(reader, events, named=named)
    assert reader.complete
    assert reader.over
    assert reader.resume() is None
    return [*(part for part in parts if not isinstance(part, KeepAlive)), reader.finish()]


def finish(events: Sequence[Event]) -> Finish:
    last = read(events)[-1]
    assert isinstance(last, Finish)
    return last


# --- whole streams -----------------------------------------------------------------------


@every_stream
def test_the_streams_here_are_what_the_official_sdk_expects(events: list[Event]) -> None:
    for event in events:
        parsed = make_event_judge("openai").validate_python(event)
        assert parsed.type == event["type"]


def test_text_comes_as_it_was_sent() -> None:
    assert read(STREAMS["text"]) == [
        TextStart("text-1"),
        TextDelta("text-1", "It "),
        TextDelta("text-1", "rains"),
        TextDelta("text-1", "."),
        TextEnd("text-1", {"id": MESSAGE_ID}),
        Finish(
            reason="stop",
            usage=Usage(
                input_tokens=81,
                output_tokens=1035,
                reasoning_tokens=832,
                cache_read_tokens=64,
                cache_write_tokens=5,
            ),
            response_id=RESPONSE_ID,
            metadata={"model": "gpt-5.6-2026-05-01", "service_tier": "default"},
        ),
    ]


def test_a_summary_is_one_reasoning_block_with_a_blank_line_between_its_parts() -> None:
    assert read(STREAMS["reasoning"])[:-1] == [
        ReasoningStart("reasoning-1"),
        ReasoningDelta("reasoning-1", "**Checking"),
        ReasoningDelta("reasoning-1", " rain**"),
        ReasoningDelta("reasoning-1", "\n\n**Answering**"),
        ReasoningEnd("reasoning-1", metadata={"id": REASONING_ID, "encrypted_content": "gAAAAABo"}),
        TextStart("text-2"),
        TextDelta("text-2", "Yes."),
        TextEnd("text-2", {"id": MESSAGE_ID, "phase": "final_answer"}),
    ]


def test_reasoning_without_a_word_is_kept_for_what_it_holds() -> None:
    blocks = finalize(assemble(read(STREAMS["silent reasoning"])), None, None)
    assert blocks[0] == Reasoning(metadata={"id": REASONING_ID, "encrypted_content": "gAAAAABo"})


def test_reasoning_that_is_not_encrypted_has_nothing_to_send_back() -> None:
    reasoning = assemble(read(STREAMS["reasoning that is not encrypted"]))[0]
    assert reasoning == Reasoning("Hm.")


def test_reasoning_in_its_own_words_is_reasoning() -> None:
    assert assemble(read(STREAMS["reasoning in its own words"]))[0] == Reasoning("We need")


def test_arguments_come_as_deltas_and_whole() -> None:
    parts = read(STREAMS["calls"])
    assert parts[3:12] == [
        ToolInputStart("call_1", "weather"),
        ToolInputDelta("call_1", '{"city":'),
        ToolInputDelta("call_1", '"Oslo"}'),
        ToolInputEnd("call_1"),
        ToolCall("call_1", "weather", '{"city":"Oslo"}', metadata={"id": "fc_1"}),
        ToolInputStart("call_2", "weather"),
        ToolInputDelta("call_2", "{}"),
        ToolInputEnd("call_2"),
        ToolCall("call_2", "weather", "{}", metadata={"id": "fc_2"}),
    ]
    assert finish(STREAMS["calls"]).reason == "tool_calls"


def test_a_call_without_arguments_has_an_empty_object() -> None:
    call = assemble(read(make_stream(stream_call())))[0]
    assert call == ToolCall("call_1", "weather", "{}", metadata={"id": "fc_1"})


def test_a_custom_tool_gets_its_text_as_an_argument() -> None:
    parts = read(STREAMS["a custom call"])
    call = ToolCall("call_c", "shell", r'{"input":"say \"hi\n\""}', metadata={"id": "ctc_1", "custom": True})
    assert call in parts
    assert "".join(part.delta for part in parts if isinstance(part, ToolInputDelta)) == call.arguments


def test_a_web_search_is_a_call_of_the_providers_own_and_its_citations_are_sources() -> None:
    blocks = assemble(read(STREAMS["a web search"]))
    search, text, *sources = blocks[1:]
    assert isinstance(search, ToolCall)
    assert search == ToolCall(
        SEARCH_ID[-40:],
        "web_search",
        '{"type":"search","query":"rain in Oslo","queries":["rain in Oslo"]}',
        provider_executed=True,
        standalone=True,
        metadata={"item": stream_web_search()[-1]["item"]},
    )
    assert text == Text("It rains.", {"id": MESSAGE_ID})
    assert sources == [
        Source(
            "source-4",
            url="https://yr.no",
            title="Yr",
            metadata={"type": "url_citation", "start_index": 3, "end_index": 9},
        ),
        Source("source-5", title="blog.pdf", metadata={"type": "file_citation", "file_id": "file-1", "index": 9}),
        Source(
            "source-6",
            title="plot.png",
            metadata={
                "type": "container_file_citation",
                "container_id": "cntr_1",
                "file_id": "cfile_1",
                "start_index": 0,
                "end_index": 2,
            },
        ),
        Source("source-7", metadata={"type": "file_path", "file_id": "file-2", "index": 0}),
    ]


def test_what_the_providers_own_tools_found_is_their_result() -> None:
    found = assemble(read(STREAMS["a file search"]))
    assert isinstance(found[0], ToolCall)
    assert (found[0].name, found[0].arguments) == ("file_search", '{"queries":["deep research"]}')
    assert isinstance(found[1], ToolResult)
    assert found[1].output[0]["text"] == "A page."

    ran = assemble(read(STREAMS["code"]))
    assert isinstance(ran[0], ToolCall)
    assert ran[0].arguments == '{"code":"print(\\"é\\n\\")"}'
    assert ran[1] == ToolResult("ci_1", "code_interpreter", [{"type": "logs", "logs": "é"}], provider_executed=True)

    shell = assemble(read(STREAMS["a shell of the provider's"]))
    assert isinstance(shell[0], ToolCall)
    assert shell[0].arguments == '{"commands":["ls"]}'
    assert isinstance(shell[1], ToolResult)
    assert (shell[1].call_id, shell[1].output[0]["stdout"]) == ("sh_1", "a.txt")


def test_an_mcp_tool_goes_by_its_own_name() -> None:
    listed, called, answer, _ = assemble(read(STREAMS["mcp"]))
    assert isinstance(listed, ToolCall)
    assert (listed.name, listed.arguments) == ("mcp_list_tools", '{"server_label":"wiki"}')
    assert isinstance(called, ToolCall)
    assert (called.name, called.arguments, called.provider_executed) == ("ask", '{"q":"x"}', True)
    assert answer == ToolResult("mcp_1", "ask", "An answer.", provider_executed=True)


def test_an_mcp_tool_with_an_impossible_name_goes_by_its_kind() -> None:
    item = {**stream_mcp_call("{}")[-1]["item"], "name": "a tool.of theirs"}
    call = assemble(read(make_stream(stream_item(item, item))))[0]
    assert isinstance(call, ToolCall)
    assert call.name == "mcp"


def test_a_failure_of_the_providers_own_tool_is_an_error_result() -> None:
    result = assemble(read(STREAMS["mcp that failed"]))[1]
    assert isinstance(result, ToolResult)
    assert result.is_error
    assert result.output["message"] == "down"


def test_an_image_is_a_file() -> None:
    call, file = assemble(read(STREAMS["an image"]))
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("image_generation", '{"revised_prompt":"A cat"}')
    assert file == File("image/png", name="image.png", data=PIXEL)


@pytest.mark.parametrize(
    ("output_format", "media_type"), [(None, "image/png"), ("webp", "image/webp"), ("svg", "image/svg+xml")]
)
def test_an_image_says_what_it_is(output_format: str | None, media_type: str) -> None:
    item = {**stream_image()[-1]["item"], "output_format": output_format}
    file = assemble(read(make_stream(stream_item(item, item))))[1]
    assert isinstance(file, File)
    assert file.media_type == media_type


def test_an_image_that_can_not_be_decoded_is_no_file() -> None:
    item = {**stream_image()[-1]["item"], "result": "no base64!"}
    assert [type(block) for block in assemble(read(make_stream(stream_item(item, item))))] == [ToolCall]


def test_a_refusal_is_text_and_ends_as_content_filter() -> None:
    parts = read(STREAMS["a refusal"])
    assert assemble(parts) == [Text("I can not.", {"id": MESSAGE_ID})]
    assert finish(STREAMS["a refusal"]).reason == "content_filter"


@pytest.mark.parametrize("told_by", ["response.refusal.delta", "response.refusal.done", "response.output_item.done"])
def test_a_refusal_is_one_whichever_event_tells_it(told_by: str) -> None:
    left_out = {"response.refusal.delta", "response.refusal.done", "response.output_item.done"} - {told_by}
    events = [event for event in STREAMS["a refusal"] if event["type"] not in left_out]
    events[-1] = {**events[-1], "response": {**events[-1]["response"], "output": []}}
    assert [block.text for block in assemble(read(events))] == ["I can not."]
    assert finish(events).reason == "content_filter"


def test_signs_of_life_are_recognised() -> None:
    reader = ResponsesReader()
    for kind in ("response.created", "response.web_search_call.searching", "keepalive", "response.of_next_year", "?"):
        assert reader.read(SseEvent(kind, b"{}", None)) == (KeepAlive(),)


@every_stream
def test_part_ids_are_unique(events: list[Event]) -> None:
    begun = [part.id for part in read(events) if isinstance(part, TextStart | ReasoningStart | ToolInputStart | Source)]
    assert len(begun) == len(set(begun))


# --- the end -----------------------------------------------------------------------------


@every_stream
def test_only_the_last_event_completes_a_reply(events: list[Event]) -> None:
    reader = ResponsesReader()
    read_with(reader, events[:-1])
    assert not reader.complete
    assert not reader.over


@pytest.mark.parametrize(
    ("name", "reason", "emitted"),
    [
        ("a reply that was cut", "length", "max_output_tokens"),
        ("a call that was cut", "length", "max_output_tokens"),
        ("a reply that was filtered", "content_filter", "content_filter"),
    ],
)
def test_an_incomplete_response_is_complete_and_says_why(name: str, reason: str, emitted: str) -> None:
    end = finish(STREAMS[name])
    assert end.reason == reason
    assert end.metadata is not None
    assert end.metadata["incomplete_reason"] == emitted
    assert end.usage is not None
    assert end.usage.output_tokens == 1035


def test_an_incomplete_response_may_say_nothing_more() -> None:
    assert finish([{"type": "response.incomplete"}]) == Finish("length", metadata={"incomplete_reason": "unknown"})


def test_half_a_call_is_never_reported_as_complete() -> None:
    events = STREAMS["a call that was cut"]
    without_done = [event for event in events if not event["type"].endswith(".done")]
    for cut in (events, without_done):
        assert [type(part) for part in read(cut)] == [ToolInputStart, ToolInputDelta, Finish]


def test_a_call_that_broke_off_for_something_else_is_never_reported_as_complete() -> None:
    begun = stream_call('{"city":')[:2]
    text = [{"type": "response.output_text.delta", "delta": "Hm."}]
    parts = read(make_stream([*begun, *text]))
    assert not [part for part in parts if isinstance(part, ToolCall | ToolInputEnd)]


def test_what_was_cut_has_no_id_to_send_back() -> None:
    assert assemble(read(STREAMS["a reply that was cut"])) == [Text("It rai")]
    events = make_stream(stream_reasoning(["Hm."]), end="incomplete", incomplete_details={"reason": "?"})
    events[-2]["item"]["status"] = "incomplete"
    assert assemble(read(events)) == [Reasoning("Hm.")]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "server_error", "message": "The server had an error."}, "server_error"),
        ({"code": "rate_limit_exceeded", "message": "Too fast."}, "rate_limit"),
        ({"code": "previous_response_not_found", "message": "Gone."}, "chain_broken"),
        ({"code": "context_length_exceeded", "message": "Too long."}, "context_overflow"),
        ({"code": "insufficient_quota", "message": "No money."}, "usage_limit"),
        ({"code": "invalid_prompt", "message": "Bad."}, "config"),
        ({"code": "image_content_policy_violation", "message": "No."}, "content_filter"),
        (None, "server_error"),
    ],
)
@pytest.mark.parametrize("event", ["response.failed", "response.completed"])
def test_a_failed_response_is_the_failure_that_it_names(error: Event | None, kind: FailureKind, event: str) -> None:
    huge = "x" * 300_000  # more than anybody would read to judge a failure
    response = make_response("failed", error=error, instructions=huge, metadata={"code": "invalid_api_key"})
    reader = ResponsesReader()
    with pytest.raises(ModelFailed) as caught:
        read_with(reader, [{"type": event, "response": response}])
    assert (caught.value.kind, caught.value.provider) == (kind, "openai")
    assert not reader.complete


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Too fast.", "param": None}, "rate_limit"),
        ({"type": "error", "error": {"type": "server_error", "code": "server_error", "message": "?"}}, "server_error"),
        ({"type": "error", "error": {"code": "previous_response_not_found", "message": "?"}}, "chain_broken"),
        ({"type": "error", "message": "Previous response with id 'resp_1' not found."}, "chain_broken"),
    ],
)
def test_an_error_event_is_the_failure_that_it_names(data: Event, kind: FailureKind, named: bool) -> None:
    with pytest.raises(ModelFailed) as caught:
        read_with(ResponsesReader(), [data], named=named)
    assert caught.value.kind == kind


def test_an_error_without_a_type_is_an_error() -> None:
    event = SseEvent("message", b'{"error": {"message": "Too many requests", "code": 429}}', None)
    with pytest.raises(ModelFailed) as caught:
        ResponsesReader().read(event)
    assert caught.value.kind == "rate_limit"


# --- dialects ----------------------------------------------------------------------------


@every_stream
def test_events_need_no_names(events: list[Event]) -> None:
    assert read(events, named=False) == read(events)


def test_the_closing_word_of_other_wires_is_no_event() -> None:
    assert ResponsesReader().read(SseEvent("message", b"[DONE]", None)) == (KeepAlive(),)


@every_stream
def test_what_deltas_did_not_bring_is_taken_from_the_whole(events: list[Event]) -> None:
    deltas = [at for at, event in enumerate(events) if event["type"].endswith(".delta")]
    for first_missing in deltas:
        kept = [event for at, event in enumerate(events) if at < first_missing or at not in deltas]
        assert drop_halves(assemble(read(kept))) == drop_halves(assemble(read(events)))


def drop_halves(blocks: Sequence[Block]) -> list[Block]:
    """The blocks without calls that never came to their end: nobody needs what is missing of them."""
    return [block for block in blocks if not (isinstance(block, ToolCall) and not block.arguments.endswith("}"))]


@every_stream
def test_deltas_alone_bring_everything_that_can_be_seen(events: list[Event]) -> None:
    """A host that leaves out all that is whole: no `….done`, and nothing in the last response."""
    kept = [event for event in events if not event["type"].endswith(".done")]
    last = {**kept[-1], "response": {**kept[-1]["response"], "output": []}}
    emitted = assemble(read([*kept[:-1], last]))
    for block in assemble(read(events)):
        if isinstance(block, Text):
            assert block.text in [other.text for other in emitted]
        if isinstance(block, ToolCall) and not block.provider_executed:
            assert block.arguments in [other.arguments for other in emitted if isinstance(other, ToolCall)]


@every_stream
def test_a_response_that_comes_in_one_piece_is_read_from_its_end(events: list[Event]) -> None:
    at_once = drop_halves(assemble(read([events[0], events[-1]])))
    assert at_once == drop_halves(assemble(read(events)))


def test_an_item_that_is_done_is_not_read_again() -> None:
    events = STREAMS["text"]
    late = next(event for event in events if event["type"] == "response.output_text.done")
    assert read([*events[:-1], late, events[-1]]) == read(events)


def test_what_is_not_the_beginning_of_the_whole_is_left_as_it_was_sent() -> None:
    events = STREAMS["text"]
    middle = next(at for at, event in enumerate(events) if event.get("delta") == "rains")
    assert assemble(read([*events[:middle], *events[middle + 1 :]])) == [Text("It .", {"id": MESSAGE_ID})]


def test_item_ids_may_be_another_in_every_event() -> None:
    events = [
        {**event, "item_id": f"other_{at}"} if "item_id" in event else event
        for at, event in enumerate(STREAMS["calls"])
    ]
    assert read(events) == read(STREAMS["calls"])


@pytest.mark.parametrize("given", [{}, {"output_index": None, "content_index": None, "summary_index": None}])
def test_places_may_be_left_out_where_there_is_one_item_at_a_time(given: Event) -> None:
    places = ("output_index", "content_index")
    events = [
        {**{name: value for name, value in event.items() if name not in places}, **given} for event in STREAMS["calls"]
    ]
    assert assemble(read(events)) == assemble(read(STREAMS["calls"]))


def test_a_message_may_hold_several_pieces() -> None:
    content = [
        {"type": "output_text", "text": "One.", "annotations": []},
        {"type": "output_text", "text": "Two.", "annotations": [CITATIONS[0]]},
        {"type": "refusal", "refusal": "No more."},
    ]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}
    blocks = assemble(read(make_stream(stream_item({**item, "content": []}, item))))
    assert [block.text for block in blocks] == ["One.", "Two.", "", "No more."]
    assert isinstance(blocks[2], Source)


def test_arguments_that_are_an_object_and_no_text_are_taken() -> None:
    item = {**stream_call()[-1]["item"], "arguments": {"city": "Oslo"}}
    call = assemble(read(make_stream(stream_item({**item, "arguments": ""}, item))))[0]
    assert isinstance(call, ToolCall)
    assert call.arguments == '{"city":"Oslo"}'


def test_a_call_without_any_id_gets_one() -> None:
    item = {"type": "function_call", "name": "weather", "arguments": "{}"}
    events = [{"type": "response.output_item.done", "item": item}]
    assert assemble(read(make_stream(events)))[0] == ToolCall("call-1", "weather", "{}")


@pytest.mark.parametrize("usage", [None, 7, {}, {"input_tokens": None, "input_tokens_details": None}])
def test_usage_may_be_missing(usage: Any) -> None:
    events = make_stream(stream_message("Yes."))
    events[-1]["response"]["usage"] = usage
    assert finish(events).usage in (None, Usage())


# --- hostile -----------------------------------------------------------------------------

KINDS = sorted({event["type"] for events in STREAMS.values() for event in events} | {"error", "response.failed"})
NAMES = sorted({name for events in STREAMS.values() for event in events for name in event} | {"error"})
ITEM_NAMES = ("id", "type", "call_id", "name", "status", "content", "summary", "arguments", "action", "result", "error")
ITEM_TYPES = ("message", "reasoning", "function_call", "custom_tool_call", "web_search_call", "x_output", "program")

scalars = st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(allow_nan=False), st.text(max_size=3))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
items = st.dictionaries(st.sampled_from(ITEM_NAMES), values | st.sampled_from(ITEM_TYPES), max_size=6)
objects = st.fixed_dictionaries(
    {},
    optional={
        "output_index": st.integers(0, 1),
        "content_index": st.integers(0, 1),
        "delta": st.text(max_size=3),
        "text": st.text(max_size=3),
        "arguments": st.text(max_size=3),
        "item": st.builds(lambda item, kind: {**item, "type": kind}, items, st.sampled_from(ITEM_TYPES)),
        "annotation": items,
        "response": st.dictionaries(st.sampled_from(["id", "status", "output", "usage", "error"]), values | items),
    },
)
anything = st.one_of(values, objects, st.dictionaries(st.sampled_from(NAMES), values, max_size=5))


@given(st.lists(st.tuples(st.sampled_from(KINDS), anything, st.booleans()), max_size=12))
def test_whatever_comes_nothing_but_a_failure_or_a_decoding_error_comes_out(
    events: list[tuple[str, Any, bool]],
) -> None:
    reader = ResponsesReader()
    normalizer = Normalizer(provider="openai", clock=SystemClock(), inline_thinking=False)
    seen: list[Part] = []
    for kind, value, named in events:
        data = msgspec.json.encode({"type": kind, **value} if isinstance(value, dict) and not named else value)
        try:
            parts = reader.read(SseEvent(kind if named else "message", data, None))
        except (ModelFailed, msgspec.MsgspecError):
            continue
        seen += [fit for part in parts for fit in normalizer.feed(part)]
    if reader.complete:
        seen += normalizer.feed(reader.finish())
    assert reader.complete or not any(isinstance(part, Finish) for part in seen)
    finalize(assemble(seen), None, None)


# --- the wire ----------------------------------------------------------------------------


def test_the_wire_is_one() -> None:
    wire: WireFormat = ResponsesWire()
    assert wire.name == "openai"
    assert wire.authorise("sk-1") == {"authorization": "Bearer sk-1"}
    written = wire.write(Call(messages=[]), "gpt-5", Profile())
    assert (written.path, written.body["model"]) == ("/responses", "gpt-5")
    reader = wire.open_reader(Call(messages=[]), Profile())
    assert not reader.complete


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.endswith(".delta")])
def test_an_empty_delta_says_nothing(kind: str) -> None:
    for data in (b"{}", b'{"delta": ""}', b'{"delta": null}'):
        assert list(ResponsesReader().read(SseEvent(kind, data, None))) == []


def test_what_only_the_end_knows_is_sent_then() -> None:
    """A host that announces an item and sends no more of it, or nothing of one item among several."""
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "rm", "arguments": '{"path":"x"}'}
    message = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "The answer."}]}
    started = {"type": "response.output_item.added", "output_index": 0, "item": {**call, "arguments": ""}}
    done = {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [call, message]}}
    blocks = assemble(read([started, done]))
    assert [block.arguments for block in blocks if isinstance(block, ToolCall)] == ['{"path":"x"}']
    assert [block.text for block in blocks if isinstance(block, Text)] == ["The answer."]


def test_a_call_of_which_nothing_but_its_name_came_is_not_whole() -> None:
    started = {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "rm", "arguments": ""},
    }
    done = {"type": "response.completed", "response": {"id": "r", "status": "completed"}}
    assert not any(isinstance(part, ToolCall) for part in read([started, done]))
