"""Every request that the adapters write, for any history, validated by the official SDKs' own types and rules.

Three kinds of histories: the hostile and the honest ones of tests/loop/test_any_history.py, and chats whose replies
really came over HTTP, cut anywhere, so that everything a reader puts into metadata goes back through its writer. Users
send files of all sorts; tools and parameters are drawn, too.

The validator is the SDK's type for a streaming request, made strict (tests/models/sdk_judges.py). `EXTRAS` lists the
few fields that dialects have beyond it. What no type expresses is checked by hand, and the simulated provider, which
was written independently, has to accept the history as well.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic_core import ValidationError
from tests.loop.test_any_history import AT, REASONS, chats, histories
from tests.models.sdk_judges import make_request_judge
from tests.models.wires_under_test import PNG, WIRES, OwnTool, ReaderDriver, scripts, think
from tests.support.examples import count_examples

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
from indelible.content.assemble import assemble, finalize, to_messages
from indelible.loop.normalize import Normalizer
from indelible.loop.prompt.build import build_prompt, mark_cache
from indelible.models.catalog import make_wire_format
from indelible.models.profile import Profile
from indelible.models.protocol import EFFORTS, Call, CallOptions, PromptMessage
from indelible.testing import ManualClock, parts, write_reply
from indelible.testing.legality import assert_legal
from indelible.testing.provider import WireName
from indelible.testing.provider.exchange import DIALECTS

EXAMPLES: Final = settings(max_examples=count_examples(20))

Json = dict[str, Any]

# --- the judges --------------------------------------------------------------------------


EXTRAS: Final[dict[WireName, Mapping[str, frozenset[str]]]] = {
    "anthropic": {"": frozenset({"temperature", "top_p", "top_k"})},
    "openai": {},
    "openai-chat": {
        "": frozenset({"top_k"}),
        "messages": frozenset({"reasoning_content", "reasoning", "reasoning_details"}),
        "messages.tool_calls": frozenset({"extra_content"}),
    },
}
"""What goes out beyond the SDK's types: parameters that only older models of Anthropic take, and fields of servers that
speak Chat Completions and are not OpenAI."""


def leave_out(value: Any, extras: Mapping[str, frozenset[str]], place: str = "") -> Any:
    if isinstance(value, list):
        return [leave_out(each, extras, place) for each in value]
    if not isinstance(value, dict):
        return value
    left_out = extras.get(place, frozenset())
    return {
        name: leave_out(each, extras, f"{place}.{name}".lstrip("."))
        for name, each in value.items()
        if name not in left_out
    }


def judge(wire: WireName, body: Json, *, official: bool) -> None:
    """Fail if the SDK's types do not allow this body as it goes over the wire."""
    sent = body if official and wire == "openai-chat" else leave_out(body, EXTRAS[wire])
    make_request_judge(wire).validate_json(msgspec.json.encode(sent), strict=True)


GOOD: Final[dict[WireName, Json]] = {
    "anthropic": {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "x"}]},
    "openai": {"model": "m", "stream": True, "input": [{"role": "user", "content": "x"}]},
    "openai-chat": {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]},
}
BAD: Final[list[tuple[WireName, Json]]] = [
    ("anthropic", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]}]}),
    ("anthropic", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    ("anthropic", {"messages": [{"role": "notice", "content": "x"}]}),
    ("anthropic", {"system": [{"type": "text", "text": 1}]}),
    ("anthropic", {"tools": [{"name": "x"}]}),
    ("anthropic", {"more": 1}),
    ("openai", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "more": 1}]}]}),
    ("openai", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
    ("openai", {"input": [{"type": "function_call", "name": "x", "arguments": {}, "call_id": "c"}]}),
    ("openai", {"input": [{"type": "web_search_call", "id": "w", "status": "completed", "more": 1}]}),
    ("openai", {"tools": [{"type": "function", "name": "x", "more": 1}]}),
    ("openai", {"more": 1}),
    ("openai-chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
    ("openai-chat", {"messages": [{"role": "assistant", "content": "x", "reasoning_content": "x"}]}),
    ("openai-chat", {"messages": [{"role": "tool", "content": "x"}]}),
    ("openai-chat", {"tools": [{"type": "function"}]}),
    ("openai-chat", {"top_k": 1}),
]


@pytest.mark.parametrize(("wire", "wrong"), BAD, ids=str)
def test_the_judges_look_at_everything(wire: WireName, wrong: Json) -> None:
    judge(wire, GOOD[wire], official=True)
    with pytest.raises(ValidationError):
        judge(wire, GOOD[wire] | wrong, official=True)


# --- what is written ---------------------------------------------------------------------

PAGES: Final = [{"type": "web_search_result", "url": "https://c.test", "title": "C", "encrypted_content": "finalized"}]
SEARCH: Final = OwnTool("web_search", ['{"query":', '"rain"}'], st.just(PAGES))

OWN_TOOLS: Final[dict[WireName, list[ToolSpec]]] = {
    "anthropic": [
        ToolSpec(
            name="web_search",
            provider_executed=True,
            options={"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        )
    ],
    "openai": [
        ToolSpec(name="web_search", provider_executed=True),
        ToolSpec(name="code_interpreter", provider_executed=True, options={"container": {"type": "auto"}}),
        ToolSpec(name="file_search", provider_executed=True, options={"vector_store_ids": ["vs_1"]}),
    ],
    "openai-chat": [],
}
LOCAL_TOOLS: Final = [
    ToolSpec(name="weather", description="The weather.", input_schema={"type": "object", "properties": {"city": {}}}),
    ToolSpec(name="clock"),
]
FILE_TYPES: Final = (
    *("image/png", "image/jpeg", "IMAGE/PNG; x=y", "image/tiff", "image/svg+xml", "application/pdf", "text/plain"),
    *("text/csv; charset=latin-1", "application/json", "audio/wav", "video/mp4", "a/b", ""),
)

files = st.builds(
    File,
    st.sampled_from(FILE_TYPES),
    name=st.sampled_from([None, "", "a.png", "ü\n.pdf", "n" * 300, "\ud800"]),
    url=st.sampled_from([None, None, "https://x.test/f", "http://x.test/f", "file:///etc/passwd", "data:,x", ""]),
    data=st.sampled_from([None, b"", b" ", b"x", PNG, b"\xff\xfe", "wörds".encode()]),
    file_id=st.sampled_from([None, "file_1"]),
)
questions = st.builds(Text, st.sampled_from(["Rain?", " ", "é\x00"]))
users: st.SearchStrategy[Message] = st.builds(
    Message, role=st.just("user"), blocks=st.lists(st.one_of(files, questions), min_size=1, max_size=4)
)
rules = st.builds(Message, role=st.just("system"), blocks=st.just([Text("Be brief.")]))
thoughts: st.SearchStrategy[list[Part]] = st.sampled_from(
    [
        [],
        think("r", ["hm", "."], "finalized"),
        think("r", [], "finalized"),
        [parts.reasoning_start("r", metadata={"redacted_thinking": "finalized"}), parts.reasoning_end("r")],
    ]
)
PRIVATE: Final[dict[type, list[Metadata]]] = {
    Text: [{"id": "msg_1", "phase": "final_answer"}, {"id": 7, "citations": "?"}],
    Reasoning: [
        {"field": "reasoning_content"},
        {"redacted_thinking": "finalized"},
        {"id": "rs_1", "encrypted_content": "x"},
    ],
    ToolCall: [
        {"extra_content": {"google": {"thought_signature": "finalized"}}},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "finalized"}]},
        {"type": "server_tool_use"},
        {"id": "fc_1", "custom": True},
        {
            "item": {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "x"},
            }
        },
    ],
    ToolResult: [{"type": "web_search_tool_result"}, {"type": 7}],
    Source: [{"type": "url_citation"}],
    File: [{"type": "container_upload", "file_id": "file_1"}],
}
"""What the readers of all wires put into metadata. It may come to any writer: a message may not say who wrote it."""


@st.composite
def replies(draw: st.DrawFn, wire: WireName) -> list[Message]:
    """What is saved of a reply that came over this wire, whole or cut anywhere for any reason."""
    body = b"".join(write_reply(wire, [*draw(thoughts), *draw(scripts(SEARCH))], model="m"))
    listener = ReaderDriver(wire, Profile(returns_reasoning=True))
    listener.feed(body[: draw(st.sampled_from([len(body), len(body)]) | st.integers(0, len(body)))])
    normalizer = Normalizer(provider=wire, clock=ManualClock())
    blocks = assemble([each for part in listener.emitted for each in normalizer.feed(part)] + normalizer.release())
    reason = None if listener.reader.complete else draw(st.sampled_from(REASONS))
    calls = [block for block in blocks if isinstance(block, ToolCall) and not block.provider_executed]
    outputs = [draw(st.sampled_from(["wet", ""])) for _ in calls if reason is None]
    answers = [ToolResult(call.id, call.name, output) for call, output in zip(calls, outputs, strict=False)]
    finalized = finalize([*blocks, *answers], reason, AT)
    if draw(st.integers(0, 2)) == 0:
        finalized = [replace(block, metadata=draw(st.sampled_from(PRIVATE[type(block)]))) for block in finalized]
    writer = draw(st.sampled_from([wire, wire, wire, None]))
    return to_messages(finalized, partial=reason is not None, reason=reason, provider=writer, model="m")


@st.composite
def replayed(draw: st.DrawFn, wire: WireName) -> list[Message]:
    """A chat whose replies came over this wire, or, here and there, over another one."""
    history = draw(st.lists(rules, max_size=2))
    for _ in range(draw(st.integers(1, 3))):
        history.append(draw(users))
        spoken = draw(st.sampled_from([wire, wire, wire, *WIRES]))
        for _ in range(draw(st.integers(0, 2))):
            history += draw(replies(spoken))
    return history


@st.composite
def with_files(draw: st.DrawFn) -> list[Message]:
    """A hostile history, with messages of users between its own."""
    return [each for message in draw(histories) for each in (*draw(st.lists(users, max_size=1)), message)]


def any_history(wire: WireName) -> st.SearchStrategy[list[Message]]:
    return st.one_of(replayed(wire), replayed(wire), with_files(), chats())


parameters = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0, 0.5, 1]),
        "top_p": st.sampled_from([0.5, 0.99]),
        "top_k": st.just(40),
        "max_tokens": st.sampled_from([1, 2000, 100_000]),
        "stop": st.sampled_from([[], ["END"], ["\n", "x"], "x"]),
        "effort": st.sampled_from(EFFORTS),
        "tool_choice": st.sampled_from(["auto", "none", "required", "weather", "web_search"]),
        "parallel_tool_calls": st.booleans(),
        "seed": st.just(7),
        "frequency_penalty": st.just(0.5),
        "presence_penalty": st.just(-0.5),
        "verbosity": st.sampled_from(["low", "high"]),
        "format": st.just({"type": "json_schema", "name": "city", "schema": {"type": "object"}, "strict": True}),
        "service_tier": st.just("auto"),
        "user": st.just("u1"),
        "nonsense": st.just([1]),
    },
)
profiles = st.builds(
    Profile,
    effort=st.sampled_from(["level", "budget", "none"]),
    returns_reasoning=st.booleans(),
    max_output_tokens=st.sampled_from([4096, 64_000]),
)


def draw_calls(wire: WireName) -> st.SearchStrategy[Call]:
    """A call as the loop makes it: a legal prompt with its markers, tools and parameters."""
    return st.builds(
        lambda history, tools, given: Call(
            messages=mark_cache(build_prompt(history, provider=wire, model="m"), provider=wire),
            tools=tools,
            options=CallOptions(parameters=given, store=bool(given.get("seed"))),
        ),
        any_history(wire),
        st.lists(st.sampled_from([*LOCAL_TOOLS, *OWN_TOOLS[wire]]), unique_by=lambda tool: tool.name, max_size=4),
        parameters,
    )


# --- rules that no type says -------------------------------------------------------------


def check_anthropic(body: Json) -> None:
    messages = body["messages"]
    assert all(former["role"] != latter["role"] for former, latter in pairwise(messages)), "roles take turns"
    assert not messages or messages[-1]["role"] == "user", "the assistant has the last word"
    waiting: list[str] = []
    for message in messages:
        results = [block for block in message["content"] if block["type"] == "tool_result"]
        assert message["content"][: len(results)] == results, "answers come first"
        assert sorted(result["tool_use_id"] for result in results) == sorted(waiting), "every call is answered at once"
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        kinds = {block["type"] for block in message["content"]}
        assert message["role"] == "assistant" or kinds <= {"text", "image", "document", "tool_result"}
        assert message["role"] == "user" or not kinds & {"image", "document", "tool_result"}
        assert message["content"][-1]["type"] not in {"thinking", "redacted_thinking"}
    blocks = list(list_anthropic_blocks(body))
    assert all(block["text"].strip() for block in blocks if block["type"] == "text")
    ids = [block["id"] for block in blocks if block["type"].endswith("tool_use")]
    assert len(set(ids)) == len(ids)
    for block in blocks:
        if block["type"] in {"image", "document"}:
            check_source(block["source"])


def list_anthropic_blocks(body: Json) -> Iterator[Json]:
    yield from body.get("system", [])
    for message in body["messages"]:
        yield from message["content"]


def check_source(source: Json) -> None:
    match source["type"]:
        case "base64":
            assert b64decode(source["data"], validate=True)
        case "text":
            assert source["data"].strip()
        case "url":
            assert source["url"].startswith(("https://", "http://"))


def check_responses(body: Json) -> None:
    waiting: set[str] = set()
    thinking = False
    for item in body["input"]:
        kind = item.get("type", "message")
        assert not thinking or "id" in item, "reasoning stands before what followed it"
        thinking = kind == "reasoning"
        if kind.endswith("tool_call_output") or kind == "function_call_output":
            waiting.remove(item["call_id"])
            continue
        assert not waiting or item.get("role") not in {"user", "developer"}, "every call is answered at once"
        if kind in {"function_call", "custom_tool_call"}:
            assert item["call_id"] not in waiting
            waiting.add(item["call_id"])
        if kind == "message":
            assert item["content"]
            assert item["role"] in {"user", "assistant", "developer"}
        if item.get("role") == "user":
            for part in item["content"]:
                check_address(part.get("image_url") or part.get("file_data") or part.get("file_url"))
    assert not waiting
    assert not thinking, "reasoning that led to nothing"


def check_chat(body: Json) -> None:
    waiting: list[str] = []
    former = None
    for message in body["messages"]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert not waiting, "every call is answered at once"
            assert message["role"] != former, "roles take turns"
            assert message["content"] or message.get("tool_calls")
            waiting = [call["id"] for call in message.get("tool_calls", [])]
        former = message["role"]
        for part in message["content"] if isinstance(message["content"], list) else ():
            assert part["type"] == "text" or message["role"] == "user", "only users bring files"
            check_address(part.get("image_url", {}).get("url") or part.get("file", {}).get("file_data"))
    assert not waiting


def check_address(address: str | None) -> None:
    """A file is inside the request, or where the provider can reach it."""
    if address is not None and not address.startswith(("https://", "http://")):
        head, encoded = address.split(",", 1)
        assert re.fullmatch(r"data:[a-z]+/[-+.a-z0-9]+;base64", head)
        assert b64decode(encoded, validate=True)


CHECKS: Final[dict[WireName, Callable[[Json], None]]] = {
    "anthropic": check_anthropic,
    "openai": check_responses,
    "openai-chat": check_chat,
}


@pytest.mark.parametrize("wire", WIRES)
def test_every_request_is_one_that_the_sdk_allows_and_the_provider_takes(wire: WireName) -> None:
    @EXAMPLES
    @given(draw_calls(wire), profiles, st.booleans(), st.sampled_from(["m", "gpt-5.1"]))
    def try_call(call: Call, profile: Profile, official: bool, model: str) -> None:
        assert_legal(call.messages, provider=wire)
        written = make_wire_format(wire, official=official).write(call, model, profile)
        judge(wire, written.body, official=official)
        CHECKS[wire](written.body)
        again = make_wire_format(wire, official=official).write(call, model, profile)
        sent = msgspec.json.encode(written.body)
        assert msgspec.json.encode(again.body) == sent, "the same call gives the same bytes"
        for text in list_texts(call.messages):
            assert msgspec.json.encode(text.strip())[1:-1] in sent, "no text is lost"
        body = msgspec.json.decode(sent)
        if body.get("messages") or body.get("input"):
            dialect = DIALECTS[wire]
            asked = dialect.read(body, written.headers)
            dialect.check(asked.build_call())

    try_call()


def list_texts(messages: Sequence[PromptMessage]) -> Iterator[str]:
    for message in messages:
        for block in message.blocks:
            if isinstance(block, Text):
                yield block.text


# --- cache markers -----------------------------------------------------------------------


def tag(message: PromptMessage, at: int) -> PromptMessage:
    """The message, with its place written into everything that goes out of it."""
    return replace(message, blocks=[_tag(block, f"m{at}:") for block in message.blocks])


def _tag(block: Block, mark: str) -> Block:
    match block:
        case Text():
            return replace(block, text=mark + block.text)
        case ToolResult(provider_executed=False):
            return replace(block, output=mark + str(block.output))
        case File():
            url = block.url and f"https://x.test/{mark}"
            return replace(block, name=mark, url=url, data=block.data and mark.encode())
        case ToolCall() | ToolResult():
            return replace(block, name=mark)
        case _:
            return block


def find_place(block: Json, places: Mapping[str, int]) -> int:
    """Which message of the prompt this block came from."""
    if block["type"].endswith("tool_use"):
        return places[block["id"]]
    if block["type"].endswith("tool_result") and block["type"] != "tool_result":
        return places[block["tool_use_id"]]
    source = block.get("source", {})
    words = block.get("text") or block.get("content") or source.get("url") or source.get("data") or ""
    if source.get("type") == "base64":
        words = b64decode(words).decode()
    found = re.search(r"m(\d+):", words)
    assert found is not None, block
    return int(found[1])


@EXAMPLES
@given(draw_calls("anthropic"))
def test_s12_s44_markers_stand_on_the_last_of_the_leading_system_messages_and_on_the_last_two(call: Call) -> None:
    prompt = [tag(message, at) for at, message in enumerate(call.messages)]
    leading = next((at for at, message in enumerate(prompt) if message.role != "system"), len(prompt))
    expected = {at for at in (leading - 1, len(prompt) - 2, len(prompt) - 1) if at >= 0}
    places = {
        block.id: at for at, message in enumerate(prompt) for block in message.blocks if isinstance(block, ToolCall)
    }
    body = make_wire_format("anthropic", official=True).write(replace(call, messages=prompt), "m", Profile()).body
    last_of = {}
    marked = []
    for block in list_anthropic_blocks(body):
        if block["type"] in {"thinking", "redacted_thinking"}:
            assert "cache_control" not in block
            continue
        at = find_place(block, places)
        last_of[at] = block
        if "cache_control" in block:
            assert block["cache_control"] == {"type": "ephemeral"}
            marked.append((at, block))
    assert sorted(at for at, _ in marked) == sorted(expected)
    assert len(marked) <= 4
    assert all(last_of[at] is block for at, block in marked)


@pytest.mark.parametrize("wire", ["openai", "openai-chat"])
@pytest.mark.parametrize("official", [True, False])
def test_other_wires_get_no_markers(wire: WireName, official: bool) -> None:
    messages = [PromptMessage(role="user", blocks=[Text("Hello")], cache=True)]
    written = make_wire_format(wire, official=official).write(Call(messages=messages), "m", Profile())
    assert b"cache" not in msgspec.json.encode(written.body)


# --- files -------------------------------------------------------------------------------

PDF: Final = b"%PDF-1.7"
PNG_BASE64: Final = b64encode(PNG).decode()
PDF_BASE64: Final = b64encode(PDF).decode()
AWAY: Final = "https://x.test/f"


def note(text: str) -> dict[WireName, Json]:
    """A file that no wire takes, told in words."""
    return {
        "anthropic": {"type": "text", "text": text},
        "openai": {"type": "input_text", "text": text},
        "openai-chat": {"type": "text", "text": text},
    }


FILES: Final[list[tuple[File, dict[WireName, Json]]]] = [
    (
        File("image/png", data=PNG),
        {
            "anthropic": {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": PNG_BASE64},
            },
            "openai": {
                "type": "input_image",
                "detail": "auto",
                "image_url": f"data:image/png;base64,{PNG_BASE64}",
            },
            "openai-chat": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG_BASE64}"}},
        },
    ),
    (
        File("image/png", url=AWAY),
        {
            "anthropic": {"type": "image", "source": {"type": "url", "url": AWAY}},
            "openai": {"type": "input_image", "detail": "auto", "image_url": AWAY},
            "openai-chat": {"type": "image_url", "image_url": {"url": AWAY}},
        },
    ),
    (
        File("application/pdf", name="a.pdf", data=PDF),
        {
            "anthropic": {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PDF_BASE64},
                "title": "a.pdf",
            },
            "openai": {
                "type": "input_file",
                "filename": "a.pdf",
                "file_data": f"data:application/pdf;base64,{PDF_BASE64}",
            },
            "openai-chat": {
                "type": "file",
                "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF_BASE64}"},
            },
        },
    ),
    (
        File("application/pdf", name="a.pdf", url=AWAY),
        {
            "anthropic": {"type": "document", "source": {"type": "url", "url": AWAY}, "title": "a.pdf"},
            "openai": {"type": "input_file", "file_url": AWAY},
        },
    ),
    (
        File("text/plain", name="a.txt", data=b"Rain."),
        {
            "anthropic": {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "Rain."},
                "title": "a.txt",
            },
            "openai": {"type": "input_text", "text": "[The file a.txt]\nRain."},
            "openai-chat": {"type": "text", "text": '<file name="a.txt">\nRain.\n</file>'},
        },
    ),
    (File("image/png", file_id="file_1"), note("[A file that cannot be sent: unnamed (image/png)]")),
    (File("image/png", url="file:///etc/passwd"), note("[A file that cannot be sent: unnamed (image/png)]")),
    (File("video/mp4", name="a.mp4", data=b"x"), note("[A file that cannot be sent: a.mp4 (video/mp4)]")),
]


@pytest.mark.parametrize("wire", WIRES)
def test_files_are_sent_as_what_they_are_or_named_in_text(wire: WireName) -> None:
    anchor = File("image/png", data=PNG)  # Chat Completions joins what is only text
    for file, written in FILES:
        if wire in written:
            messages = [PromptMessage(role="user", blocks=[Text("See:"), file, anchor])]
            body = make_wire_format(wire, official=True).write(Call(messages=messages), "m", Profile()).body
            judge(wire, body, official=True)
            [message] = body["input"] if wire == "openai" else body["messages"]
            assert message["content"][1] == written[wire], file


@pytest.mark.parametrize("wire", WIRES)
def test_a_picture_that_a_tool_returned_goes_out_with_its_result(wire: WireName) -> None:
    call = ToolCall(id="call_1", name="draw", arguments="{}")
    result = ToolResult(call_id="call_1", name="draw", output="[file: a.png]", files=[File("image/png", data=PNG)])
    messages = [
        PromptMessage(role="user", blocks=[Text("Draw")]),
        PromptMessage(role="assistant", blocks=[call]),
        PromptMessage(role="tool", blocks=[result]),
        PromptMessage(role="user", blocks=[Text("Well?")]),
    ]
    body = make_wire_format(wire, official=True).write(Call(messages=messages), "m", Profile()).body
    judge(wire, body, official=True)
    picture = FILES[0][1][wire]
    match wire:
        case "anthropic":
            content = body["messages"][2]["content"][0]["content"]
            assert content == [{"type": "text", "text": "[file: a.png]"}, picture]
        case "openai":
            assert body["input"][2]["output"] == [{"type": "input_text", "text": "[file: a.png]"}, picture]
        case _:
            assert body["messages"][2]["content"] == "[file: a.png]"
            told = [{"type": "text", "text": "[Files that the tools returned:]"}, picture]
            assert body["messages"][3]["content"] == [*told, {"type": "text", "text": "Well?"}]
    gone = replace(result, files=[File("image/png", file_id="file_1")])
    plain = Call(messages=[*messages[:2], PromptMessage(role="tool", blocks=[gone])])
    assert b"file_1" not in msgspec.json.encode(make_wire_format(wire, official=True).write(plain, "m", Profile()).body)
