"""A request of an OpenAI client that is repeated with its key starts one turn; one that is refused changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from tests.server.compat.compat_clients import open_openai
from tests.server.compat.test_responses import WEATHER, call_weather
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, say, say_half
from tests.support.waiting import poll_until

from indelible.content import Part
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts

KEY = {"Idempotency-Key": "once"}


async def respond(client: openai.AsyncOpenAI, *, stream: bool, **request: Any) -> tuple[str, str]:
    """Create a response with the key; returns its id and its text."""
    if not stream:
        made = await client.responses.create(**request, extra_headers=KEY)
        return made.id, made.output_text
    events = [event async for event in await client.responses.create(**request, stream=True, extra_headers=KEY)]
    return events[-1].response.id, events[-1].response.output_text


async def count_chats(server: RunningServer) -> int:
    return len((await server.client.list_chats())["items"])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_continuation_gets_the_response_to_the_first(harness: AppHarness, stream: bool) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two.")]))
    async with open_openai(server) as client:
        first = await client.responses.create(input="First?")
        second: Any = {"input": "Second?", "previous_response_id": first.id, "instructions": "Be brief."}
        answers = {await respond(client, stream=stream, **second) for _ in range(3)}
        assert [text for _, text in answers] == ["Two."]
    assert await count_chats(server) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_continuation_of_an_older_response_makes_one_copy(harness: AppHarness, stream: bool) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two."), say("Other two.")]))
    async with open_openai(server) as client:
        first = await client.responses.create(input="First?")
        await client.responses.create(input="Second?", previous_response_id=first.id)
        other: Any = {"input": "Another?", "previous_response_id": first.id, "instructions": "Be brief."}
        answers = {await respond(client, stream=stream, **other) for _ in range(3)}
        assert [text for _, text in answers] == ["Other two."]
    assert await count_chats(server) == 2


@pytest.mark.both_databases
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_requests_with_one_key_at_once_start_one_turn(harness: AppHarness, stream: bool, older: bool) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two."), *([say("Three.")] * older)]))
    async with open_openai(server) as client:
        first = await client.responses.create(input="First?")
        if older:
            await client.responses.create(input="Second?", previous_response_id=first.id)
        again: Any = {"input": "Again?", "previous_response_id": first.id, "instructions": "Be brief."}
        answers = await asyncio.gather(*(respond(client, stream=stream, **again) for _ in range(6)))
        assert [text for _, text in set(answers)] == ["Three." if older else "Two."]
    assert await count_chats(server) == (2 if older else 1)


async def test_a_request_that_is_repeated_while_its_response_runs_gets_that_response(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say_half("Well"), say_half("Well")]))
    async with open_openai(server) as client:
        conversation = await client.conversations.create()
        named: Any = {"input": "First?", "conversation": conversation.id}
        first = await client.responses.create(**named)
        for place in ({"conversation": conversation.id}, {"previous_response_id": first.id}):
            running: Any = {**place, "input": "Second?", "instructions": "Be brief.", "background": True}
            key = {"Idempotency-Key": str(place)}
            made = [await client.responses.create(**running, extra_headers=key) for _ in range(2)]
            assert made[0].id == made[1].id
            await client.responses.cancel(made[0].id)


async def test_what_the_user_adds_to_the_results_of_tools_is_sent_once(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([call_weather("call_1", "Oslo"), say("Rain."), say("Wet.")]))
    async with open_openai(server) as client:
        first = await client.responses.create(input="Weather in Oslo?", tools=[WEATHER])
        output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        given: Any = {"input": [output, {"role": "user", "content": "In a word."}], "tools": [WEATHER]}
        request: Any = {**given, "previous_response_id": first.id}
        answers = await asyncio.gather(*(respond(client, stream=False, **request) for _ in range(3)))
        assert {*answers, await respond(client, stream=False, **request)} == {answers[0]}
    (chat,) = (await server.client.list_chats())["items"]

    async def is_idle() -> bool:
        return bool((await server.client.get_chat(chat["id"]))["status"] == "idle")

    await poll_until(is_idle)
    messages = (await server.client.get_chat(chat["id"]))["messages"]
    texts = [block["text"] for message in messages for block in message["blocks"] if block["type"] == "text"]
    assert texts == ["Weather in Oslo?", "Rain.", "In a word.", "Wet."]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion_that_begins_a_named_chat_is_repeated(harness: AppHarness, stream: bool) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two.")]))
    body: Any = {"messages": [{"role": "user", "content": "Hi"}], "model": "scripted", "stream": stream}
    answers = []
    async with open_openai(server) as client:
        for key in ("a", "a", "b", "b"):
            headers = {"X-Indelible-Chat": "mine", "Idempotency-Key": key}
            raw = await client.chat.completions.with_raw_response.create(**body, extra_headers=headers)
            answers.append([word for word in ("One.", "Two.") if word in (await raw.http_response.aread()).decode()])
    assert answers == [["One."], ["One."], ["Two."], ["Two."]]


REFUSED: list[dict[str, Any]] = [
    {"model": "nobody:nothing"},
    {"input": " "},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_01"}]}]},
    {"input": "x" * 300_000},
    {"temperature": "hot"},
    {"tools": [{**WEATHER, "name": "not a name"}]},
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: json.dumps(refused)[:40])
@pytest.mark.parametrize("place", ["last", "older", "conversation"])
async def test_a_refused_request_has_changed_nothing(harness: AppHarness, refused: Any, place: str) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two.")]))
    async with open_openai(server) as client:
        first = await client.responses.create(input="First?", instructions="Be long.")
        second = await client.responses.create(input="Second?", previous_response_id=first.id, instructions="Be long.")
        (chat,) = (await server.client.list_chats())["items"]
        before = await server.client.get_chat(chat["id"])
        places = {
            "last": {"previous_response_id": second.id},
            "older": {"previous_response_id": first.id},
            "conversation": {"conversation": chat["id"].replace("chat_", "conv_")},
        }
        request = {"input": "Third?", "instructions": "Be brief.", **places[place], **refused}
        with pytest.raises(openai.APIStatusError) as error:
            await client.responses.create(**request)
        assert 400 <= error.value.status_code < 500
    assert (await server.client.list_chats())["items"] == [chat]
    assert await server.client.get_chat(chat["id"]) == before


@pytest.mark.parametrize(
    "refused",
    [
        {"metadata": {"topic": "x" * 200}},
        {"metadata": {"a=b": "c"}},
    ],
    ids=["long", "equals"],
)
async def test_a_refused_conversation_is_not_created(harness: AppHarness, refused: Any) -> None:
    server = await harness.start_server(worker=False)
    async with open_openai(server) as client:
        with pytest.raises(openai.APIStatusError) as error:
            await client.conversations.create(**refused)
        assert 400 <= error.value.status_code < 500
    assert await count_chats(server) == 0


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_messages_that_are_queued_behind_a_failure_are_named_as_the_reason(harness: AppHarness) -> None:
    fails = asyncio.Event()

    async def fail_later(_call: Call) -> AsyncIterator[Part]:
        yield parts.text_start("1")
        await fails.wait()
        raise RuntimeError("boom")

    server = await harness.start_server(ScriptedModel([say("One."), fail_later, say("Three.")]))
    async with open_openai(server) as client:
        first = await client.responses.create(input="First?")
        (chat,) = (await server.client.list_chats())["items"]
        await server.client.send(chat["id"], "Second?")
        await server.client.send(chat["id"], "Third?")
        fails.set()
        await poll_until(lambda: is_in_error(server, chat["id"]))
        conversation = chat["id"].replace("chat_", "conv_")
        for _ in range(2):
            with pytest.raises(openai.ConflictError, match="queued behind a reply that failed"):
                await client.with_options(max_retries=0).responses.create(input="Fourth?", conversation=conversation)
        copied = await client.responses.create(input="Another?", previous_response_id=first.id)
        assert copied.output_text == "Three."
    assert await count_chats(server) == 2


async def is_in_error(server: RunningServer, chat_id: str) -> bool:
    chat = await server.client.get_chat(chat_id)
    return bool(chat["status"] == "error" and len(chat["queue"]) == 1)
