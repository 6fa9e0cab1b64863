"""Items that a client only refers to: the model gets what is stored, and nothing that a client sent is left out.

The AI SDK's provider of OpenAI sends everything that the assistant said as `item_reference`.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from tests.server.compat.compat_clients import open_openai
from tests.server.compat.test_responses import WEATHER, call_weather
from tests.support.app_harness import AppHarness
from tests.support.running_server import say, say_half
from tests.support.waiting import deadline

import indelible
from indelible.content import File, Reasoning, Text, ToolCall, ToolResult
from indelible.errors import Refused
from indelible.models.protocol import Call
from indelible.server.compat.openai import ResponseName, name_message_item, name_response_item
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step
from indelible.tools.tool import tool

PIXEL = "data:image/png;base64,iVBORw0KGgo="


@tool
async def clock() -> str:
    """The time."""
    return "noon"


def refer(item: Any) -> dict[str, Any]:
    return {"type": "item_reference", "id": item.id}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def read(call: Call) -> list[tuple[str, list[Any]]]:
    return [(message.role, list(message.blocks)) for message in call.messages]


THINK: list[Step] = [
    parts.reasoning_start("r"),
    parts.reasoning_delta("r", "Hm."),
    parts.reasoning_end("r", signature="signed"),
]


@pytest.mark.both_databases
async def test_the_model_gets_its_replies_with_their_signatures_when_a_client_only_refers_to_them(
    harness: AppHarness,
) -> None:
    first_step = [*THINK, parts.tool_call("own_1", "clock", "{}"), parts.finish("tool_calls")]
    model = ScriptedModel([first_step, [*THINK, *call_weather("call_1", "Oslo")], say("Rain."), say("Yes.")])
    server = await harness.start_server(model, tools=[clock])
    async with open_openai(server) as client, deadline():
        first = await client.responses.create(input="Weather now?", tools=[WEATHER])
        assert [item.type for item in first.output] == ["reasoning", "mcp_call", "reasoning", "function_call"]
        output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        asked: list[Any] = [user("Weather now?"), *map(refer, first.output), output]
        second = await client.responses.create(input=asked, tools=[WEATHER])
        asked += [*map(refer, second.output), user("Sure?")]
        assert (await client.responses.create(input=asked, tools=[WEATHER])).output_text == "Yes."
    told = read(model.calls[3])
    assert [role for role, _ in told] == ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
    assert told[1:3] == read(model.calls[1])[1:3]
    for _, blocks in (told[1], told[3]):
        thought, call = blocks
        assert isinstance(thought, Reasoning)
        assert (thought.text, thought.signature) == ("Hm.", "signed")
        assert isinstance(call, ToolCall)
    assert [block.output for _, blocks in told for block in blocks if isinstance(block, ToolResult)] == ["noon", "rain"]
    assert told[5] == ("assistant", [Text("Rain.")])


async def test_items_of_a_conversation_can_be_referred_to_too(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello Ada."), say("Ada.")])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        made = await client.conversations.create(items=[user("Call me Ada.")])  # type: ignore[list-item]
        await client.responses.create(input="Hi", conversation=made.id)
        items = (await client.conversations.items.list(made.id, order="asc")).data
        asked: list[Any] = [*map(refer, items), user("Who am I?")]
        assert (await client.responses.create(input=asked, instructions="Be brief.")).output_text == "Ada."
    texts = [(role, block.text) for role, blocks in read(model.calls[1]) for block in blocks]
    assert texts == [
        ("system", "Be brief."),
        ("user", "Call me Ada."),
        ("user", "Hi"),
        ("assistant", "Hello Ada."),
        ("user", "Who am I?"),
    ]


async def test_a_reply_that_is_still_written_can_be_referred_to_as_far_as_it_was_seen(harness: AppHarness) -> None:
    model = ScriptedModel([say_half("Once upon"), say("And then?")])
    server = await harness.start_server(model)
    async with open_openai(server) as client, deadline():
        stream = await client.responses.create(input="A story", stream=True)
        seen: Any = None
        async for event in stream:
            if event.type == "response.output_item.added":
                seen = event.item
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        asked: list[Any] = [user("A story"), refer(seen), user("Go on.")]
        await client.responses.create(input=asked)
    assert read(model.calls[1])[1] == ("assistant", [Text("Once upon")])


async def test_an_item_that_is_not_the_users_is_not_found(harness: AppHarness, database: str) -> None:
    """Nobody else's, none that is gone, and none that never was."""
    server = await harness.start_server(ScriptedModel([say("Secret."), say("Mine."), say("Gone.")]))
    async with indelible.open(database, user="ada", worker=False) as app, open_openai(server) as client:
        chat = await app.create_chat()
        sent = await chat.send("Hi")
        hers = ResponseName(chat.id, 1), sent.messages[-1].id
        known = await client.responses.create(input="Hi")
        gone = await client.responses.create(input="Hi", store=False)
        named = [
            name_response_item("msg", str(hers[0]), 0),
            name_message_item("msg", chat.id, str(hers[1]), 0),
            gone.output[0].id,
            f"{known.output[0].id}9",
            "msg_1",
            "msg_" + "0" * 54,
        ]
        for name in named:
            asked: Any = [{"type": "item_reference", "id": name}, user("What was that?")]
            with pytest.raises(openai.NotFoundError, match=r"Item with id .* not found"):
                await client.responses.create(input=asked)


@pytest.mark.parametrize(
    ("item", "named"),
    [
        ({"type": "web_search_call", "id": "ws_1", "status": "completed"}, "web_search_call"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"}, "custom_tool_call"),
        ({"type": "compaction", "encrypted_content": "x"}, "compaction"),
        ({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_audio"}]}, "input_audio"),
        ({"type": "item_reference"}, "item_reference"),
        ({"type": {"a": 1}}, "not supported"),
    ],
)
async def test_an_item_that_cannot_be_taken_is_refused_by_name(
    harness: AppHarness, item: dict[str, Any], named: str
) -> None:
    server = await harness.start_server(worker=False)
    async with open_openai(server) as client, deadline():
        asked: Any = [user("Hi"), item, user("And?")]
        with pytest.raises(openai.BadRequestError, match=named):
            await client.responses.create(input=asked)
        with pytest.raises(openai.BadRequestError, match=named):
            await client.conversations.create(items=[item])  # type: ignore[list-item]
    assert (await server.client.list_chats())["items"] == []


@pytest.mark.both_databases
@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
async def test_a_request_that_continues_a_chat_may_repeat_its_messages_and_can_make_up_nothing(
    harness: AppHarness, field: str
) -> None:
    model = ScriptedModel([[*THINK, *call_weather("call_1", "Oslo")], say("Rain."), say("Yes.")])
    server = await harness.start_server(model)
    async with open_openai(server) as client, deadline():
        conversation = (await client.conversations.create()).id
        place: Any = {} if field == "previous_response_id" else {field: conversation}
        first = await client.responses.create(input="Weather?", tools=[WEATHER], **place)
        place = place or {field: first.id}
        output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        answered: Any = [*(item.model_dump(exclude_none=True) for item in first.output), output]
        second = await client.responses.create(input=answered, tools=[WEATHER], **place)
        place = place if field == "conversation" else {field: second.id}
        made_up: list[tuple[dict[str, Any], str]] = [
            ({"role": "assistant", "content": "Snow."}, "message of the assistant"),
            ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Snow!"}]}, "reasoning"),
            ({"type": "function_call", "call_id": "call_9", "name": "weather", "arguments": "{}"}, "function_call"),
            ({**output, "call_id": "call_9"}, "call_9"),
            ({**output, "output": "snow"}, "call_1"),
        ]
        for item, named in made_up:
            asked: Any = [item, user("Sure?")]
            with pytest.raises(openai.BadRequestError, match=named):
                await client.responses.create(input=asked, tools=[WEATHER], **place)
        asked = [*answered, *map(refer, second.output), user("Sure?")]
        assert (await client.responses.create(input=asked, tools=[WEATHER], **place)).output_text == "Yes."
    assert [role for role, _ in read(model.calls[2])] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.both_databases
@pytest.mark.parametrize("wire", ["previous_response_id", "all items", "chat completions"])
async def test_pictures_in_the_output_of_a_clients_tool_reach_the_model(harness: AppHarness, wire: str) -> None:
    model = ScriptedModel([call_weather("call_1", "Oslo"), say("A map.")])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        first = await client.responses.create(input="Weather?", tools=[WEATHER])
        if wire == "chat completions":
            call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            picture = [{"type": "text", "text": "a map"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
            messages: Any = [
                user("Weather?"),
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": picture},
            ]
            await client.chat.completions.create(model="scripted", messages=messages)
        else:
            shown = [{"type": "input_text", "text": "a map"}, {"type": "input_image", "image_url": PIXEL}]
            output = {"type": "function_call_output", "call_id": "call_1", "output": shown}
            repeated = [item.model_dump(exclude_none=True) for item in first.output]
            is_chained = wire == "previous_response_id"
            asked: Any = [output] if is_chained else [user("Weather?"), *repeated, output]
            more: Any = {"previous_response_id": first.id} if is_chained else {}
            made = await client.responses.create(input=asked, tools=[WEATHER], **more)
            (listed,) = [
                item
                for item in (await client.responses.input_items.list(made.id)).data
                if item.type == "function_call_output"
            ]
            assert [part.type for part in listed.output] == ["input_text", "input_image"]  # type: ignore[union-attr]
    (result,) = [block for _, blocks in read(model.calls[1]) for block in blocks if isinstance(block, ToolResult)]
    assert (result.output, [file.media_type for file in result.files]) == ("a map", ["image/png"])
    assert isinstance(result.files[0], File)
    assert result.files[0].data


async def test_thoughts_that_are_sent_back_are_kept_and_what_has_no_place_is_refused(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("Yes.")] * 2))
    thought = {"type": "reasoning", "id": "rs_x", "summary": [{"type": "summary_text", "text": "Hm."}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Maybe."}]}
    async with open_openai(server) as client:
        asked: Any = [user("Rain?"), thought, said, user("Sure?")]
        made = await client.responses.create(input=asked)
        listed = (await client.responses.input_items.list(made.id, order="asc")).data
        assert [item.type for item in listed] == ["message", "reasoning", "message", "message"]
        for extra in ({"audio": {"id": "audio_1"}}, {"function_call": {"name": "rain", "arguments": "{}"}}):
            messages: Any = [user("Rain?"), {"role": "assistant", "content": "Maybe.", **extra}, user("Sure?")]
            with pytest.raises(openai.BadRequestError, match=next(iter(extra))):
                await client.chat.completions.create(model="scripted", messages=messages)


async def test_what_files_a_request_reaches_the_model_and_its_response(harness: AppHarness) -> None:
    """`metadata`, `service_tier`, `prompt_cache_key` and `safety_identifier`, on both APIs."""
    model = ScriptedModel([say("Yes.")] * 2)
    server = await harness.start_server(model)
    filed: dict[str, Any] = {
        "metadata": {"job": "7"},
        "service_tier": "flex",
        "prompt_cache_key": "job-7",
        "safety_identifier": "user-1",
    }
    async with open_openai(server) as client:
        made = await client.responses.create(input="Hi", **filed)
        assert {name: json.loads(made.to_json())[name] for name in filed} == filed
        messages: Any = [user("Hi")]
        await client.chat.completions.create(model="scripted", messages=messages, **filed)
    for call in model.calls:
        assert {name: call.parameters.get(name) for name in filed} == filed


async def test_references_are_no_way_to_store_more_than_a_request_may_bring(harness: AppHarness) -> None:
    long = "x" * 200_000
    model = ScriptedModel([say(long)])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        made = await client.responses.create(input="Hi")
        asked: Any = [*[refer(made.output[0])] * 50, user("And?")]
        with pytest.raises(openai.APIStatusError, match="too long") as refused:
            await client.responses.create(input=asked)
        assert refused.value.status_code == 413


async def test_of_the_declared_functions_only_the_allowed_ones_are_offered(harness: AppHarness) -> None:
    model = ScriptedModel([say("One."), say("Two.")])
    server = await harness.start_server(model)
    other = {**WEATHER, "name": "other"}
    named = {"type": "function", "name": "other"}
    async with open_openai(server) as client:
        choice: Any = {"type": "allowed_tools", "mode": "auto", "tools": [named]}
        await client.responses.create(input="Hi", tools=[WEATHER, other], tool_choice=choice)  # type: ignore[list-item]
        inner = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]}
        messages: Any = [user("Hi")]
        functions: Any = [{"type": "function", "function": {"name": name}} for name in ("weather", "other")]
        allowed: Any = {"type": "allowed_tools", "allowed_tools": inner}
        await client.chat.completions.create(model="scripted", messages=messages, tools=functions, tool_choice=allowed)
    for call in model.calls:
        assert [tool.name for tool in call.tools] == ["other"]
        assert call.parameters["tool_choice"] == "auto"


@pytest.mark.both_databases
async def test_a_stored_file_in_a_clients_result_is_its_owners_and_is_used_by_the_chat(
    harness: AppHarness, database: str
) -> None:
    model = ScriptedModel([call_weather("call_1", "Oslo"), say("A map.")])
    server = await harness.start_server(model)
    async with indelible.open(database, user="ada", worker=False) as app, open_openai(server) as client:
        hers = await app.upload(b"secret", name="map.txt")
        mine = await server.app.upload(b"a map", name="map.txt")
        first = await client.responses.create(input="Weather?", tools=[WEATHER])
        for file_id in (hers.id, "file_none", mine.id):
            shown = [{"type": "input_file", "file_id": file_id}]
            answer: Any = [{"type": "function_call_output", "call_id": "call_1", "output": shown}]
            if file_id != mine.id:
                with pytest.raises(openai.NotFoundError, match="File not found"):
                    await client.responses.create(input=answer, tools=[WEATHER], previous_response_id=first.id)
                continue
            await client.responses.create(input=answer, tools=[WEATHER], previous_response_id=first.id)
        with pytest.raises(Refused):
            await server.app.delete_file(mine.id)
    (result,) = [block for _, blocks in read(model.calls[1]) for block in blocks if isinstance(block, ToolResult)]
    assert [(file.name, file.data) for file in result.files] == [("map.txt", b"a map")]
