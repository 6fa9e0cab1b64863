"""Writing OpenAI Chat Completions: each rule by itself, and every body validated by the SDK's own request type.

The validator is the SDK's type for a streaming request, made strict (tests/models/sdk_judges.py).
"""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import ValidationError
from tests.models.sdk_judges import make_request_judge

from indelible.content import (
    Block,
    File,
    Message,
    Metadata,
    Part,
    Reasoning,
    Source,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from indelible.content.assemble import PartAssembler, finalize, to_messages
from indelible.errors import ModelFailed
from indelible.loop.prompt.build import build_prompt
from indelible.models.http.http_model import WireRequest
from indelible.models.http.sse import SseEvent
from indelible.models.profile import Profile
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.models.providers.openai_chat.response import ChatWire

Json = dict[str, Any]
WEATHER = ToolSpec(name="get_weather", description="The weather.", input_schema={"type": "object", "properties": {}})
PNG = b"\x89PNG"
PDF = b"%PDF-1.7"


# --- the judge ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "tool", "content": None, "tool_call_id": "a"}]},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]}
            ]
        },
        {"messages": [{"role": "assistant", "content": "x", "reasoning_content": "y"}]},
        {"messages": [{"role": "notice", "content": "x"}]},
        {"messages": [], "tools": [{"type": "function"}]},
        {"messages": [], "top_k": 5},
        {"messages": [], "stop": 5},
    ],
    ids=str,
)
def test_the_judge_looks_into_every_list(wrong: Json) -> None:
    with pytest.raises(ValidationError):
        make_request_judge("openai-chat").validate_python({"model": "gpt-4.1", "stream": True, **wrong})


def write(
    *messages: PromptMessage,
    official: bool = True,
    tools: list[ToolSpec] | None = None,
    returns_reasoning: bool = False,
    **parameters: Any,
) -> WireRequest:
    """The call as written, after the judge has seen it."""
    call = Call(messages=list(messages), tools=tools or [], options=CallOptions(parameters=parameters))
    written = ChatWire(official=official).write(call, "gpt-4.1", Profile(returns_reasoning=returns_reasoning))
    body = json.loads(msgspec.json.encode(written.body))
    assert body == written.body
    make_request_judge("openai-chat", lenient=not official).validate_python(body)
    return written


def write_messages(*messages: PromptMessage, official: bool = True, returns_reasoning: bool = False) -> list[Json]:
    body = write(*messages, official=official, returns_reasoning=returns_reasoning).body
    written: list[Json] = body["messages"]
    return written


def write_file(file: File, *, official: bool = True) -> Json:
    """What a file becomes, behind a text."""
    [message] = write_messages(user(Text("See:"), file, File("image/png", data=PNG)), official=official)
    part: Json = message["content"][1]
    return part


def system(text: str) -> PromptMessage:
    return PromptMessage(role="system", blocks=[Text(text)])


def user(*blocks: Block | str) -> PromptMessage:
    return PromptMessage(role="user", blocks=[Text(block) if isinstance(block, str) else block for block in blocks])


def assistant(*blocks: Block | str) -> PromptMessage:
    return msgspec.structs.replace(user(*blocks), role="assistant")


def tool(*blocks: Block) -> PromptMessage:
    return PromptMessage(role="tool", blocks=list(blocks))


def call_weather(id: str = "a", metadata: Metadata | None = None) -> ToolCall:
    return ToolCall(id=id, name="get_weather", arguments='{"city": "Oslo"}', metadata=metadata)


def answer(id: str = "a", output: str = "Rain") -> ToolResult:
    return ToolResult(call_id=id, name="get_weather", output=output)


# --- messages ----------------------------------------------------------------------------


def test_a_conversation_is_written_with_plain_strings() -> None:
    assert write(system("Be brief."), user("Hi"), assistant("Hello."), user("How are you?")).body == {
        "model": "gpt-4.1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "How are you?"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_leading_system_messages_are_one_and_later_ones_stay_where_they_are() -> None:
    assert write_messages(system("One."), system("Two."), user("Hi"), system("Three."), user("Well?")) == [
        {"role": "system", "content": "One.\n\nTwo."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "Three."},
        {"role": "user", "content": "Well?"},
    ]


def test_neighbouring_user_messages_are_one_and_text_alone_is_a_string() -> None:
    assert write_messages(user("One.", "Two."), user("Three.")) == [
        {"role": "user", "content": "One.\n\nTwo.\n\nThree."}
    ]


def test_a_user_message_with_a_file_has_parts() -> None:
    assert write_messages(user("See:"), user(File("image/png", data=PNG), "Well?")) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                {"type": "text", "text": "Well?"},
            ],
        }
    ]


def test_calls_are_written_with_their_text_and_answered_one_by_one() -> None:
    written = write_messages(
        user("Oslo? Rome?"),
        assistant("Let me see.", call_weather("a"), call_weather("b")),
        tool(answer("a", "Rain"), answer("b", "")),
        user("Thanks"),
    )
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert written[1:] == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": function},
                {"id": "b", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "Rain"},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": "Thanks"},
    ]


def test_a_reply_that_is_only_a_call_has_no_content() -> None:
    [_, reply, _] = write_messages(user("Hi"), assistant(call_weather()), tool(answer()))
    assert reply["content"] is None


def test_neighbouring_replies_are_one_unless_a_call_stands_between() -> None:
    written = write_messages(assistant("One."), assistant("Two.", call_weather()), tool(answer()), assistant("Three."))
    assert [(entry["role"], entry["content"]) for entry in written] == [
        ("assistant", "One.\n\nTwo."),
        ("tool", "Rain"),
        ("assistant", "Three."),
    ]
    assert len(written[0]["tool_calls"]) == 1
    assert len(write_messages(assistant(call_weather()), assistant("Nobody answered."))) == 2


def test_pieces_of_one_text_are_joined_as_they_are_and_others_by_a_blank_line() -> None:
    blocks = (Text("Grass is "), Text("green"), Text("."), Reasoning("Hm.", metadata={"x": 1}), Text("So is moss."))
    assert write_messages(assistant(*blocks))[0]["content"] == "Grass is green.\n\nSo is moss."


def test_what_this_wire_can_not_tell_is_left_out() -> None:
    private = ToolCall(id="ws_1", name="web_search", arguments="{}", provider_executed=True)
    result = ToolResult(call_id="ws_1", name="web_search", output=[{"x": 1}], provider_executed=True)
    assert write_messages(user("Hi"), assistant(private, result, Source(url="https://x.example"), "Hello.")) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]
    assert write_messages(user("Hi"), assistant(private, result), user("Well?")) == [
        {"role": "user", "content": "Hi\n\nWell?"}
    ]


# --- what goes back ----------------------------------------------------------------------

FROM_DEEPSEEK: Metadata = {"field": "reasoning_content"}


def test_reasoning_goes_back_in_its_field_beside_the_calls_it_led_to() -> None:
    reply = assistant(
        Reasoning("Hm. ", metadata=FROM_DEEPSEEK), "Wait.", Reasoning("Ah.", metadata=FROM_DEEPSEEK), call_weather()
    )
    [written, _] = write_messages(reply, tool(answer()), official=False, returns_reasoning=True)
    assert (written["reasoning_content"], written["content"]) == ("Hm. Ah.", "Wait.")


@pytest.mark.parametrize(
    ("blocks", "official", "returns_reasoning"),
    [
        ([Reasoning("Hm.", metadata=FROM_DEEPSEEK), Text("Hi")], False, True),
        ([Reasoning("Hm.", metadata=FROM_DEEPSEEK), call_weather()], False, False),
        ([Reasoning("Hm.", metadata=FROM_DEEPSEEK), call_weather()], True, True),
        ([Reasoning("Hm.", signature="sig"), call_weather()], False, True),
        ([Reasoning("Hm.", metadata={"field": "tool_calls"}), call_weather()], False, True),
        ([Reasoning("Hm.", metadata={"field": ["reasoning"]}), call_weather()], False, True),
        ([Reasoning("Hm.", metadata={"item": {"id": "rs_1"}}), call_weather()], False, True),
    ],
    ids=["no call", "not wanted", "official", "another wire's", "no field of reasoning", "garbage", "of responses"],
)
def test_other_reasoning_stays_here(blocks: list[Block], official: bool, returns_reasoning: bool) -> None:
    written = write_messages(assistant(*blocks), tool(answer()), official=official, returns_reasoning=returns_reasoning)
    assert set(written[0]) <= {"role", "content", "tool_calls"}


def test_signatures_of_calls_go_back_with_them() -> None:
    signature = {"google": {"thought_signature": "EpIC"}}
    reply = assistant(call_weather("a", {"extra_content": signature}), call_weather("b"))
    [written, *_] = write_messages(reply, tool(answer("a"), answer("b")), official=False)
    assert [call.get("extra_content") for call in written["tool_calls"]] == [signature, None]


def test_details_of_reasoning_go_back_instead_of_its_text() -> None:
    details = [{"type": "reasoning.text", "text": "Hm.", "signature": "ErUB", "index": 0}]
    thought = Reasoning("Hm.", metadata={"field": "reasoning"})
    reply = assistant(thought, call_weather("a", {"reasoning_details": details}))
    [written, _] = write_messages(reply, tool(answer()), official=False, returns_reasoning=True)
    assert written["reasoning_details"] == details
    assert "reasoning" not in written


@pytest.mark.parametrize("value", [None, 5, "x", {"a": 1}, [1, "x", None]])
@pytest.mark.parametrize("key", ["extra_content", "reasoning_details", "given_id"])
def test_metadata_of_another_shape_breaks_nothing(key: str, value: Any) -> None:
    written = write_messages(assistant(call_weather("a", {key: value})), tool(answer()), official=False)
    assert written[0].get("reasoning_details") is None
    assert isinstance(written[0]["tool_calls"][0].get("extra_content", {}), dict)


def test_openai_itself_gets_no_fields_of_others() -> None:
    metadata = {"extra_content": {"google": {}}, "reasoning_details": [{"type": "reasoning.text"}]}
    [reply, _] = write_messages(assistant(call_weather("a", metadata)), tool(answer()))
    assert set(reply) == {"role", "content", "tool_calls"}
    assert set(reply["tool_calls"][0]) == {"id", "type", "function"}


# --- files -------------------------------------------------------------------------------


def to_data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize("media_type", ["image/png", "image/jpeg", "image/gif", "image/webp"])
def test_an_image_is_sent_inline_or_by_its_address(media_type: str) -> None:
    inline = {"type": "image_url", "image_url": {"url": to_data_url(media_type, PNG)}}
    assert write_file(File(media_type, data=PNG)) == inline
    assert write_file(File(media_type.upper() + "; q=1", data=PNG, url="https://x.example/i")) == inline
    assert write_file(File(media_type, url="https://x.example/i")) == {
        "type": "image_url",
        "image_url": {"url": "https://x.example/i"},
    }


def test_an_image_that_openai_does_not_read_is_sent_to_others_only() -> None:
    image = File("image/tiff", name="scan.tiff", data=PNG)
    assert write_file(image, official=False)["type"] == "image_url"
    assert write_file(image) == {"type": "text", "text": "[A file that cannot be sent: scan.tiff (image/tiff)]"}


def test_a_pdf_is_a_file() -> None:
    data_url = to_data_url("application/pdf", PDF)
    assert write_file(File("application/pdf", name="bill.pdf", data=PDF)) == {
        "type": "file",
        "file": {"filename": "bill.pdf", "file_data": data_url},
    }
    assert write_file(File("application/pdf", data=PDF))["file"]["filename"] == "document.pdf"


def test_the_address_of_a_pdf_is_taken_by_others_but_not_by_openai() -> None:
    pdf = File("application/pdf", name="bill.pdf", url="https://x.example/bill.pdf")
    assert write_file(pdf, official=False)["file"]["file_data"] == "https://x.example/bill.pdf"
    assert write_file(pdf) == {
        "type": "text",
        "text": "[A file that cannot be sent: bill.pdf (application/pdf), https://x.example/bill.pdf]",
    }


@pytest.mark.parametrize(
    ("media_type", "format"),
    [("audio/wav", "wav"), ("audio/x-wav", "wav"), ("audio/mpeg", "mp3"), ("audio/mp3", "mp3")],
)
def test_sound_is_sent_as_what_it_is(media_type: str, format: str) -> None:
    assert write_file(File(media_type, data=b"RIFF")) == {
        "type": "input_audio",
        "input_audio": {"data": "UklGRg==", "format": format},
    }


@pytest.mark.parametrize(
    "media_type", ["text/plain", "text/csv; charset=utf-8", "application/json", "image/svg+xml", "application/toml"]
)
def test_a_text_file_is_written_out(media_type: str) -> None:
    assert write_file(File(media_type, name="a.txt", data="é\n".encode() + b"\xff")) == {
        "type": "text",
        "text": '<file name="a.txt">\né\n\ufffd\n</file>',
    }


@pytest.mark.parametrize(
    "file",
    [
        File("image/png", file_id="file_1"),
        File("image/png", url="/api/v1/files/1"),
        File("image/png", data=b""),
        File("application/zip", data=b"PK"),
        File("audio/ogg", data=b"OggS"),
        File("audio/wav", url="https://x.example/a.wav"),
        File("text/plain", url="https://x.example/a.txt"),
        File("application/vnd.openxmlformats-officedocument.wordprocessingml.document", data=b"PK"),
        File("", data=b"x"),
    ],
    ids=str,
)
@pytest.mark.parametrize("official", [True, False])
def test_the_model_learns_of_a_file_that_cannot_be_sent(file: File, official: bool) -> None:
    part = write_file(file, official=official)
    assert part["type"] == "text"
    assert part["text"].startswith("[A file that cannot be sent: unnamed (")


# --- tools and parameters ----------------------------------------------------------------


def test_tools_are_functions_and_a_providers_own_go_as_they_are() -> None:
    own = ToolSpec(name="x", provider_executed=True, options={"type": "custom", "custom": {"name": "x"}})
    assert write(user("Hi"), tools=[WEATHER, ToolSpec(name="now"), own]).body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather.",
                "parameters": {"type": "object", "properties": {}},
            },
        },
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
        {"type": "custom", "custom": {"name": "x"}},
    ]


@pytest.mark.parametrize("official", [True, False])
def test_what_a_request_is_filed_under_reaches_openai_and_nobody_else(official: bool) -> None:
    """Other servers may refuse a field that they do not know. OpenAI takes metadata only for what it stores."""
    filed: Json = {"prompt_cache_key": "job-7", "safety_identifier": "s-1"}
    written = write(user("Hi"), official=official, metadata={"job": "7"}, **filed)
    assert written.warnings == []
    assert {name: written.body[name] for name in ("metadata", *filed) if name in written.body} == (
        filed if official else {}
    )


PARAMETERS: Json = {
    "temperature": 0.5,
    "top_p": 1,
    "stop": ["END"],
    "seed": 7,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.1,
    "verbosity": "low",
    "service_tier": "flex",
    "user": "u_1",
    "parallel_tool_calls": False,
}


@pytest.mark.parametrize("official", [True, False])
def test_parameters_are_written_under_the_names_of_the_wire(official: bool) -> None:
    given = {**PARAMETERS, "effort": "high", "max_tokens": 100, "tool_choice": "auto"}
    written = write(user("Hi"), official=official, tools=[WEATHER], **given)
    body = {name: value for name, value in written.body.items() if name not in {"model", "messages", "tools"}}
    assert body == {
        **PARAMETERS,
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_effort": "high",
        "tool_choice": "auto",
        "max_completion_tokens" if official else "max_tokens": 100,
    }
    assert written.warnings == []


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("get_weather", {"type": "function", "function": {"name": "get_weather"}}),
    ],
)
def test_a_tool_is_chosen_by_its_name(choice: str, written: Any) -> None:
    assert write(user("Hi"), tools=[WEATHER], tool_choice=choice).body["tool_choice"] == written


def test_a_request_without_tools_or_stops_does_not_mention_them() -> None:
    written = write(user("Hi"), tool_choice="auto", parallel_tool_calls=True, stop=[])
    assert set(written.body) == {"model", "messages", "stream", "stream_options"}
    assert written.warnings == []


def test_only_others_than_openai_know_top_k() -> None:
    assert write(user("Hi"), official=False, top_k=5).body["top_k"] == 5
    refused = write(user("Hi"), official=True, top_k=5)
    assert "top_k" not in refused.body
    assert refused.warnings == ["The parameter top_k was not sent: OpenAI has no such parameter."]


def test_a_model_without_a_setting_for_thinking_gets_no_effort() -> None:
    call = Call(messages=[user("Hi")], options=CallOptions(parameters={"effort": "high"}))
    written = ChatWire(official=False).write(call, "m", Profile(effort="none"))
    assert "reasoning_effort" not in written.body
    assert written.warnings == ["The parameter effort was not sent: the provider has no such parameter."]


def test_an_unknown_parameter_is_reported_and_a_wrong_one_refused() -> None:
    assert write(user("Hi"), model="x").warnings == ["The parameter model was not sent: unknown parameter."]
    with pytest.raises(ModelFailed, match="temperature must be a number") as failed:
        write(user("Hi"), temperature="warm")
    assert failed.value.kind == "config"


# --- round trips -------------------------------------------------------------------------


def feed(wire: ChatWire, profile: Profile, *chunks: Json) -> list[Message]:
    """The messages that a reply becomes, its calls answered."""
    reader = wire.open_reader(Call(messages=[], tools=[WEATHER]), profile)
    assembler = PartAssembler()
    events = [SseEvent("message", json.dumps({"choices": [chunk]}).encode(), None) for chunk in chunks]
    parts: list[Part] = [part for event in events for part in reader.read(event)]
    for part in [*parts, reader.finish()]:
        assembler.add(part)
    for call in assembler.local_calls():
        assembler.add(ToolResult(call_id=call.id, name=call.name, output="Rain"))
    return to_messages(finalize(assembler.blocks(), None, None), provider="openai-chat", model="m")


def write_back(wire: ChatWire, profile: Profile, messages: list[Message]) -> list[Json]:
    prompt = build_prompt(messages, provider="openai-chat", model="m")
    body = wire.write(Call(messages=prompt, tools=[WEATHER]), "m", profile).body
    make_request_judge("openai-chat", lenient=True).validate_python(body)
    written: list[Json] = body["messages"]
    return written


@pytest.mark.parametrize("returns_reasoning", [True, False])
def test_a_reply_with_calls_goes_back_as_it_came(returns_reasoning: bool) -> None:
    wire, profile = ChatWire(official=False), Profile(returns_reasoning=returns_reasoning)
    calls = [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}},
        {"id": "b", "type": "function", "function": {"name": "get_weather", "arguments": "{}"},
         "extra_content": {"google": {"thought_signature": "EpIC"}}},
    ]  # fmt: skip
    heard = feed(
        wire,
        profile,
        {"delta": {"role": "assistant", "reasoning_content": "Hm"}},
        {"delta": {"reasoning_content": "m."}},
        {"delta": {"content": "Let me see."}},
        {"delta": {"tool_calls": calls}, "finish_reason": "tool_calls"},
    )
    reply = {"role": "assistant", "content": "Let me see.", "tool_calls": calls}
    assert write_back(wire, profile, [Message(role="user", blocks=[Text("Hi")]), *heard]) == [
        {"role": "user", "content": "Hi"},
        {**reply, "reasoning_content": "Hmm."} if returns_reasoning else reply,
        {"role": "tool", "tool_call_id": "a", "content": "Rain"},
        {"role": "tool", "tool_call_id": "b", "content": "Rain"},
    ]


def test_the_details_of_openrouter_go_back_as_they_came() -> None:
    wire, profile = ChatWire(official=False), Profile()
    signed = {"type": "reasoning.text", "index": 0, "signature": "ErUB", "text": "Hmm."}
    finalized = {"type": "reasoning.encrypted", "index": 1, "data": "CiQB"}
    heard = feed(
        wire,
        profile,
        {"delta": {"reasoning": "Hm", "reasoning_details": [{"type": "reasoning.text", "text": "Hm", "index": 0}]}},
        {"delta": {"reasoning": "m.", "reasoning_details": [{"type": "reasoning.text", "text": "m.", "index": 0}]}},
        {"delta": {"reasoning_details": [{"type": "reasoning.text", "text": None, "signature": "ErUB", "index": 0}]}},
        {"delta": {"reasoning_details": [{"type": "reasoning.text", "text": "", "signature": None, "index": 0}]}},
        {"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": "{}"}}]}},
        {"delta": {"reasoning_details": [finalized]}, "finish_reason": "tool_calls"},
    )
    [reply, _] = write_back(wire, profile, heard)
    assert reply["reasoning_details"] == [signed, finalized]


def test_an_id_of_thousands_of_characters_is_kept_beside_the_call_and_goes_back() -> None:
    """LiteLLM puts Gemini's signature of a call into its id."""
    wire, profile = ChatWire(official=False), Profile()
    ids = [f"call_{name}__thought__{name * 5000}" for name in "ab"]
    calls = [{"index": at, "id": ids[at], "function": {"name": "get_weather", "arguments": "{}"}} for at in (0, 1)]
    heard = feed(wire, profile, {"delta": {"tool_calls": calls}, "finish_reason": "tool_calls"})
    assert [block.id for block in heard[0].blocks if isinstance(block, ToolCall)] == ["call_0", "call_1"]
    [reply, *results] = write_back(wire, profile, [*heard, *heard])[:3]
    assert [call["id"] for call in reply["tool_calls"]] == ids
    assert [result["tool_call_id"] for result in results] == ids
    foreign = [msgspec.structs.replace(message, model="another") for message in heard]
    [reply, *results] = write_back(wire, profile, foreign)
    assert [call["id"] for call in reply["tool_calls"]] == ["call_0", "call_1"]
    assert [result["tool_call_id"] for result in results] == ["call_0", "call_1"]


def test_a_reply_of_another_model_takes_nothing_private_along() -> None:
    wire, profile = ChatWire(official=False), Profile(returns_reasoning=True)
    call = {"id": "a", "function": {"name": "get_weather"}, "extra_content": {"google": {}}}
    heard = feed(wire, profile, {"delta": {"reasoning": "Hm.", "tool_calls": [call]}, "finish_reason": "stop"})
    foreign = [msgspec.structs.replace(message, model="another") for message in heard]
    [reply, _] = write_back(wire, profile, foreign)
    assert set(reply) == {"role", "content", "tool_calls"}
    assert set(reply["tool_calls"][0]) == {"id", "type", "function"}


# --- any history -------------------------------------------------------------------------

TEXTS = st.text(max_size=8)
METADATA = st.none() | st.dictionaries(
    st.sampled_from(["field", "extra_content", "reasoning_details", "given_id", "x"]),
    st.sampled_from(["reasoning", "reasoning_content", "y"])
    | st.integers(0, 5)
    | st.dictionaries(TEXTS, TEXTS, max_size=1)
    | st.lists(st.dictionaries(TEXTS, TEXTS, max_size=1), max_size=2),
    max_size=2,
)
IDS = st.sampled_from(["a", "b", "", "c" * 50])
BLOCKS: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, TEXTS, METADATA),
    st.builds(Reasoning, TEXTS, signature=st.none() | TEXTS, metadata=METADATA),
    st.builds(
        ToolCall,
        id=IDS,
        name=TEXTS,
        arguments=st.sampled_from(["{}", '{"a": 1}', '{"a', ""]),
        provider_executed=st.booleans(),
        standalone=st.booleans(),
        metadata=METADATA,
    ),
    st.builds(ToolResult, call_id=IDS, name=TEXTS, output=TEXTS | st.integers(), provider_executed=st.booleans()),
    st.builds(Source, url=st.none() | TEXTS, title=st.none() | TEXTS),
    st.builds(
        File,
        media_type=st.sampled_from(
            ["image/png", "image/tiff", "application/pdf", "text/plain", "audio/wav", "x/y", ""]
        ),
        name=st.none() | TEXTS,
        file_id=st.none() | TEXTS,
        url=st.none() | TEXTS | st.just("https://x.example/f"),
        data=st.none() | st.binary(max_size=4),
    ),
)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool", "notice"]),
    blocks=st.lists(BLOCKS, max_size=4),
    partial=st.booleans(),
    provider=st.sampled_from([None, "openai-chat", "anthropic"]),
)


@given(st.lists(MESSAGES, max_size=6), st.booleans(), st.booleans())
def test_whatever_the_history_the_body_is_legal(history: list[Message], official: bool, returned: bool) -> None:
    prompt = build_prompt(history, provider="openai-chat")
    written = write_messages(*prompt, official=official, returns_reasoning=returned)
    _check_order(written)
    for message in prompt:
        for block in message.blocks:
            if isinstance(block, Text):
                assert any(json.dumps(block.text)[1:-1] in json.dumps(entry) for entry in written)
    assert write_messages(*prompt, official=official, returns_reasoning=returned) == written


def _check_order(messages: list[Json]) -> None:
    """Roles take turns; every call is answered right after it, once."""
    waiting: list[str] = []
    previous = None
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting
            assert message["role"] != previous
            assert message["content"] or message.get("tool_calls")
            waiting = [call["id"] for call in message.get("tool_calls", [])]
        previous = message["role"]
    assert not waiting
