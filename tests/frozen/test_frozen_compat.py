"""What the compatible APIs answer, to good requests and to bad ones (tests/frozen/compat.txt).

A conversation with each of them is held against a real server, and every answer is recorded as it is: its status, the
headers that its clients read, and its body, a stream included. What each answer has to mean is tested in
tests/server/compat; here it is only held still.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.frozen.recorded_answers import Ask, Asking
from tests.frozen.recording import compare
from tests.support.app_harness import AppHarness
from tests.support.running_server import say

from indelible.content import Usage
from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step
from indelible.tools.tool import tool

_HEADERS: Final = (
    "x-indelible-chat",
    "x-indelible-left-out-tools",
    "x-should-retry",
    "x-vercel-ai-ui-message-stream",
)
_CHAT: Final = {"messages": [{"role": "user", "content": "Hi"}]}
_UI: Final = {"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
_WEATHER: Final = {"name": "weather", "parameters": {"type": "object"}}


@tool
async def clock() -> str:
    """What time it is."""
    return "noon"


def think_and_say(text: str) -> list[Step]:
    thought = [parts.reasoning_start("r"), parts.reasoning_delta("r", "Hm"), parts.reasoning_end("r")]
    usage = Usage(input_tokens=3, output_tokens=2, cache_read_tokens=1, reasoning_tokens=1)
    return [*thought, *say(text)[:-1], parts.finish(usage=usage)]


def call(call_id: str, name: str, arguments: str = "{}") -> list[Step]:
    begun = [parts.tool_input_start(call_id, name), parts.tool_input_delta(call_id, arguments)]
    ended = [parts.tool_input_end(call_id), parts.tool_call(call_id, name, arguments), parts.finish("tool_calls")]
    return [*begun, *ended]


async def ask_for_responses(ask: Ask) -> None:
    weather = {"type": "function", **_WEATHER, "strict": True}
    first = await ask(
        "POST",
        "/v1/responses",
        {
            "input": "Hi",
            "model": "scripted",
            "instructions": "Be brief.",
            "metadata": {"a": "b"},
            "temperature": 0.5,
            "top_p": 1,
            "tools": [weather, {"type": "web_search"}],
            "reasoning": {"effort": "low"},
            "text": {"verbosity": "low"},
            "max_output_tokens": 100,
            "user": "ada",
            "unknown": {"field": [1]},
        },
    )
    named = f"/v1/responses/{first['id']}"
    await ask("GET", named)
    await ask("GET", f"{named}/input_items")
    await ask("GET", f"{named}?stream=true&starting_after=3")
    await ask("POST", f"{named}/cancel")
    await ask("POST", "/v1/responses/input_tokens", {"input": "And?", "previous_response_id": first["id"]})
    second = await ask("POST", "/v1/responses", {"input": "And?", "previous_response_id": first["id"], "stream": True})
    named = re.findall(r"resp_\w+", second)[0]
    await ask("DELETE", f"/v1/responses/{named}")
    refused = {"role": "assistant", "content": [{"type": "output_text", "text": "Never said"}]}
    again = [refused, {"role": "user", "content": "Hi"}]
    await ask("POST", "/v1/responses", {"input": again, "previous_response_id": named})
    waiting = await ask("POST", "/v1/responses", {"input": "Rain?", "tools": [weather], "previous_response_id": named})
    output = {"type": "function_call_output", "call_id": "call_1", "output": "Rain."}
    following = {"previous_response_id": waiting["id"], "tools": [weather]}
    await ask("POST", "/v1/responses", {"input": "Well?", **following})
    await ask("POST", "/v1/responses", {"input": [{**output, "call_id": "call_2"}], **following})
    answered = await ask("POST", "/v1/responses", {"input": [output], **following})
    await ask("GET", f"/v1/responses/{answered['id']}/input_items?limit=1&order=asc")
    copied = await ask("POST", "/v1/responses", {"input": "Otherwise?", "previous_response_id": first["id"]})
    await ask("DELETE", f"/v1/responses/{copied['id']}")
    forgotten = await ask("POST", "/v1/responses", {"input": "Forget this.", "store": False})
    await ask("GET", f"/v1/responses/{forgotten['id']}")
    await ask("POST", "/v1/responses", {"input": "Fail."})
    await ask("POST", "/v1/responses", {"input": "What time is it?"})


async def ask_for_conversations(ask: Ask) -> None:
    item = {"type": "message", "role": "user", "content": "Earlier"}
    made = await ask("POST", "/v1/conversations", {"items": [item], "metadata": {"topic": "rain"}})
    conversation = f"/v1/conversations/{made['id']}"
    await ask("GET", conversation)
    await ask("POST", conversation, {"metadata": {"topic": "snow"}})
    joined = await ask("POST", "/v1/responses", {"input": "Hi", "conversation": {"id": made["id"]}})
    await ask("GET", f"/v1/responses/{joined['id']}")
    await ask("POST", f"{conversation}/items", {"items": [item]})
    items = await ask("GET", f"{conversation}/items?limit=3")
    await ask("GET", f"{conversation}/items?after={items['data'][0]['id']}&order=asc")
    await ask("GET", f"{conversation}/items/{items['data'][0]['id']}")
    await ask("DELETE", conversation)
    await ask("GET", conversation)


async def ask_for_completions(ask: Ask) -> None:
    custom = {"type": "custom", "custom": {"name": "patch"}}
    function = {"type": "function", "function": {**_WEATHER, "description": "Weather"}}
    asked = {**_CHAT, "model": "scripted", "seed": 7, "stop": ["x"], "tools": [function, custom], "unknown": 1}
    await ask("POST", "/v1/chat/completions", asked)
    streamed = {**_CHAT, "stream": True, "stream_options": {"include_usage": True}}
    await ask("POST", "/v1/chat/completions", streamed)
    support = {"X-Indelible-Chat": "support"}
    await ask("POST", "/v1/chat/completions", {**_CHAT, "tools": [function]}, headers=support)
    reply = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", **function}]}
    reply["tool_calls"][0]["function"] = {"name": "weather", "arguments": "{}"}  # type: ignore[index]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}
    body = {"messages": [*_CHAT["messages"], reply, result]}
    await ask("POST", "/v1/chat/completions", body, headers=support)
    await ask("POST", "/v1/chat/completions", body, headers=support)
    await ask("POST", "/v1/chat/completions", {**_CHAT, "stream": True}, headers=support)
    await ask("POST", "/v1/chat/completions", _CHAT)


async def ask_as_the_ai_sdk(ask: Ask) -> None:
    await ask("POST", "/ai-sdk/chat", {"id": "garden", "messages": [_UI]})
    await ask("GET", "/ai-sdk/chat/garden/messages")
    await ask("GET", "/ai-sdk/chat/garden/stream")
    await ask("POST", "/ai-sdk/chat/garden/stop")
    shown = await ask("GET", "/ai-sdk/chat/garden/messages")
    second_ui = {**_UI, "id": "2", "parts": [{"type": "text", "text": "More"}]}
    await ask("POST", "/ai-sdk/chat", {"id": "garden", "messages": [*shown, second_ui], "messageId": "2"})
    await ask("POST", "/ai-sdk/chat", {"id": "garden", "messages": [*shown, second_ui]})
    edited = {**second_ui, "parts": [{"type": "text", "text": "Less"}]}
    await ask("POST", "/ai-sdk/chat", {"id": "garden", "message": edited, "messageId": "2"})
    again_ui = {"id": "garden", "messages": [], "trigger": "regenerate-message", "messageId": "2"}
    await ask("POST", "/ai-sdk/chat", again_ui)
    await ask("GET", "/ai-sdk/chat/garden/messages")


_SAY: Final = b'{"messages": [{"role": "user", "content": "Hi"}], %b}'
_INPUT: Final = b'{"input": "Hi", %b}'
BAD: Final[list[tuple[str, str, bytes | None]]] = [
    *(
        ("POST", path, body)
        for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/conversations", "/v1/chat/completions")
        for body in (b"", b"{", b"[]", b"null", b"5", b'{"input": NaN}', b'{"input": "\xff"}', b"[" * 20_000)
        if (path, body) != ("/v1/conversations", b"")
    ),
    ("POST", "/ai-sdk/chat", None),
    ("POST", "/ai-sdk/chat", b"{"),
    ("POST", "/ai-sdk/chat", b'{"id": 5, "messages": []}'),
    ("POST", "/ai-sdk/chat", b'{"id": "a", "messages": []}'),
    ("POST", "/ai-sdk/chat", b'{"id": "a", "messages": ["Hi"]}'),
    ("POST", "/ai-sdk/chat", b'{"id": "a", "messages": [{}], "trigger": "resume"}'),
    ("POST", "/ai-sdk/chat", b'{"id": "a", "messages": [{"role": "user", "parts": 1}]}'),
    ("POST", "/ai-sdk/chat", '{"id": "é", "messages": [{"role": "user", "parts": []}]}'.encode()),
    ("GET", "/ai-sdk/chat/none/messages", None),
    ("GET", "/ai-sdk/chat/none/stream", None),
    ("POST", "/ai-sdk/chat/none/stop", None),
    ("GET", "/ai-sdk/chat", None),
    ("GET", "/ai-sdk/nothing", None),
    *(
        ("POST", "/v1/responses", _INPUT % more)
        for more in (
            b'"temperature": "warm"',
            b'"temperature": "0.5", "tools": 1',
            b'"stream": "maybe"',
            b'"max_output_tokens": 1.5',
            b'"tools": [{"type": "function", "name": "a"}, {"type": "function", "name": 1}]',
            b'"tools": [{"name": "a"}]',
            b'"tools": [{"type": "web_search"}], "tool_choice": "required"',
            b'"metadata": {"a": 1}',
            b'"metadata": {"%b": "a"}' % (b"a" * 65),
            b'"metadata": {"a": "%b"}' % (b"a" * 513),
            b'"metadata": {%b}' % b",".join(b'"%d": ""' % at for at in range(17)),
            b'"conversation": {}',
            b'"conversation": 5',
            b'"conversation": "conv_1"',
            b'"conversation": "conv_1", "previous_response_id": "resp_1"',
            b'"previous_response_id": "resp_1"',
            b'"background": true, "store": false',
            b'"model": "none"',
            b'"model": 5',
            b'"n": 2, "max_tool_calls": 3',
            b'"text": "short"',
            b'"reasoning": []',
        )
    ),
    ("POST", "/v1/responses", b"{}"),
    ("POST", "/v1/responses", b'{"input": 5}'),
    ("POST", "/v1/responses", b'{"input": [{"type": "item_reference", "id": "msg_1"}]}'),
    ("GET", "/v1/responses/resp_1", None),
    ("GET", "/v1/responses/resp_0000000000000000000000000A1", None),
    ("GET", "/v1/responses/resp_1?stream=maybe", None),
    ("GET", "/v1/responses/resp_1?stream=1", None),
    ("GET", "/v1/responses/resp_1?starting_after=x", None),
    ("GET", "/v1/responses/resp_1/input_items?limit=x", None),
    ("GET", "/v1/responses/resp_1/input_items?order=up", None),
    ("POST", "/v1/responses/resp_1/cancel", None),
    ("DELETE", "/v1/responses/resp_1", None),
    ("PUT", "/v1/responses", None),
    ("PATCH", "/v1/responses/resp_1", b"{}"),
    ("OPTIONS", "/v1/responses", None),
    ("GET", "/v1/responses", None),
    ("GET", "/v1/nothing", None),
    ("HEAD", "/v1/models", None),
    ("HEAD", "/v1/responses", None),
    ("POST", "/v1/conversations", b'{"items": 5}'),
    ("POST", "/v1/conversations", b'{"items": ["Hi"]}'),
    ("POST", "/v1/conversations", b'{"metadata": {"a=b": "c"}}'),
    ("GET", "/v1/conversations/conv_1", None),
    ("GET", "/v1/conversations/conv_1/items?limit=1.5", None),
    ("GET", "/v1/conversations/conv_1/items/msg_1", None),
    ("DELETE", "/v1/conversations/conv_1", None),
    ("GET", "/v1/models/none", None),
    ("GET", "/v1/models/openai/gpt", None),
    ("POST", "/v1/models", b"{}"),
    *(
        ("POST", "/v1/chat/completions", _SAY % more)
        for more in (
            b'"n": 2',
            b'"temperature": []',
            b'"stop": 5',
            b'"stop": ["a", 5]',
            b'"stream_options": "all"',
            b'"tools": [{"type": "function"}]',
            b'"tools": [{"type": "function", "function": {"name": 1}}]',
            b'"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]',
            b'"seed": 1.5',
            b'"max_tokens": "5", "model": "none"',
            b'"response_format": 1',
        )
    ),
    ("POST", "/v1/chat/completions", b'{"messages": []}'),
    ("POST", "/v1/chat/completions", b'{"messages": "Hi"}'),
    ("POST", "/v1/chat/completions", b'{"messages": ["Hi"]}'),
    ("POST", "/v1/chat/completions", b'{"messages": [{"role": "poet"}]}'),
    ("GET", "/v1/chat/completions", None),
]


async def test_the_compatible_apis_answer_what_is_recorded(engine: AsyncEngine) -> None:
    replies: list[Any] = [
        think_and_say("Hello."),
        think_and_say("More."),
        call("call_1", "weather"),
        say("It rains."),
        say("Otherwise."),
        say("Forgotten."),
        ModelFailed("Too long.", kind="context_overflow"),
        call("call_9", "clock"),
        say("Noon."),
        say("In a conversation."),
        say("A completion."),
        think_and_say("A stream."),
        call("call_1", "weather"),
        say("It rains."),
        say("Again."),
        ModelFailed("No such key.", kind="auth"),
        say("In the garden."),
        call("call_1", "clock"),
        say("More of it."),
        say("Less of it."),
        say("Anew."),
    ]
    async with AppHarness(engine).opened() as harness:
        asking = Asking(await harness.start_server(ScriptedModel(replies), tools=[clock]), _HEADERS)
        for talk in (ask_for_responses, ask_for_conversations, ask_for_completions, ask_as_the_ai_sdk):
            await talk(asking.ask)
        for method, path, body in [("GET", "/v1/models", None), ("GET", "/v1/models/scripted", None), *BAD]:
            await asking.ask(method, path, body)

    compare("compat.txt", "\n".join(asking.shown))
