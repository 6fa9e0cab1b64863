"""Scripts that the tests of the simulated provider share."""

from __future__ import annotations

from typing import Final

from indelible.content import Part, Usage
from indelible.testing import parts
from indelible.testing.provider import WireName

WIRES: Final[tuple[WireName, ...]] = ("anthropic", "openai", "openai-chat")

USAGE: Final = Usage(
    input_tokens=100, output_tokens=50, reasoning_tokens=20, cache_read_tokens=60, cache_write_tokens=10
)
PAGES: Final = [{"type": "web_search_result", "url": "https://c.test", "title": "C", "encrypted_content": "finalized"}]

HELLO: Final[list[Part]] = [
    parts.text_start("t"),
    parts.text_delta("t", "Hello "),
    parts.text_delta("t", "wörld 𝄞"),
    parts.text_end("t"),
    parts.finish("stop", usage=USAGE),
]

RICH: Final[list[Part]] = [
    parts.reasoning_start("r"),
    parts.reasoning_delta("r", "Let me "),
    parts.reasoning_delta("r", "think."),
    parts.reasoning_end("r", signature="finalized thought"),
    parts.keep_alive(),
    parts.text_start("t"),
    parts.text_delta("t", "It is "),
    parts.text_delta("t", "raining."),
    parts.text_end("t"),
    parts.source("s", url="https://rain.test/", title="Rain", quote="raining"),
    parts.tool_input_start("own_1", "web_search", provider_executed=True),
    parts.tool_input_delta("own_1", '{"query":"cats"}'),
    parts.tool_input_end("own_1"),
    parts.tool_call("own_1", "web_search", '{"query":"cats"}', provider_executed=True),
    parts.tool_result("own_1", "web_search", PAGES, provider_executed=True),
    parts.tool_input_start("call_1", "weather"),
    parts.tool_input_delta("call_1", '{"city":'),
    parts.tool_input_delta("call_1", '"Oslo"}'),
    parts.tool_input_end("call_1"),
    parts.tool_call("call_1", "weather", '{"city":"Oslo"}'),
    parts.tool_call("call_2", "clock", "{}"),
    parts.finish("tool_calls", usage=USAGE),
]
