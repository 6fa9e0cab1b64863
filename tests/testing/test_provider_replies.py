"""Any parts of a model are written in the strict order of a wire format, and the product's own adapters read the same.

What the official SDKs read is in test_provider_sdks.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.testing.provider_scripts import RICH, USAGE, WIRES

from indelible.content import Block, File, Finish, Part, Reasoning, Text, ToolCall, ToolInputStart, ToolResult
from indelible.content.assemble import assemble, finalize
from indelible.models.catalog import make_wire_format
from indelible.models.http.sse import SseDecoder
from indelible.models.profile import Profile
from indelible.models.protocol import Call
from indelible.testing import parts, write_reply
from indelible.testing.provider import WireName
from indelible.testing.provider.dialect import PartOrder


def read_back(wire: WireName, said: Sequence[Part]) -> tuple[list[Block], Finish]:
    """The blocks that the product's own adapter reads from the reply."""
    reader = make_wire_format(wire, official=True).open_reader(Call(messages=[]), Profile())
    decoder = SseDecoder()
    heard = [part for event in write_reply(wire, said) for each in decoder.feed(event) for part in reader.read(each)]
    assert reader.complete
    assert reader.over
    return finalize(assemble(heard), None, None), reader.finish()


def show(blocks: Sequence[Block]) -> list[tuple[str, ...]]:
    """What can be said of blocks on every wire."""
    shown: list[tuple[str, ...]] = []
    for block in blocks:
        match block:
            case Text():
                shown.append(("text", block.text))
            case Reasoning():
                shown.append(("reasoning", block.text))
            case ToolCall(provider_executed=False):
                shown.append(("call", block.id, block.name, block.arguments))
            case File():
                shown.append(("file", block.media_type, (block.data or b"").decode()))
            case _:
                continue
    return shown


@pytest.mark.parametrize("wire", WIRES)
def test_the_adapters_read_what_the_model_sent(wire: WireName) -> None:
    blocks, finish = read_back(wire, RICH)
    assert show(blocks) == show(assemble(RICH))
    assert (finish.reason, finish.usage) == ("tool_calls", USAGE)
    own = [block for block in blocks if isinstance(block, ToolCall | ToolResult) and block.provider_executed]
    assert len(own) == {"anthropic": 2, "openai": 1, "openai-chat": 0}[wire]


BEGINNINGS_AND_ENDS: Final[list[tuple[WireName, bytes, bytes]]] = [
    ("anthropic", b"content_block_start", b"content_block_stop"),
    ("openai", b"response.output_item.added", b"response.output_item.done"),
    ("openai", b"response.content_part.added", b"response.content_part.done"),
    ("openai", b"response.reasoning_summary_part.added", b"response.reasoning_summary_part.done"),
]
LOOSE: Final[dict[str, list[Part]]] = {
    "no starts and no ends": [parts.reasoning_delta("r", "Hm."), parts.text_delta("t", "Hello")],
    "the same id twice": [parts.text_delta("t", "One"), parts.text_end("t"), parts.text_delta("t", "Two")],
    "a call in one piece": [parts.tool_call("c", "f", '{"a":1}')],
    "a call that is completed by the whole": [
        parts.tool_input_start("c", "f"),
        parts.tool_input_delta("c", '{"a"'),
        parts.tool_call("c", "f", '{"a":1}'),
    ],
    "a call in pieces only": [
        parts.tool_input_start("c", "f"),
        parts.tool_input_delta("c", '{"a":1}'),
        parts.tool_input_end("c"),
    ],
    "nothing but an end": [],
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("case", LOOSE)
def test_a_loose_script_is_written_in_strict_order(wire: WireName, case: str) -> None:
    said = [*LOOSE[case], parts.finish()]
    blocks, _ = read_back(wire, said)
    shown = show(blocks)
    if wire == "openai-chat" and case == "the same id twice":  # texts that follow each other are one text there
        assert shown == [("text", "OneTwo")]
    else:
        assert shown == show(assemble(said))


@pytest.mark.parametrize(("wire", "begin", "end"), BEGINNINGS_AND_ENDS)
@pytest.mark.parametrize("case", LOOSE)
def test_whatever_is_begun_is_ended(wire: WireName, begin: bytes, end: bytes, case: str) -> None:
    written = b"".join(write_reply(wire, [*LOOSE[case], parts.finish()]))
    assert written.count(b"event: " + begin) == written.count(b"event: " + end)


def test_a_call_under_the_id_of_an_earlier_one_is_another_call() -> None:
    order = PartOrder()
    said: list[Part] = [parts.tool_input_start("c", "f"), parts.tool_input_end("c"), parts.tool_input_start("c", "g")]
    passed = [each for part in said for each in order.feed(part)]
    assert passed == said
    assert list(order.feed(parts.tool_call("c", "g", "{}"))) == [
        parts.tool_input_delta("c", "{}"),
        parts.tool_input_end("c"),
        parts.tool_call("c", "g", "{}"),
    ]


@pytest.mark.parametrize("wire", WIRES)
def test_a_source_before_any_text_loses_no_text(wire: WireName) -> None:
    said: list[Part] = [parts.source("s", url="https://x.test"), parts.text_delta("t", "Hello"), parts.finish()]
    assert ("text", "Hello") in show(read_back(wire, said)[0])
    assert b"https://x.test" in b"".join(write_reply(wire, said))


@pytest.mark.parametrize("wire", ["openai", "openai-chat"])
def test_a_file_is_a_picture_where_the_wire_has_pictures(wire: WireName) -> None:
    said: list[Part] = [File(media_type="image/png", data=b"picture"), parts.finish()]
    assert ("file", "image/png", "picture") in show(read_back(wire, said)[0])


@pytest.mark.parametrize("wire", WIRES)
def test_half_a_surrogate_pair_is_written_as_its_escape(wire: WireName) -> None:
    events = write_reply(wire, [parts.text_delta("t", "\ud834"), parts.text_delta("t", "\udd1e"), parts.finish()])
    written = b"".join(events)
    assert rb'"\ud834"' in written
    assert rb'"\udd1e"' in written


@pytest.mark.parametrize("is_error", [True, False])
def test_a_tool_of_an_mcp_server_says_whether_it_failed(is_error: bool) -> None:
    result = parts.tool_result("c", "lookup", "nothing", provider_executed=True, is_error=is_error)
    said: list[Part] = [parts.tool_call("c", "lookup", "{}", provider_executed=True), result, parts.finish()]
    written = b"".join(write_reply("openai", said))
    assert (b"event: response.mcp_call.failed\n" in written) is is_error
    assert (b"event: response.mcp_call.completed\n" in written) is not is_error


def test_a_response_is_named_as_the_script_says() -> None:
    _, finish = read_back("openai", [parts.text_delta("t", "Hi"), parts.finish(response_id="resp_mine")])
    assert finish.response_id == "resp_mine"


PART: Final = st.one_of(
    st.builds(parts.text_delta, st.sampled_from("ab"), st.text(min_size=1)),
    st.builds(parts.text_start, st.sampled_from("ab")),
    st.builds(parts.text_end, st.sampled_from("ab")),
    st.builds(parts.reasoning_delta, st.sampled_from("ab"), st.text(min_size=1)),
    st.builds(parts.reasoning_end, st.sampled_from("ab"), st.none() | st.just("finalized")),
    st.builds(parts.tool_input_start, st.sampled_from("ab"), st.just("f"), st.booleans()),
    st.builds(parts.tool_input_delta, st.sampled_from("ab"), st.text(max_size=3)),
    st.builds(parts.tool_input_end, st.sampled_from("ab")),
    st.builds(parts.tool_call, st.sampled_from("abc"), st.just("f"), st.just("{}"), st.booleans()),
    st.builds(parts.tool_result, st.sampled_from("abc"), st.just("f"), st.text(), st.booleans()),
    st.builds(parts.source, st.just("s"), st.none() | st.just("https://x.test")),
    st.builds(parts.keep_alive),
)


OWN_CALL_WITHOUT_AN_END: list[Part] = [
    ToolInputStart("a", "f", provider_executed=True),
    ToolResult("a", "f", "", provider_executed=True),
]


@given(said=st.lists(PART), wire=st.sampled_from(WIRES))
@example(said=OWN_CALL_WITHOUT_AN_END, wire="openai")
def test_whatever_the_reply_each_event_is_whole_and_the_reply_ends(said: list[Part], wire: WireName) -> None:
    events = write_reply(wire, [*said, parts.finish()])
    assert all(len(SseDecoder().feed(event)) == 1 for event in events)
    blocks, _ = read_back(wire, [*said, parts.finish()])
    texts = "".join(part.delta for part in said if part.text and hasattr(part, "delta"))
    assert len("".join(block.text for block in blocks if isinstance(block, Text))) == len(texts)


def test_importing_the_testing_tools_does_not_load_the_provider() -> None:
    code = "import sys, indelible.testing; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
