"""Writing the Responses API: from a call to a body.

The validator is the SDK's type for a streaming request, made strict (tests/models/sdk_judges.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.models.sdk_judges import make_request_judge
from tests.models.test_openai_responses import (
    MESSAGE_ID,
    REASONING_ID,
    SEARCH_ID,
    STREAMS,
    Event,
    make_stream,
    read,
    stream_code,
    stream_file_search,
    stream_image,
    stream_mcp_call,
    stream_mcp_tools,
    stream_message,
    stream_reasoning,
    stream_web_search,
)
from tests.support.examples import count_examples

from indelible.content import Block, File, Message, Reasoning, Source, Text, ToolCall, ToolResult, ToolSpec
from indelible.content.assemble import assemble, finalize, to_messages
from indelible.errors import ModelFailed
from indelible.loop.prompt.build import CUT_REMARK, build_prompt
from indelible.models.http.http_model import WireRequest
from indelible.models.protocol import EFFORTS, Call, CallOptions, PromptMessage
from indelible.models.providers.openai_responses.request import write_call
from indelible.testing.legality import assert_legal

Item = dict[str, Any]

# --- the judge ---------------------------------------------------------------------------


def assert_accepted(body: Item) -> None:
    """Fail if the SDK's types do not allow this body, as it goes over the wire."""
    make_request_judge("openai").validate_json(msgspec.json.encode(body), strict=True)


def test_the_judge_looks_at_everything() -> None:
    good: Item = {
        "model": "m",
        "stream": True,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "?"}]}],
    }
    assert_accepted(good)
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "?"}]}
    assert_accepted({**good, "input": [reasoning]})
    bad: list[Item] = [
        {"stream": False},
        {"temperature": "hot"},
        {"max_tokens": 7},
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "?", "more": 1}]}]},
        {"input": [{"role": "user", "content": [{"type": "output_text", "text": "?"}]}]},
        {"input": [{"role": "nobody", "content": "?"}]},
        {"input": [{**reasoning, "summary": [{"type": "summary_text"}]}]},
        {"input": [{**reasoning, "summary": [7]}]},
        {"tools": [{"type": "function", "name": 7}]},
        {"tools": [7]},
        {"include": ["everything"]},
    ]
    for change in bad:
        with pytest.raises(ValidationError):
            assert_accepted({**good, **change})


def write(
    *messages: PromptMessage,
    tools: Sequence[ToolSpec] = (),
    model: str = "gpt-5",
    store: bool = False,
    previous: str | None = None,
    **parameters: Any,
) -> WireRequest:
    options = CallOptions(store=store, previous_response_id=previous, parameters=parameters)
    written = write_call(Call(messages=list(messages), tools=list(tools), options=options), model)
    assert_accepted(written.body)
    return written


def write_body(*messages: PromptMessage, **given: Any) -> Item:
    return write(*messages, **given).body


def write_items(*blocks: Block, role: Any = "assistant") -> list[Item]:
    return cast("list[Item]", write_body(PromptMessage(role=role, blocks=list(blocks)))["input"])


def ask(text: str) -> PromptMessage:
    return PromptMessage(role="user", blocks=[Text(text)])


# --- the frame ---------------------------------------------------------------------------


def test_a_plain_call() -> None:
    written = write(ask("Is it raining?"), model="gpt-4.1")
    assert written.path == "/responses"
    assert written.headers == {}
    assert written.warnings == []
    assert written.body == {
        "model": "gpt-4.1",
        "stream": True,
        "store": False,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Is it raining?"}]}],
    }


def test_the_same_call_gives_the_same_bytes() -> None:
    call = Call(
        messages=[ask("?"), *replay(STREAMS["a web search"]), ask("And?")],
        tools=[ToolSpec(name="b"), ToolSpec(name="a"), ToolSpec(name="file_search", provider_executed=True)],
        options=CallOptions(parameters={"effort": "low", "user": "u"}),
    )
    assert len({msgspec.json.encode(write_call(call, "gpt-5").body) for _ in range(5)}) == 1


@pytest.mark.parametrize("store", [True, False])
def test_a_request_always_says_whether_to_store(store: bool) -> None:
    assert write_body(ask("?"), store=store)["store"] is store


def test_s55_a_chained_call_says_store_and_names_the_previous_response() -> None:
    options = CallOptions(store=True, previous_response_id="resp_1")
    call = Call(messages=[ask("And tomorrow?")], options=options)
    body = write_call(call, "gpt-5").body
    assert_accepted(body)
    assert (body["store"], body["previous_response_id"]) == (True, "resp_1")
    assert "previous_response_id" not in write_body(ask("?"), store=True)
    assert call.options is options


def test_leading_system_messages_are_instructions_and_later_ones_the_developers() -> None:
    body = write_body(
        PromptMessage(role="system", blocks=[Text("Be kind."), Text("Be short.")]),
        PromptMessage(role="system", blocks=[Text("Be true.")]),
        ask("?"),
        PromptMessage(role="system", blocks=[Text("It is late.")]),
    )
    assert body["instructions"] == "Be kind.\n\nBe short.\n\nBe true."
    assert body["input"][1] == {"role": "developer", "content": "It is late."}
    assert len(body["input"]) == 2


def test_parameters_go_where_this_wire_has_them() -> None:
    written = write(
        ask("?"),
        tools=[ToolSpec(name="weather")],
        temperature=0.5,
        top_p=1,
        max_tokens=100,
        effort="high",
        verbosity="low",
        service_tier="flex",
        user="u-1",
        parallel_tool_calls=False,
        tool_choice="required",
    )
    assert written.warnings == []
    expected = {
        "temperature": 0.5,
        "top_p": 1,
        "max_output_tokens": 100,
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {"verbosity": "low"},
        "service_tier": "flex",
        "safety_identifier": "u-1",
        "parallel_tool_calls": False,
        "tool_choice": "required",
    }
    assert {name: written.body[name] for name in expected} == expected


def test_what_a_request_is_filed_under_reaches_the_provider() -> None:
    filed: dict[str, Any] = {"metadata": {"job": "7"}, "prompt_cache_key": "job-7", "safety_identifier": "s-1"}
    written = write(ask("?"), user="u-1", **filed)
    assert written.warnings == []
    assert {name: written.body[name] for name in filed} == filed
    assert "user" not in written.body


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_is_one_that_the_sdk_knows(effort: str) -> None:
    assert write_body(ask("?"), effort=effort)["reasoning"]["effort"] == effort


def test_what_this_wire_has_no_place_for_is_reported() -> None:
    warnings = write(ask("?"), seed=7, stop=["."], nonsense=1).warnings
    assert [warning.split()[2] for warning in warnings] == ["seed", "stop", "nonsense"]
    assert "OpenAI's Responses API has no such parameter" in warnings[0]


def test_a_value_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(ModelFailed) as caught:
        write(ask("?"), temperature="hot")
    assert caught.value.kind == "config"


@pytest.mark.parametrize(
    "model", ["o3", "o4-mini", "gpt-5", "gpt-5.6-sol", "openai/gpt-5-mini", "gpt-10", "codex-mini-latest"]
)
def test_models_that_reason_are_asked_for_it_encrypted(model: str) -> None:
    assert write_body(ask("?"), model=model)["include"] == ["reasoning.encrypted_content"]


@pytest.mark.parametrize(
    "model", ["gpt-4o", "gpt-4.1-mini", "gpt-5-chat-latest", "chatgpt-4o-latest", "my-own", "ollama"]
)
def test_models_that_may_not_reason_are_not_for_they_would_refuse(model: str) -> None:
    assert "include" not in write_body(ask("?"), model=model)
    assert write_body(ask("?"), model=model, effort="low")["include"] == ["reasoning.encrypted_content"]


# --- tools -------------------------------------------------------------------------------


def test_tools_are_functions() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [ToolSpec(name="weather", description="Tells it.", input_schema=schema), ToolSpec(name="now")]
    assert write_body(ask("?"), tools=tools)["tools"] == [
        {"type": "function", "name": "weather", "description": "Tells it.", "parameters": schema, "strict": False},
        {
            "type": "function",
            "name": "now",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        },
    ]


SEARCH = ToolSpec(name="web_search", provider_executed=True, options={"search_context_size": "low"})
PYTHON = ToolSpec(
    name="python", provider_executed=True, options={"type": "code_interpreter", "container": {"type": "auto"}}
)
FILES = ToolSpec(name="file_search", provider_executed=True, options={"vector_store_ids": ["vs_1"]})
WIKI = ToolSpec(
    name="wiki",
    provider_executed=True,
    options={"type": "mcp", "server_label": "wiki", "server_url": "https://wiki.example/mcp"},
)


def test_the_providers_own_tools_go_as_they_are_described() -> None:
    body = write_body(ask("?"), tools=[SEARCH, PYTHON, WIKI])
    assert body["tools"] == [{"type": "web_search", "search_context_size": "low"}, PYTHON.options, WIKI.options]


def test_results_that_come_only_on_request_are_requested() -> None:
    includes = write_body(ask("?"), tools=[PYTHON, SEARCH, FILES], model="gpt-4.1")["include"]
    assert includes == ["file_search_call.results", "code_interpreter_call.outputs"]


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("weather", {"type": "function", "name": "weather"}),
        ("python", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "code_interpreter"}]}),
        ("wiki", {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "wiki"}]}),
    ],
)
def test_a_tool_is_chosen_by_its_name(choice: str, written: Any) -> None:
    tools = [ToolSpec(name="weather"), PYTHON, WIKI]
    assert write_body(ask("?"), tools=tools, tool_choice=choice)["tool_choice"] == written


def test_without_tools_there_is_no_choice() -> None:
    written = write(ask("?"), tool_choice="required")
    assert "tool_choice" not in written.body
    assert written.warnings == []


# --- what users and tools say ------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "written"),
    [
        (
            File("image/png", data=b"\x89PNG"),
            {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBORw=="},
        ),
        (
            File("Image/JPEG; q=1", url="https://x.example/a.jpg"),
            {"type": "input_image", "detail": "auto", "image_url": "https://x.example/a.jpg"},
        ),
        (
            File("application/pdf", name="a.pdf", data=b"%PDF"),
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        ),
        (
            File("application/pdf", data=b"%PDF"),
            {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        ),
        (
            File("application/pdf", url="https://x.example/a.pdf"),
            {"type": "input_file", "file_url": "https://x.example/a.pdf"},
        ),
        (File("text/csv", name="a.csv", data=b"a,b"), {"type": "input_text", "text": "[The file a.csv]\na,b"}),
        (
            File("application/ld+json", name="a", data=b"{\xff}"),
            {"type": "input_text", "text": "[The file a]\n{\N{REPLACEMENT CHARACTER}}"},
        ),
    ],
)
def test_files_go_in_the_form_that_fits_them(file: File, written: Item) -> None:
    assert write_items(Text("Look:"), file, role="user")[0]["content"] == [
        {"type": "input_text", "text": "Look:"},
        written,
    ]


@pytest.mark.parametrize(
    "file",
    [
        File("image/png", name="a.png", file_id="f_1"),
        File("image/png", name="a.png", url="file:///etc/passwd"),
        File("image/tiff", name="a.png", data=b"II"),
        File("application/zip", name="a.png", data=b"PK"),
        File("video/mp4", name="a.png", url="https://x.example/a.mp4"),
        File("text/plain", name="a.png", url="https://x.example/a.txt"),
    ],
)
def test_files_that_can_not_be_sent_leave_a_note(file: File) -> None:
    [content] = write_items(file, role="user")[0]["content"]
    assert content == {"type": "input_text", "text": f"[A file that cannot be sent: a.png ({file.media_type})]"}


def test_results_answer_their_calls() -> None:
    results = [
        ToolResult("call_1", "weather", "Rain."),
        ToolResult("call_2", "weather", "", is_error=True),
        ToolResult("call_3", "weather", {"sky": "grey"}),
    ]
    assert write_items(*results, role="tool") == [
        {"type": "function_call_output", "call_id": "call_1", "output": "Rain."},
        {"type": "function_call_output", "call_id": "call_2", "output": ""},
        {"type": "function_call_output", "call_id": "call_3", "output": '{"sky":"grey"}'},
    ]


# --- replies -----------------------------------------------------------------------------

THOUGHT = Reasoning("Hm.", metadata={"id": "rs_1", "encrypted_content": "gAAA"})
THOUGHT_ITEM = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "gAAA",
}
SEARCHED = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "?"}}


def text_item(text: str, **labels: str) -> Item:
    return {"role": "assistant", "content": text, **labels}


def text_item_with_id(id: str, *texts: str, **labels: str) -> Item:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": content, **labels}


def own_call(item: Any = None, *, id: str = "ws_1") -> ToolCall:
    metadata = {"item": SEARCHED if item is None else item}
    return ToolCall(id, "web_search", '{"query":"?"}', provider_executed=True, standalone=True, metadata=metadata)


def test_a_reply_without_reasoning_goes_without_ids() -> None:
    blocks: list[Block] = [
        Text("Let me look.", {"id": "msg_1", "phase": "commentary"}),
        Source("s", url="https://x.example"),
        ToolCall("call_1", "weather", '{"city":"Oslo"}', metadata={"id": "fc_1"}),
        Text("So."),
    ]
    assert write_items(*blocks) == [
        text_item("Let me look.", phase="commentary"),
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Oslo"}'},
        text_item("So."),
    ]


def test_a_reply_with_reasoning_goes_with_all_its_ids() -> None:
    blocks: list[Block] = [
        THOUGHT,
        Text("One.", {"id": "msg_1", "phase": "commentary"}),
        Text("Two.", {"id": "msg_1", "phase": "commentary"}),
        ToolCall("call_1", "weather", "{}", metadata={"id": "fc_1"}),
    ]
    assert write_items(*blocks) == [
        THOUGHT_ITEM,
        text_item_with_id("msg_1", "One.", "Two.", phase="commentary"),
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": "{}"},
    ]


def test_reasoning_goes_only_with_its_encrypted_content() -> None:
    bare = [
        Reasoning("Hm."),
        Reasoning("Hm.", signature="of another wire"),
        Reasoning("Hm.", metadata={"id": "rs_1"}),
        Reasoning("Hm.", metadata={"id": "rs_1", "encrypted_content": None}),
        Reasoning("Hm.", metadata={"encrypted_content": "gAAA"}),
        Reasoning("Hm.", metadata={"id": ["rs_1"], "encrypted_content": {"a": 1}}),
    ]
    assert write_items(*bare, Text("Yes.", {"id": "msg_1"})) == [text_item("Yes.")]
    silent = Reasoning(metadata={"id": "rs_1", "encrypted_content": "gAAA"})
    assert write_items(silent, Text("Yes.", {"id": "msg_1"}))[0] == {**THOUGHT_ITEM, "summary": []}


def test_reasoning_is_left_out_with_all_its_ids_where_its_end_is_missing() -> None:
    """The provider refuses reasoning without what followed it, and what followed without the reasoning."""
    call = ToolCall("call_1", "weather", "{}", metadata={"id": "fc_1"})
    anonymous = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    assert write_items(THOUGHT, Text("It was cu"), call) == [text_item("It was cu"), anonymous]
    assert write_items(Text("Yes."), THOUGHT) == [text_item("Yes.")]
    assert write_items(THOUGHT, Text("It was cu"), own_call())[1] == text_item(
        '[Used the tool web_search: {"query":"?"}]'
    )


def test_after_a_break_the_next_reasoning_counts_anew() -> None:
    later = Reasoning(metadata={"id": "rs_2", "encrypted_content": "gBBB"})
    items = write_items(THOUGHT, Text("It was cu"), later, own_call(), Text("Yes.", {"id": "msg_1"}))
    assert [item.get("id") for item in items] == [None, "rs_2", "ws_1", "msg_1"]


def test_a_note_between_does_not_break_anything() -> None:
    items = write_items(THOUGHT, own_call(), Text("[Made a file: a.png]"), Text("Here.", {"id": "msg_1"}))
    assert items == [THOUGHT_ITEM, SEARCHED, text_item("[Made a file: a.png]"), text_item_with_id("msg_1", "Here.")]


def test_one_reply_says_nothing_about_the_next() -> None:
    call = PromptMessage(role="assistant", blocks=[THOUGHT, ToolCall("c", "t", "{}", metadata={"id": "fc_1"})])
    answer = PromptMessage(role="tool", blocks=[ToolResult("c", "t", "ok")])
    reply = PromptMessage(role="assistant", blocks=[Text("Yes.", {"id": "msg_1"})])
    assert write_body(call, answer, reply)["input"][-1] == text_item("Yes.")


@pytest.mark.parametrize(
    "item",
    [
        {},
        7,
        "ws_1",
        [],
        {**SEARCHED, "id": ""},
        {**SEARCHED, "id": 7},
        {**SEARCHED, "action": None},
        {**SEARCHED, "type": "computer_call"},
        {**SEARCHED, "type": "message"},
        {"type": "shell_call", "id": "sh_1", "call_id": "c", "action": {"commands": ["ls"]}},
    ],
)
def test_a_call_of_the_providers_own_that_no_request_may_have_is_a_note(item: Any) -> None:
    assert write_items(own_call(item), Text("So.")) == [
        text_item('[Used the tool web_search: {"query":"?"}]'),
        text_item("So."),
    ]


def test_a_call_of_the_providers_own_that_was_cut_is_a_note_and_takes_its_reasoning_with_it() -> None:
    cut = ToolCall("ws_1", "web_search", "", provider_executed=True, standalone=True)
    assert write_items(THOUGHT, cut) == [text_item("[Used the tool web_search]")]


def test_fields_that_only_answers_have_are_left_out() -> None:
    assert write_items(own_call({**SEARCHED, "created_by": "somebody", "results": [1]})) == [SEARCHED]


def test_custom_calls_go_back_as_such() -> None:
    call = ToolCall("call_c", "shell", r'{"input":"say \"hi\""}', metadata={"id": "ctc_1", "custom": True})
    half = ToolCall("call_d", "shell", "{}", metadata={"custom": True})
    results = [ToolResult("call_c", "shell", "hi"), ToolResult("call_e", "other", "?")]
    body = write_body(
        PromptMessage(role="assistant", blocks=[call, half]), PromptMessage(role="tool", blocks=list(results))
    )
    assert body["input"] == [
        {"type": "custom_tool_call", "call_id": "call_c", "name": "shell", "input": 'say "hi"'},
        {"type": "custom_tool_call", "call_id": "call_d", "name": "shell", "input": ""},
        {"type": "custom_tool_call_output", "call_id": "call_c", "output": "hi"},
        {"type": "function_call_output", "call_id": "call_e", "output": "?"},
    ]


# --- there and back ----------------------------------------------------------------------


def replay(events: list[Event], *, partial: bool = False) -> list[PromptMessage]:
    """What the next prompt holds of the reply that this stream made."""
    blocks = finalize(assemble(read(events)), "length" if partial else None, None)
    messages = [Message(role="user", blocks=[Text("?")]), *to_messages(blocks, provider="openai", partial=partial)]
    prompt = build_prompt(messages, provider="openai")
    assert_legal(prompt, provider="openai")
    return prompt[1:]


def write_replay(events: list[Event], *, partial: bool = False) -> list[Item]:
    items = write_body(*replay(events, partial=partial))["input"]
    return cast("list[Item]", items)


def list_items(events: list[Event]) -> list[Item]:
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


def test_reasoning_and_the_providers_own_items_come_back_unchanged_and_in_order() -> None:
    events = make_stream(
        stream_reasoning(["Searching."]),
        stream_web_search(),
        stream_reasoning(id="rs_2", encrypted="gBBB"),
        stream_file_search(),
        stream_code("1 + 1", outputs=[{"type": "logs", "logs": "2"}]),
        stream_mcp_tools(),
        stream_mcp_call("{}", output="An answer."),
        stream_image(),
        stream_reasoning(["Done."], id="rs_3", encrypted="gCCC"),
        stream_message("Here.", phase="final_answer"),
    )
    items = write_replay(events)
    note = items.pop(8)
    assert note == text_item("[Made a file: image.png (image/png)]")
    *sent, message = list_items(events)
    assert items[:-1] == [
        {name: value for name, value in item.items() if value is not None or name in {"outputs", "result"}}
        for item in sent
    ]
    assert items[-1] == text_item_with_id(message["id"], "Here.", phase="final_answer")
    assert [items[0]["id"], items[1]["id"], items[-1]["id"]] == [REASONING_ID, SEARCH_ID, MESSAGE_ID]
    assert items[0]["encrypted_content"] == "gAAAAABo"


def test_calls_come_back_with_their_answers() -> None:
    blocks = assemble(read(STREAMS["calls"]))
    blocks += [ToolResult("call_2", "weather", "Sun."), ToolResult("call_1", "weather", "Rain.")]
    messages = [Message(role="user", blocks=[Text("?")]), *to_messages(finalize(blocks, None, None))]
    items = write_body(*build_prompt(messages, provider="openai"))["input"]
    assert [item.get("id") or item.get("call_id") for item in items[1:]] == [
        REASONING_ID,
        "fc_1",
        "fc_2",
        "call_1",
        "call_2",
    ]


def test_a_refusal_comes_back_as_text() -> None:
    assert write_replay(STREAMS["a refusal"]) == [text_item("I can not.")]


def test_a_reply_that_was_cut_comes_back_without_ids() -> None:
    begun = STREAMS["reasoning"][:-1]
    text_ends = next(at for at, event in enumerate(begun) if event["type"] == "response.output_text.done")
    end = make_stream(end="incomplete", incomplete_details={"reason": "max_output_tokens"})[-1:]
    items = write_replay([*begun[:text_ends], *end], partial=True)
    assert items == [text_item("Yes."), {"role": "user", "content": [{"type": "input_text", "text": CUT_REMARK}]}]


@pytest.mark.parametrize("name", STREAMS)
def test_every_reply_can_go_back(name: str) -> None:
    items = write_replay(STREAMS[name])
    assert items
    assert items[-1].get("type") != "reasoning"


# --- any history -------------------------------------------------------------------------

texts = st.text(max_size=5)
call_ids = st.sampled_from(["c1", "c2", "", "a b", "x" * 80])
item_values = st.one_of(st.none(), st.integers(), texts, st.just({"type": "search"}), st.just([{"type": "logs"}]))
item_types = st.sampled_from(
    ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call", "other"]
)
item_names = st.sampled_from(["id", "status", "action", "queries", "results", "code", "outputs", "result", "arguments"])
own_items = st.one_of(
    st.sampled_from([list_items(events)[0] for events in STREAMS.values()]),
    st.builds(lambda item, kind: {**item, "type": kind}, st.dictionaries(item_names, item_values), item_types),
)
metadata = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {}, optional={"id": st.one_of(texts, st.integers()), "encrypted_content": st.one_of(texts, st.none())}
    ),
    st.fixed_dictionaries({"phase": texts, "custom": st.booleans()}),
    st.fixed_dictionaries({"item": own_items}),
)
arguments = st.sampled_from(["{}", '{"input": "a"}', '{"input": 1}', "{", "[]"])
media_types = st.sampled_from(["image/png", "application/pdf", "text/plain", "a/b", ""])
addresses = st.one_of(st.none(), texts, st.just("https://x.example/a"))
blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts, metadata),
    st.builds(Reasoning, texts, metadata=metadata),
    st.builds(ToolCall, call_ids, st.just("tool"), arguments, st.booleans(), st.booleans(), metadata),
    st.builds(ToolResult, call_ids, st.just("tool"), texts, st.booleans(), st.booleans(), metadata),
    st.builds(Source, url=addresses),
    st.builds(File, media_types, url=addresses, data=st.one_of(st.none(), st.binary(max_size=3)), name=st.none()),
)
histories = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(["system", "user", "assistant", "assistant", "tool"]),
        blocks=st.lists(blocks, max_size=6),
        partial=st.booleans(),
    ),
    max_size=5,
)


@settings(max_examples=count_examples(30))
@given(histories)
def test_every_history_is_written_in_the_words_of_the_sdk(history: list[Message]) -> None:
    items = write_body(*build_prompt(history, provider="openai"))["input"]
    asked = [item["call_id"] for item in items if item.get("type") in {"function_call", "custom_tool_call"}]
    answered = [item["call_id"] for item in items if item.get("type", "").endswith("_output")]
    assert sorted(asked) == sorted(answered)
    assert not has_lonely_reasoning(items)


def has_lonely_reasoning(items: Iterable[Item]) -> bool:
    """Whether reasoning stands before something without an id, or at the end."""
    thinking = False
    for item in items:
        if thinking and "id" not in item:
            return True
        thinking = item.get("type") == "reasoning"
    return thinking
