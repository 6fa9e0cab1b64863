"""Writing Anthropic Messages: every rule of the request, validated by the official SDK's own types.

The validator is the SDK's type for a streaming request, made strict (tests/models/sdk_judges.py). The sampling
parameters, which the SDK no longer has and older models still accept, are removed before validation.

A reply that goes back is compared with what the SDK itself makes of the same stream.
"""

from __future__ import annotations

from base64 import b64encode
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.models.sdk_judges import make_event_judge, make_request_judge
from tests.support.examples import count_examples

from indelible.content import (
    Block,
    File,
    Message,
    Reasoning,
    Source,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    decode_blocks,
    encode,
)
from indelible.content.assemble import assemble, finalize, to_messages
from indelible.errors import ModelFailed
from indelible.loop.prompt.build import build_prompt, mark_cache
from indelible.models.http.http_model import WireRequest
from indelible.models.http.sse import SseEvent
from indelible.models.profile import Effort, Profile
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.models.providers.anthropic.request import PausedCall, write_call
from indelible.models.providers.anthropic.response import AnthropicReader

EXAMPLES = settings(max_examples=count_examples(30))

Json = dict[str, Any]

LEVEL = Profile(effort="level", max_output_tokens=64_000, samples=False)
BUDGET = Profile(effort="budget", max_output_tokens=64_000)
PLAIN = Profile(effort="none", max_output_tokens=8192)
ADD = ToolSpec(
    name="add", description="Adds.", input_schema={"type": "object", "properties": {"a": {"type": "number"}}}
)
MARK = {"type": "ephemeral"}

# --- the judge ---------------------------------------------------------------------------


SAMPLING = {"temperature", "top_p", "top_k"}


def judge(body: Json) -> None:
    """Fail if the SDK's types do not allow this body."""
    sent = msgspec.json.decode(msgspec.json.encode(body))
    known = {name: value for name, value in sent.items() if name not in SAMPLING}
    make_request_judge("anthropic").validate_python(known, strict=True)


def write(
    *messages: PromptMessage, profile: Profile = BUDGET, tools: list[ToolSpec] | None = None, **parameters: Any
) -> WireRequest:
    call = Call(messages=list(messages), tools=tools or [], options=CallOptions(parameters=parameters))
    written = write_call(call, "claude-test", profile)
    judge(written.body)
    return written


def system(*blocks: Block | str, cache: bool = False) -> PromptMessage:
    return make_message("system", *blocks, cache=cache)


def user(*blocks: Block | str, cache: bool = False) -> PromptMessage:
    return make_message("user", *blocks, cache=cache)


def assistant(*blocks: Block | str, cache: bool = False) -> PromptMessage:
    return make_message("assistant", *blocks, cache=cache)


def tool(*blocks: Block, cache: bool = False) -> PromptMessage:
    return make_message("tool", *blocks, cache=cache)


def make_message(role: Any, *blocks: Block | str, cache: bool) -> PromptMessage:
    return PromptMessage(role=role, blocks=[Text(b) if isinstance(b, str) else b for b in blocks], cache=cache)


def text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def test_the_judge_refuses_what_the_sdk_does_not_know() -> None:
    fine: Json = {"model": "m", "max_tokens": 1, "stream": True, "messages": [{"role": "user", "content": [text("x")]}]}
    judge(fine)
    citation = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None}
    for broken in (
        {"max_tokens": "1"},
        {"stream": False},
        {"messages": [{"role": "tool", "content": []}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": [text("x", extra=1)]}]},
        {"messages": [{"role": "user", "content": [text("x", citations=[citation])]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}]},
        {"system": [{"type": "image"}]},
        {"thinking": {"type": "enabled"}},
        {"brand_new": 1},
    ):
        with pytest.raises(ValidationError):
            judge({**fine, **broken})


# --- the whole ---------------------------------------------------------------------------


def test_plain_call_is_written_in_full() -> None:
    written = write(system("Be kind."), user("Hello"), profile=PLAIN)
    assert (written.path, written.headers) == ("/v1/messages", {"anthropic-version": "2023-06-01"})
    assert written.body == {
        "model": "claude-test",
        "max_tokens": 8192,
        "stream": True,
        "system": [text("Be kind.")],
        "messages": [{"role": "user", "content": [text("Hello")]}],
    }
    assert written.warnings == []


def test_system_messages_are_hoisted_wherever_they_stand() -> None:
    body = write(system("one", "two"), user("a"), system("three"), user("b")).body
    assert body["system"] == [text("one"), text("two"), text("three")]
    assert body["messages"] == [{"role": "user", "content": [text("a"), text("b")]}]


def test_neighbours_of_one_voice_are_one_message() -> None:
    body = write(
        user("a"),
        user("b"),
        assistant("c"),
        assistant(ToolCall("t1", "add", "{}"), ToolCall("t2", "add", '{"a": 1}')),
        tool(ToolResult("t1", "add", "1")),
        tool(ToolResult("t2", "add", "2")),
        user("d"),
        tools=[ADD],
    ).body
    assert body["messages"] == [
        {"role": "user", "content": [text("a"), text("b")]},
        {
            "role": "assistant",
            "content": [
                text("c"),
                {"type": "tool_use", "id": "t1", "name": "add", "input": {}},
                {"type": "tool_use", "id": "t2", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "1"},
                {"type": "tool_result", "tool_use_id": "t2", "content": "2"},
                text("d"),
            ],
        },
    ]


def test_answers_to_calls_come_first_whoever_spoke_first() -> None:
    body = write(user("a"), assistant(ToolCall("t", "add", "{}")), user("wait"), tool(ToolResult("t", "add", "1"))).body
    assert [block["type"] for block in body["messages"][-1]["content"]] == ["tool_result", "text"]


def test_blank_text_and_messages_without_content_are_left_out() -> None:
    body = write(system(" "), user("a"), assistant(" ", Source(url="https://x.test")), user("\n", "b")).body
    assert "system" not in body
    assert body["messages"] == [{"role": "user", "content": [text("a"), text("b")]}]


def test_reply_that_is_to_be_continued_does_not_end_with_a_space() -> None:
    body = write(user("a "), assistant("b ", "c \n")).body
    assert [message["content"] for message in body["messages"]] == [[text("a ")], [text("b "), text("c")]]


def test_same_call_gives_the_same_bytes() -> None:
    call = Call(messages=[user("a", cache=True)], tools=[ADD], options=CallOptions(parameters={"stop": ["x"]}))
    first, second = (msgspec.json.encode(write_call(call, "m", LEVEL).body) for _ in range(2))
    assert first == second


# --- cache markers -----------------------------------------------------------------------


def test_s12_s44_markers_stand_on_their_messages_after_merging() -> None:
    history = [
        Message(role="system", blocks=[Text("s1")]),
        Message(role="system", blocks=[Text("s2a"), Text("s2b")]),
        Message(role="user", blocks=[Text("u1")]),
        Message(role="assistant", blocks=[Text("a1"), Text("a2")]),
        Message(role="user", blocks=[Text("u2")]),
    ]
    prompt = mark_cache(build_prompt(history, provider="anthropic"), provider="anthropic")
    assert [message.cache for message in prompt] == [False, True, False, True, True]
    body = write(*prompt).body
    assert body["system"] == [text("s1"), text("s2a"), text("s2b", cache_control=MARK)]
    assert [message["content"] for message in body["messages"]] == [
        [text("u1")],
        [text("a1"), text("a2", cache_control=MARK)],
        [text("u2", cache_control=MARK)],
    ]


def test_marker_stays_on_its_own_message_when_neighbours_merge() -> None:
    body = write(user("a", cache=True), user("b"), user("c", cache=True)).body
    assert body["messages"][0]["content"] == [text("a", cache_control=MARK), text("b"), text("c", cache_control=MARK)]


def test_marker_goes_to_the_last_block_that_can_carry_it() -> None:
    thinking = Reasoning("hm", signature="S")
    body = write(
        user("a"),
        assistant("b", thinking, Reasoning(metadata={"redacted_thinking": "R"}), Source(), " ", cache=True),
        assistant(thinking, cache=True),
        user("c"),
    ).body
    assert body["messages"][1]["content"] == [
        text("b", cache_control=MARK),
        {"type": "thinking", "thinking": "hm", "signature": "S"},
        {"type": "redacted_thinking", "data": "R"},
        {"type": "thinking", "thinking": "hm", "signature": "S"},
    ]


@pytest.mark.parametrize("cached", ["call", "result"])
def test_calls_and_results_can_carry_a_marker(cached: str) -> None:
    body = write(
        user("a"),
        assistant(ToolCall("t", "add", "{}"), cache=cached == "call"),
        tool(ToolResult("t", "add", ""), cache=cached == "result"),
    ).body
    marked = [block["type"] for message in body["messages"] for block in message["content"] if "cache_control" in block]
    assert marked == ["tool_use" if cached == "call" else "tool_result"]


def test_marking_does_not_touch_what_is_marked() -> None:
    upload = File("application/octet-stream", metadata={"type": "container_upload", "file_id": "f"})
    write(user("a"), assistant(upload, cache=True), user("b"))
    assert upload.metadata == {"type": "container_upload", "file_id": "f"}


# --- blocks ------------------------------------------------------------------------------


def test_reasoning_goes_back_only_if_it_is_anthropics() -> None:
    body = write(
        user("a"),
        assistant(
            Reasoning("unsigned"),
            Reasoning("foreign", metadata={"encrypted_content": "…"}),
            Reasoning("", signature="S"),
            Reasoning(metadata={"redacted_thinking": "R"}),
            Reasoning("odd", metadata={"redacted_thinking": 7}),
            "b",
        ),
        user("c"),
    ).body
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "", "signature": "S"},
        {"type": "redacted_thinking", "data": "R"},
        text("b"),
    ]


@pytest.mark.parametrize("citations", ["?", [], [7], [{"cited_text": "x"}], None])
def test_citations_of_another_shape_are_left_out(citations: object) -> None:
    body = write(user("a"), assistant(Text("b", metadata={"citations": citations, "annotations": []})), user("c")).body
    assert body["messages"][1]["content"] == [text("b")]


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '"x"', "null", "\ud800", "[" * 100_000])
def test_input_of_a_call_is_always_an_object(arguments: str) -> None:
    body = write(user("a"), assistant(ToolCall("t", "add", arguments)), tool(ToolResult("t", "add", "1"))).body
    assert body["messages"][1]["content"][0]["input"] == {}


def test_caller_of_a_call_goes_back_and_other_metadata_does_not() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    call = ToolCall("t", "add", "{}", metadata={"caller": caller, "item_id": "fc_1", "toolset_name": 7})
    body = write(user("a"), assistant(call), tool(ToolResult("t", "add", "1"))).body
    assert body["messages"][1]["content"] == [
        {"type": "tool_use", "id": "t", "name": "add", "input": {}, "caller": caller}
    ]


@pytest.mark.parametrize(
    ("result", "written"),
    [
        (ToolResult("t", "add", "3"), {"content": "3"}),
        (ToolResult("t", "add", "no", is_error=True), {"content": "no", "is_error": True}),
        (ToolResult("t", "add", ""), {}),
        (
            ToolResult("t", "add", " ", is_error=True),
            {"content": "The tool failed without a message.", "is_error": True},
        ),
        (ToolResult("t", "add", {"a": [1]}), {"content": '{"a":[1]}'}),
    ],
    ids=["plain", "error", "empty", "empty error", "json"],
)
def test_result_says_what_came_and_whether_it_failed(result: ToolResult, written: Json) -> None:
    body = write(user("a"), assistant(ToolCall("t", "add", "{}")), tool(result)).body
    assert body["messages"][-1]["content"] == [{"type": "tool_result", "tool_use_id": "t", **written}]


OWN_CALL = ToolCall("s1", "web_search", '{"query":"q"}', provider_executed=True, metadata={"type": "server_tool_use"})
OWN_RESULT = ToolResult(
    "s1",
    "web_search",
    {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
    is_error=True,
    provider_executed=True,
    metadata={"type": "web_search_tool_result"},
)


def test_the_providers_own_call_and_result_go_back_as_they_came() -> None:
    body = write(user("a"), assistant(OWN_CALL, OWN_RESULT, "b"), user("c")).body
    assert body["messages"][1]["content"][:2] == [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": OWN_RESULT.output},
    ]


@pytest.mark.parametrize("metadata", [None, {}, {"type": 7}, {"type": "tool_use"}, {"item": "ws_1"}])
@pytest.mark.parametrize("spoilt", ["call", "result"])
def test_own_call_or_result_of_another_shape_is_sent_as_text_with_its_other_half(
    metadata: Json | None, spoilt: str
) -> None:
    call = msgspec.structs.replace(OWN_CALL, metadata=metadata) if spoilt == "call" else OWN_CALL
    result = msgspec.structs.replace(OWN_RESULT, metadata=metadata) if spoilt == "result" else OWN_RESULT
    body = write(user("a"), assistant(call, result), user("c")).body
    assert body["messages"][1]["content"] == [
        text("[Used the tool web_search.]"),
        text("[The tool web_search returned something that cannot be shown.]"),
    ]
    shown = msgspec.structs.replace(result, output="Sunny.", metadata=None)
    body = write(user("a"), assistant(call, shown), user("c")).body
    assert body["messages"][1]["content"][1] == text("[The tool web_search returned: Sunny.]")


# --- files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "written"),
    [
        (
            File("image/png", data=b"\x89PNG"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
        ),
        (
            File("IMAGE/JPG; q=1", data=b"x", url="https://x.test/a"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "eA=="}},
        ),
        (
            File("image/avif", url="https://x.test/a"),
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a"}},
        ),
        (
            File("application/pdf", name="a.pdf", data=b"%PDF"),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": b64encode(b"%PDF").decode()},
                "title": "a.pdf",
            },
        ),
        (
            File("application/pdf", name=" ", url="https://x.test/a.pdf"),
            {"type": "document", "source": {"type": "url", "url": "https://x.test/a.pdf"}},
        ),
        (
            File("text/csv; charset=utf-8", name="a.csv", data=b"a,\xff"),
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "a,\ufffd"},
                "title": "a.csv",
            },
        ),
        (
            File("application/json", data=b"{}"),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "{}"}},
        ),
        (
            File("image/svg+xml", name="a.svg", data=b"<svg/>"),
            text("[A file that cannot be sent: a.svg (image/svg+xml)]"),
        ),
        (File("image/png", file_id="f1"), text("[A file that cannot be sent: unnamed (image/png)]")),
        (File("text/plain", data=b" "), text("[A file that cannot be sent: unnamed (text/plain)]")),
        (
            File("text/html", name="a", url="https://x.test/a"),
            text("[A file that cannot be sent: a (text/html) at https://x.test/a]"),
        ),
        (
            File("image/png", url="file:///etc/passwd"),
            text("[A file that cannot be sent: unnamed (image/png)]"),
        ),
        (
            File("application/zip", name="z", data=b"PK", metadata={"type": "container_upload", "file_id": "f"}),
            text("[A file that cannot be sent: z (application/zip)]"),
        ),
    ],
    ids=lambda value: value.media_type if isinstance(value, File) else None,
)
def test_file_goes_as_what_it_is_or_is_named(file: File, written: Json) -> None:
    assert write(user(file)).body["messages"][0]["content"] == [written]


# --- tools and parameters ----------------------------------------------------------------


def test_tools_keep_their_order_and_the_providers_own_pass_as_they_are() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    tools = [ToolSpec(name="now"), ToolSpec(name="web_search", provider_executed=True, options=search), ADD]
    assert write(user("a"), tools=tools).body["tools"] == [
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},
        search,
        {"name": "add", "description": "Adds.", "input_schema": ADD.input_schema},
    ]


@pytest.mark.parametrize(
    ("parameters", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        (
            {"tool_choice": "add", "parallel_tool_calls": False},
            {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
        ),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"parallel_tool_calls": True}, None),
    ],
    ids=str,
)
def test_choice_of_tools_is_sent_in_anthropics_words(parameters: Json, choice: Json | None) -> None:
    written = write(user("a"), tools=[ADD], **parameters)
    assert written.body.get("tool_choice") == choice
    assert written.warnings == []


def test_choice_without_tools_is_not_sent() -> None:
    written = write(user("a"), tool_choice="auto", parallel_tool_calls=False)
    assert ("tool_choice" in written.body, written.warnings) == (False, [])
    written = write(user("a"), tool_choice="required")
    assert "tool_choice" not in written.body
    assert written.warnings == ["The parameter tool_choice was not sent: there are no tools."]


def test_every_parameter_has_its_place() -> None:
    written = write(
        user("a"),
        profile=PLAIN,
        max_tokens=5,
        stop=["END", " "],
        user="u1",
        service_tier="auto",
        temperature=1,
        top_k=4,
    )
    sent = {name: value for name, value in written.body.items() if name not in {"model", "stream", "messages"}}
    assert sent == {
        "max_tokens": 5,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u1"},
        "service_tier": "auto",
        "temperature": 1,
        "top_k": 4,
    }
    assert written.warnings == ["A blank text of the parameter stop was not sent: Anthropic rejects blank ones."]


def test_parameter_without_a_place_is_warned_of() -> None:
    written = write(user("a"), seed=1, colour="red")
    assert written.warnings == [
        "The parameter seed was not sent: Anthropic has no such parameter.",
        "The parameter colour was not sent: unknown parameter.",
    ]
    with pytest.raises(ModelFailed, match="max_tokens must be a whole number"):
        write(user("a"), max_tokens="many")


@pytest.mark.parametrize(
    ("profile", "parameters", "sent", "unsent"),
    [
        (BUDGET, {"temperature": 0.3, "top_k": 5}, {"temperature": 0.3, "top_k": 5}, []),
        (BUDGET, {"top_p": 0.5}, {"top_p": 0.5}, []),
        (BUDGET, {"temperature": 0.3, "top_p": 0.5}, {"temperature": 0.3}, ["top_p"]),
        (
            BUDGET,
            {"effort": "low", "temperature": 0.3, "top_k": 5, "top_p": 0.5},
            {},
            ["temperature", "top_p", "top_k"],
        ),
        (BUDGET, {"effort": "low", "top_p": 0.97}, {"top_p": 0.97}, []),
        (BUDGET, {"effort": "none", "temperature": 0.3}, {"temperature": 0.3}, []),
        (LEVEL, {"temperature": 0.3, "top_p": 0.97, "top_k": 5}, {}, ["temperature", "top_p", "top_k"]),
    ],
    ids=str,
)
def test_sampling_is_sent_where_the_model_takes_it(
    profile: Profile, parameters: Json, sent: Json, unsent: list[str]
) -> None:
    written = write(user("a"), profile=profile, **parameters)
    assert {name: value for name, value in written.body.items() if name in SAMPLING} == sent
    assert [warning.split()[2] for warning in written.warnings] == unsent


# --- thinking ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effort", "emitted"),
    [("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "high"), ("xhigh", "xhigh"), ("max", "max")],
)
def test_newer_models_get_a_level(effort: str, emitted: str) -> None:
    written = write(user("a"), profile=LEVEL, effort=effort)
    assert written.body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert written.body["output_config"] == {"effort": emitted}
    assert written.body["max_tokens"] == 64_000
    assert written.warnings == []


def test_newer_models_can_be_asked_not_to_think() -> None:
    body = write(user("a"), profile=LEVEL, effort="none").body
    assert body["thinking"] == {"type": "disabled"}
    assert "output_config" not in body


@pytest.mark.parametrize("profile", [LEVEL, BUDGET, PLAIN], ids=["level", "budget", "none"])
def test_a_request_has_nothing_about_thinking_unless_it_is_asked_for(profile: Profile) -> None:
    assert not {"thinking", "output_config"} & set(write(user("a"), profile=profile).body)


@pytest.mark.parametrize(
    ("effort", "max_tokens", "budget", "raised_to"),
    [
        ("low", None, 2048, 64_000),
        ("medium", None, 8192, 64_000),
        ("high", None, 16_384, 64_000),
        ("xhigh", None, 32_768, 64_000),
        ("max", None, 32_768, 64_000),
        ("high", 10_000, 8976, 10_000),
        ("low", 2048, 1024, 2048),
        ("low", 2047, 1024, 3071),
        ("max", 1, 1024, 1025),
    ],
)
def test_older_models_get_a_budget_that_leaves_room_for_the_answer(
    effort: str, max_tokens: int | None, budget: int, raised_to: int
) -> None:
    limit: Json = {} if max_tokens is None else {"max_tokens": max_tokens}
    written = write(user("a"), effort=effort, **limit)
    assert written.body["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert written.body["max_tokens"] == raised_to
    assert 1024 <= budget < raised_to
    assert written.warnings == []


@pytest.mark.parametrize("effort", ["none", "minimal"])
def test_older_models_do_not_think_for_next_to_nothing(effort: str) -> None:
    assert "thinking" not in write(user("a"), effort=effort).body


@pytest.mark.parametrize(("effort", "warned"), [("high", True), ("none", False)])
def test_model_that_does_not_think_is_not_asked_to(effort: str, warned: bool) -> None:
    written = write(user("a"), profile=PLAIN, effort=effort)
    assert "thinking" not in written.body
    assert written.warnings == [
        "The parameter effort was not sent: this model does not think before it replies."
    ] * int(warned)


ALWAYS = Profile(effort="level", max_output_tokens=64_000, samples=False, always_thinks=True)


@pytest.mark.parametrize("profile", [ALWAYS, BUDGET], ids=["always", "budget"])
@pytest.mark.parametrize("choice", ["required", "add"])
def test_model_that_thinks_is_not_forced_to_use_a_tool(profile: Profile, choice: str) -> None:
    written = write(
        user("a"), profile=profile, tools=[ADD], effort="low", tool_choice=choice, parallel_tool_calls=False
    )
    assert written.body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert written.warnings == [
        "The parameter tool_choice was not sent: Anthropic cannot force a tool while the model thinks."
    ]


def test_model_that_thinks_as_it_likes_may_be_forced_to_use_a_tool() -> None:
    written = write(user("a"), profile=LEVEL, tools=[ADD], effort="low", tool_choice="add")
    assert written.body["tool_choice"] == {"type": "tool", "name": "add"}
    assert written.warnings == []


def test_model_that_always_thinks_is_not_asked_to_stop_it() -> None:
    written = write(user("a"), profile=ALWAYS, effort="none")
    assert written.body["thinking"]["type"] == "adaptive"
    assert written.body["output_config"] == {"effort": "low"}
    assert written.warnings == ["The parameter effort was sent as low: this model always thinks."]
    assert write(user("a"), profile=LEVEL, effort="none").body["thinking"] == {"type": "disabled"}


def test_thinking_that_no_longer_fits_is_dropped_and_not_refused() -> None:
    bound = Profile(effort="level", max_output_tokens=64_000, binds_thinking=True)
    thought = [user("a"), assistant(Reasoning("hm", signature="S"), "b"), user("c")]
    written = write_call(Call(messages=thought), "claude-test", bound)  # only the SDK's beta types know of it
    assert written.body["thinking"] == {
        "type": "adaptive",
        "block_binding": {"prefix_mismatch_behavior": "drop_block"},
    }
    assert written.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"
    for quiet in (write(user("a"), profile=bound), write(user("a"), assistant("b"), user("c"), profile=bound)):
        assert "thinking" not in quiet.body
        assert "anthropic-beta" not in quiet.headers


CALLED, ANSWERED = ToolCall("t", "add", "{}"), ToolResult("t", "add", "1")
THOUGHT = Reasoning("hm", signature="S")
REDACTED = Reasoning(metadata={"redacted_thinking": "R"})


@pytest.mark.parametrize(
    ("messages", "thinks"),
    [
        ([assistant(THOUGHT, CALLED), tool(ANSWERED)], True),
        ([assistant(REDACTED, CALLED), tool(ANSWERED)], True),
        ([assistant(CALLED), tool(ANSWERED)], False),
        ([assistant("b", THOUGHT, CALLED), tool(ANSWERED)], False),
        ([assistant(CALLED), tool(ANSWERED), user("and?")], False),
        ([assistant(CALLED), tool(ANSWERED), assistant("b"), user("c")], True),
        ([assistant("b"), user("c")], True),
        ([assistant("b")], False),
        ([assistant(THOUGHT, "b")], True),
    ],
)
def test_budget_is_not_given_while_a_reply_goes_on_that_began_without_thinking(
    messages: list[PromptMessage], thinks: bool
) -> None:
    written = write(user("a"), *messages, effort="high", tools=[ADD])
    assert ("thinking" in written.body) == thinks
    unsent = "The parameter effort was not sent: this reply began without thinking."
    assert written.warnings == ([] if thinks else [unsent])
    assert "thinking" in write(user("a"), *messages, effort="high", tools=[ADD], profile=LEVEL).body


# --- what comes back goes back -----------------------------------------------------------

SEARCHED: list[Json] = [
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "redacted_thinking", "data": "EmwKAhgB"},
    {"type": "text", "text": ""},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}, "caller": {"type": "direct"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "caller": {"type": "direct"},
        "content": [
            {
                "type": "web_search_result",
                "title": "W",
                "url": "https://w.test",
                "encrypted_content": "E==",
                "page_age": None,
            }
        ],
    },
    {"type": "text", "text": "", "citations": []},
    {"type": "server_tool_use", "id": "srvtoolu_2", "name": "bash_code_execution", "input": {}},
    {
        "type": "bash_code_execution_tool_result",
        "tool_use_id": "srvtoolu_2",
        "content": {"type": "bash_code_execution_tool_result_error", "error_code": "unavailable"},
    },
    {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}, "caller": {"type": "direct"}},
]
CITATIONS: list[Json] = [
    {
        "type": "web_search_result_location",
        "cited_text": "It is sunny.",
        "url": "https://w.test",
        "title": "W",
        "encrypted_index": "Eo8B",
    },
    {
        "type": "char_location",
        "cited_text": "Sun.",
        "document_index": 0,
        "document_title": None,
        "start_char_index": 0,
        "end_char_index": 4,
    },
]
DELTAS: list[tuple[int, Json]] = [
    (0, {"type": "thinking_delta", "thinking": "I should "}),
    (0, {"type": "thinking_delta", "thinking": "look."}),
    (0, {"type": "signature_delta", "signature": "EqQBCgIYAhIM"}),
    (2, {"type": "text_delta", "text": "Let me look."}),
    (3, {"type": "input_json_delta", "partial_json": '{"query": "weather"}'}),
    (5, {"type": "citations_delta", "citation": CITATIONS[0]}),
    (5, {"type": "citations_delta", "citation": CITATIONS[1]}),
    (5, {"type": "text_delta", "text": "It is "}),
    (5, {"type": "text_delta", "text": "sunny."}),
    (6, {"type": "input_json_delta", "partial_json": '{"command": "date"}'}),
    (8, {"type": "input_json_delta", "partial_json": '{"a": '}),
    (8, {"type": "input_json_delta", "partial_json": "1}"}),
]


def make_stream() -> list[Json]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test", "content": []}
    usage = {"input_tokens": 5, "output_tokens": 1}
    stream: list[Json] = [{"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}]
    for index, block in enumerate(SEARCHED):
        stream.append({"type": "content_block_start", "index": index, "content_block": block})
        stream += [{"type": "content_block_delta", "index": at, "delta": each} for at, each in DELTAS if at == index]
        stream.append({"type": "content_block_stop", "index": index})
    stream.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 90}})
    return [*stream, {"type": "message_stop"}]


def read_stream(reader: AnthropicReader, stream: list[Json]) -> list[Block]:
    parts = [part for each in stream for part in reader.read(SseEvent(each["type"], msgspec.json.encode(each), None))]
    return assemble(parts)


def accumulate(stream: list[Json]) -> list[Json]:
    """The content of the reply as the SDK itself collects it."""
    accumulate_event = resolve_name("anthropic.lib.streaming._messages:accumulate_event")
    snapshot, buffers = None, dict[int, bytes]()
    for each in stream:
        event = make_event_judge("anthropic").validate_python(each)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    content: list[Json] = snapshot.to_dict(mode="json", exclude_none=True)["content"]
    return content


def test_reply_goes_back_as_the_sdk_itself_would_send_it() -> None:
    stream = make_stream()
    reader = AnthropicReader(Call(messages=[]))
    blocks = decode_blocks(encode(finalize(read_stream(reader, stream), None, None)))
    replies = to_messages(blocks, provider="anthropic", model="claude-test")
    history = [
        Message(role="user", blocks=[Text("Weather?")]),
        *replies,
        Message(role="tool", blocks=[ToolResult("toolu_1", "add", "2")]),
    ]
    prompt = build_prompt(history, provider="anthropic", model="claude-test")
    body = write(*prompt, profile=BUDGET, effort="low", tools=[ADD]).body
    sent = body["messages"][1]["content"]
    assert sent[0] == {"type": "thinking", "thinking": "I should look.", "signature": "EqQBCgIYAhIM"}
    assert sent[5]["citations"] == CITATIONS
    without_nulls = msgspec.json.decode(msgspec.json.encode(sent))
    del without_nulls[4]["content"][0]["page_age"]
    del without_nulls[5]["citations"][1]["document_title"]
    assert without_nulls == accumulate(stream)
    assert body["thinking"]["type"] == "enabled"


def test_field_of_a_citation_that_requests_do_not_have_stays_behind() -> None:
    said = Text("Sun.", metadata={"citations": [{**CITATIONS[1], "file_id": None}]})
    body = write(user("a"), assistant(said), user("b")).body
    assert body["messages"][1]["content"] == [text("Sun.", citations=[CITATIONS[1]])]


def test_paused_reply_goes_back_as_it_came_into_its_container() -> None:
    search = ToolSpec(
        name="web_search", provider_executed=True, options={"type": "web_search_20250305", "name": "web_search"}
    )
    reader = AnthropicReader(Call(messages=[user("Weather?")], tools=[search]))
    *stream, _, stop = make_stream()
    upload = {"type": "container_upload", "file_id": "file_1"}
    pending = {"type": "server_tool_use", "id": "srvtoolu_3", "name": "web_search", "input": {"query": "q"}}
    for index, block in ((9, upload), (10, pending)):
        stream.append({"type": "content_block_start", "index": index, "content_block": block})
        stream.append({"type": "content_block_stop", "index": index})
    pause = {"stop_reason": "pause_turn", "container": {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}}
    read_stream(reader, [*stream, {"type": "message_delta", "delta": pause}, stop])
    asked = reader.resume()
    assert isinstance(asked, PausedCall)
    body = write_call(asked, "claude-test", LEVEL).body
    judge(body)
    assert body["container"] == "container_1"
    assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
    assert [block["type"] for block in body["messages"][1]["content"]] == [
        *(block["type"] for block in SEARCHED),
        "container_upload",
        "server_tool_use",
    ]
    assert body["messages"][1]["content"][-2:] == [upload, pending]


# --- any history -------------------------------------------------------------------------

_texts = st.text(st.sampled_from("ab \n\ud800é"), max_size=4)
_ids = st.sampled_from(["c1", "c2", "s1", "a:b", ""])
_metadata = st.sampled_from(
    [
        *(None, {}, {"type": "server_tool_use"}, {"type": "web_search_tool_result"}, {"type": 7}, {"item": "i1"}),
        *({"citations": CITATIONS}, {"citations": "?"}, {"redacted_thinking": "R"}, {"caller": {"type": "direct"}}),
        {"compaction": {"keep_last": 2}},
    ]
)
_files = st.builds(
    File,
    st.sampled_from(["image/png", "image/heic", "application/pdf", "text/plain", "a/b"]),
    name=st.none() | _texts,
    url=st.sampled_from([None, "https://x.test", "?"]),
    data=st.sampled_from([None, b"", b" ", b"x\xff"]),
    file_id=st.sampled_from([None, "f1"]),
)
_own_output = st.just({"type": "web_search_tool_result_error", "error_code": "unavailable"})
_blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, _texts, _metadata),
    st.builds(Reasoning, _texts, signature=st.sampled_from([None, "S"]), metadata=_metadata),
    st.builds(
        ToolCall, _ids, st.sampled_from(["add", "é"]), st.sampled_from(["{}", '{"a":1}', "{"]), metadata=_metadata
    ),
    st.builds(ToolResult, _ids, st.just("add"), _texts, st.booleans(), metadata=_metadata),
    st.builds(
        ToolCall,
        _ids,
        st.just("web_search"),
        st.just("{}"),
        st.just(value=True),
        metadata=st.sampled_from([None, {"type": "server_tool_use"}]),
    ),
    st.builds(
        ToolResult,
        _ids,
        st.just("web_search"),
        _own_output,
        st.booleans(),
        st.just(value=True),
        st.sampled_from([None, {"type": "web_search_tool_result"}]),
    ),
    st.builds(Source, url=st.none() | _texts),
    _files,
)
_messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "assistant", "tool", "notice"]),
    blocks=st.lists(_blocks, max_size=4),
    partial=st.booleans(),
    provider=st.sampled_from([None, "anthropic", "openai"]),
)


@given(
    st.lists(_messages, max_size=7),
    st.sampled_from(["level", "budget", "none"]),
    st.sampled_from([None, "none", "high"]),
)
@EXAMPLES
def test_whatever_happened_the_request_is_one_that_the_sdk_allows(
    history: list[Message], effort: Effort, wish: str | None
) -> None:
    prompt = mark_cache(build_prompt(history, provider="anthropic"), provider="anthropic")
    wishes: Json = {"effort": wish} if wish else {}
    body = write(*prompt, profile=Profile(effort=effort), **wishes).body
    roles = [message["role"] for message in body["messages"]]
    assert all(role != following for role, following in pairwise(roles))
    assert roles[-1:] in ([], ["user"])
    blocks = [*body.get("system", []), *(block for message in body["messages"] for block in message["content"])]
    assert all(block["text"].strip() for block in blocks if block["type"] == "text")
    marked = [block for block in blocks if "cache_control" in block]
    assert len(marked) == sum(message.cache for message in prompt)
    assert not {"thinking", "redacted_thinking"} & {block["type"] for block in marked}
    waiting: list[str] = []
    for message in body["messages"]:
        results = [block for block in message["content"] if block["type"] == "tool_result"]
        assert message["content"][: len(results)] == results
        assert sorted(result["tool_use_id"] for result in results) == sorted(waiting)
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        assert message["content"][-1]["type"] not in {"thinking", "redacted_thinking"}
