"""`/v1/responses` and `/v1/conversations` as the official SDK uses them, unmodified."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel
from tests.server.compat.compat_clients import open_openai, text_of_events
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, say, say_half
from tests.support.waiting import deadline, poll_until

from indelible.content import Text, Usage
from indelible.errors import ModelFailed
from indelible.ids import new_id
from indelible.machine.commands import Create
from indelible.server.compat.openai import ResponseName
from indelible.store.payloads import NewChat
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step
from indelible.tools.tool import tool

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def call_weather(call_id: str, city: str) -> list[Step]:
    arguments = json.dumps({"city": city})
    begun = [parts.tool_input_start(call_id, "weather"), parts.tool_input_delta(call_id, arguments)]
    return [
        *begun,
        parts.tool_input_end(call_id),
        parts.tool_call(call_id, "weather", arguments),
        parts.finish("tool_calls"),
    ]


async def wait_for_status(client: openai.AsyncOpenAI, response_id: str, status: str) -> Any:
    async def is_so() -> bool:
        return (await client.responses.retrieve(response_id)).status == status

    await poll_until(is_so, what=f"a response that is {status}")
    return await client.responses.retrieve(response_id)


async def test_a_response_is_created_retrieved_and_shown_in_the_native_api(harness: AppHarness) -> None:
    said = [parts.text_start("1"), parts.text_delta("1", "Hello "), parts.text_delta("1", "Ada."), parts.text_end("1")]
    model = ScriptedModel([[*said, parts.finish(usage=Usage(input_tokens=3, output_tokens=2))]])
    server: RunningServer = await harness.start_server(model)
    async with open_openai(server) as client:
        made = await client.responses.create(
            input="Hi", model="scripted", instructions="Be brief.", metadata={"a": "b"}
        )
        assert (made.status, made.output_text, made.metadata) == ("completed", "Hello Ada.", {"a": "b"})
        assert made.usage is not None
        assert made.usage.total_tokens == 5
        assert await client.responses.retrieve(made.id) == made
        items = await client.responses.input_items.list(made.id)
        assert [item.type for item in items.data] == ["message"]
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
    assert [message.role for message in model.calls[0].messages] == ["system", "user"]
    assert (await server.client.list_chats())["items"] == []


async def test_a_stream_can_be_resumed_after_every_event(harness: AppHarness) -> None:
    thought = [parts.reasoning_start("r"), parts.reasoning_delta("r", "Hm"), parts.reasoning_end("r")]
    server = await harness.start_server(ScriptedModel([[*thought, *say("Hello there.")]]))
    async with open_openai(server) as client:
        live = [event async for event in await client.responses.create(input="Hi", stream=True, background=True)]
        assert [event.sequence_number for event in live] == list(range(len(live)))
        assert text_of_events(live) == "Hello there."
        response_id = live[0].response.id  # type: ignore[union-attr]
        for seen in range(-1, len(live)):
            stream = await client.responses.retrieve(response_id, stream=True, starting_after=seen)
            assert [event async for event in stream] == live[seen + 1 :]
        async with client.responses.stream(response_id=response_id, starting_after=3) as resumed:
            assert [event.sequence_number async for event in resumed] == list(range(4, len(live)))
            assert (await resumed.get_final_response()).output_text == "Hello there."


async def test_a_background_response_is_polled_and_cancelled_and_keeps_its_text(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half("Once upon")]))
    async with open_openai(server) as client, deadline():
        made = await client.responses.create(input="A story", background=True)
        assert made.status == "in_progress"
        with pytest.raises(openai.ConflictError, match="still in progress"):
            await client.responses.create(input="And?", previous_response_id=made.id)
        stream = await client.responses.retrieve(made.id, stream=True)
        events = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                cancelled = await client.responses.cancel(made.id)
                assert (cancelled.status, cancelled.output_text) == ("cancelled", "Once upon")
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.status == "cancelled"
        assert events[-1].response.output_text == "Once upon"
        assert (await client.responses.cancel(made.id)).status == "cancelled"


async def test_function_calling_takes_two_requests_and_is_one_turn(harness: AppHarness) -> None:
    model = ScriptedModel([call_weather("call_1", "Oslo"), say("Rain.")])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        first = await client.responses.create(input="Weather in Oslo?", tools=[WEATHER])
        (call,) = first.output
        assert call.type == "function_call"
        assert (call.call_id, json.loads(call.arguments)) == ("call_1", {"city": "Oslo"})
        with pytest.raises(openai.BadRequestError, match="No tool output found for function call call_1"):
            await client.responses.create(input="Well?", previous_response_id=first.id, tools=[WEATHER])
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        second = await client.responses.create(input=[output], previous_response_id=first.id, tools=[WEATHER])
        assert second.output_text == "Rain."
        assert await client.responses.retrieve(first.id) == first
        assert await client.responses.retrieve(second.id) == second
    (chat,) = (await server.client.list_chats())["items"]
    roles = [message["role"] for message in (await server.client.get_chat(chat["id"]))["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]


async def test_agents_send_the_whole_conversation_with_every_request(harness: AppHarness) -> None:
    model = ScriptedModel([call_weather("call_1", "Oslo"), say("Rain.")])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        question: Any = [{"role": "user", "content": "Weather in Oslo?"}]
        first = await client.responses.create(input=question, tools=[WEATHER])
        done = [item.model_dump(exclude_none=True) for item in first.output]
        output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        everything: Any = [*question, *done, output]
        second = await client.responses.create(input=everything, tools=[WEATHER])
        assert second.output_text == "Rain."
    assert [message.role for message in model.calls[1].messages] == ["user", "assistant", "tool"]


async def test_a_tool_of_the_server_is_no_call_for_the_client(harness: AppHarness) -> None:
    @tool
    async def weather(city: str) -> str:
        return f"rain in {city}"

    model = ScriptedModel([call_weather("call_1", "Oslo"), say("Rain.")])
    server = await harness.start_server(model, tools=[weather])
    async with open_openai(server) as client:
        made = await client.responses.create(input="Weather in Oslo?")
        assert [item.type for item in made.output] == ["mcp_call", "message"]
        assert made.output[0].output == "rain in Oslo"  # type: ignore[union-attr]


async def test_an_older_response_is_continued_in_a_copy(harness: AppHarness) -> None:
    model = ScriptedModel([say("One."), say("Two."), say("Other two.")])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        first = await client.responses.create(input="First?", instructions="Be brief.")
        second = await client.responses.create(input="Second?", previous_response_id=first.id)
        other = await client.responses.create(input="Another?", previous_response_id=first.id)
        assert (second.output_text, other.output_text) == ("Two.", "Other two.")
        assert second.id[:31] == first.id[:31] != other.id[:31]
        with pytest.raises(openai.ConflictError, match="longer conversation"):
            await client.responses.delete(second.id)
    texts = [message.blocks[0].text for message in model.calls[2].messages]
    assert texts == ["First?", "One.", "Another?"]  # instructions are not carried over


async def test_a_structured_answer_is_parsed(harness: AppHarness) -> None:
    class City(BaseModel):
        name: str

    model = ScriptedModel([say('{"name": "Oslo"}')])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        parsed = await client.responses.parse(input="Where?", text_format=City)
        assert parsed.output_parsed == City(name="Oslo")
    assert model.calls[0].parameters["format"]["type"] == "json_schema"


async def test_a_conversation_is_a_chat_and_is_locked_while_a_response_runs(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello Ada."), say_half("Well")])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        item: Any = {"type": "message", "role": "user", "content": "My name is Ada."}
        made = await client.conversations.create(metadata={"topic": "names"}, items=[item])
        chat = made.id.replace("conv_", "/chats/chat_")
        async with server.request("PATCH", chat, json={"labels": ["work", "topic=names"]}) as patched:
            assert patched.status == 200
        assert (await client.conversations.retrieve(made.id)).metadata == {"topic": "names"}
        updated = await client.conversations.update(made.id, metadata={"place": "Oslo"})
        assert updated.metadata == {"place": "Oslo"}
        async with server.request("GET", chat) as shown:
            assert (await shown.json())["labels"] == ["work", "place=Oslo"]
        answer = await client.responses.create(input="Who am I?", conversation=made.id)
        assert (answer.output_text, answer.conversation and answer.conversation.id) == ("Hello Ada.", made.id)
        running = await client.responses.create(input="Sure?", conversation=made.id, background=True)
        with pytest.raises(openai.ConflictError) as locked:
            await client.responses.create(input="Really?", conversation=made.id)
        assert locked.value.code == "conversation_locked"
        await client.responses.cancel(running.id)
        items = await client.conversations.items.list(made.id, order="asc")
        assert [item.type for item in items.data][:3] == ["message", "message", "message"]
        await client.conversations.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_a_failed_response_says_why_and_keeps_its_text(harness: AppHarness) -> None:
    broken: list[Step] = [parts.text_start("1"), parts.text_delta("1", "Half"), RuntimeError("boom")]
    server = await harness.start_server(ScriptedModel([broken]))
    async with open_openai(server) as client:
        events = [event async for event in await client.responses.create(input="Hi", stream=True)]
        assert events[-1].type == "response.failed"
        assert events[-1].response.error is not None
        assert events[-1].response.output_text == "Half"


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_a_response_that_fails_while_its_client_waits_is_an_http_error(harness: AppHarness) -> None:
    """In the background it is a response whose status says so: its client asks for it later."""
    refused = [ModelFailed("Slow down.", kind="usage_limit"), ModelFailed("No.", kind="auth")]
    failures: list[Step] = [*refused, RuntimeError("boom")]
    model = ScriptedModel([[failure] for failure in [*failures, *failures[:2]]])
    server = await harness.start_server(model)
    async with open_openai(server) as client, deadline():
        client.max_retries = 2  # as it comes; the worker has tried again already
        for kind, status in (("usage_limit", 429), ("auth", 502), ("unknown", 502)):
            with pytest.raises(openai.APIStatusError) as raised:
                await client.responses.create(input="Hi")
            assert (raised.value.status_code, raised.value.code) == (status, kind)
        with pytest.raises(openai.APIStatusError):
            await client.responses.create(input="Hi", store=False)
        assert len((await server.client.list_chats())["items"]) == 3
        assert len(model.calls) == 4
        running = await client.responses.create(input="Hi", background=True)
        failed = await wait_for_status(client, running.id, "failed")
        assert failed.error is not None


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_a_response_has_every_field_of_the_schema_and_the_same_ones_later(harness: AppHarness) -> None:
    """The ones that Open Responses requires, with OpenAI's defaults for what nobody chose."""
    server = await harness.start_server(ScriptedModel([say("One."), say("Two."), [RuntimeError("boom")]]))
    defaults: dict[str, Any] = {
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_logprobs": 0,
        "max_tool_calls": None,
        "safety_identifier": None,
        "prompt_cache_key": None,
        "temperature": 1,
        "top_p": 1,
    }
    chosen: dict[str, Any] = {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "safety_identifier": "user-1",
        "prompt_cache_key": "job",
        "temperature": 0.5,
        "top_p": 0.5,
    }
    async with open_openai(server) as client:
        plain = await client.responses.create(input="Hi")
        shown = plain.to_dict()
        assert {name: shown[name] for name in defaults} == defaults
        assert plain.completed_at is not None
        assert plain.completed_at >= plain.created_at
        assert await client.responses.retrieve(plain.id) == plain
        own: Any = {name: value for name, value in chosen.items() if "penalty" not in name}
        more = {name: value for name, value in chosen.items() if "penalty" in name}
        made = await client.responses.create(input="Hi", extra_body=more, **own)
        assert {name: made.to_dict()[name] for name in chosen} == chosen
        failed = await client.responses.create(input="Hi", background=True)
        assert (await wait_for_status(client, failed.id, "failed")).completed_at is None


async def test_a_call_that_the_server_has_answered_is_not_in_the_output_of_a_complete_response(
    harness: AppHarness,
) -> None:
    """Clients run the calls in it: this one was refused, because its arguments are no JSON, and the model went on."""
    broken: list[Step] = [parts.tool_call("call_1", "weather", "no JSON"), parts.finish("tool_calls")]
    server = await harness.start_server(ScriptedModel([broken, say("Sorry.")]))
    async with open_openai(server) as client:
        events = [event async for event in await client.responses.create(input="Hi", tools=[WEATHER], stream=True)]
        added = [event.item.type for event in events if event.type == "response.output_item.added"]
        assert added == ["function_call", "message"]
        assert events[-1].type == "response.completed"
        assert [item.type for item in events[-1].response.output] == ["message"]


async def test_of_the_calls_of_the_last_step_only_those_that_wait_are_in_the_output(harness: AppHarness) -> None:
    model = ScriptedModel([[parts.tool_call("call_1", "weather", "no JSON"), *call_weather("call_2", "Oslo")]])
    server = await harness.start_server(model)
    async with open_openai(server) as client, deadline():
        made = await client.responses.create(input="Hi", tools=[WEATHER])
    assert [item.to_dict().get("call_id") for item in made.output] == ["call_2"]


async def test_tools_that_nothing_here_can_serve_are_left_out_and_named(harness: AppHarness) -> None:
    """Codex declares them in every request, and goes on without."""
    model = ScriptedModel([say("One."), say("Two."), say("Three.")])
    server = await harness.start_server(model)
    declared: Any = [
        WEATHER,
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "multi_agent_v1", "description": "", "tools": [WEATHER]},
        {"type": "custom", "name": "apply_patch, \r\nX-Evil: 1", "format": {"type": "grammar"}},
    ]
    named = "web_search, namespace:multi_agent_v1, custom:apply_patch????X-Evil:?1"
    completion: Any = [{"type": "function", "function": {"name": "ask"}}, {"type": "custom", "custom": {"name": "p"}}]
    async with open_openai(server) as client:
        answer = await client.responses.with_raw_response.create(input="Hi", tools=declared)
        assert answer.headers["x-indelible-left-out-tools"] == named
        assert [tool.name for tool in answer.parse().tools] == ["weather"]  # type: ignore[union-attr]
        streamed = await client.responses.with_raw_response.create(input="Hi", tools=declared[1:], stream=True)
        assert streamed.headers["x-indelible-left-out-tools"] == named
        events = [event async for event in streamed.parse()]
        assert events[-1].response.tools == []  # type: ignore[union-attr]
        messages: Any = [{"role": "user", "content": "Hi"}]
        other = await client.chat.completions.with_raw_response.create(
            model="scripted", messages=messages, tools=completion
        )
        assert other.headers["x-indelible-left-out-tools"] == "custom:p"
    assert [[tool.name for tool in call.tools] for call in model.calls] == [["weather"], [], ["ask"]]


@pytest.mark.both_databases
async def test_items_are_added_to_a_conversation_without_a_reply(harness: AppHarness) -> None:
    """As the sessions of openai-agents do: calls in one request, their output in the next."""
    model = ScriptedModel([say("Rain."), say_half("Well")])
    server = await harness.start_server(model)
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    async with open_openai(server) as client:
        made = await client.conversations.create()
        asked: Any = [{"role": "user", "content": "Weather?"}, call]
        added = await client.conversations.items.create(made.id, items=asked)
        assert [item.type for item in added.data] == ["message", "function_call"]
        assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[1].id, False)
        answered: Any = [output]
        await client.conversations.items.create(made.id, items=answered)
        chat = await server.client.get_chat(made.id.replace("conv_", "chat_"))
        assert (chat["status"], [message["role"] for message in chat["messages"]]) == (
            "idle",
            ["user", "assistant", "tool"],
        )
        await client.responses.create(input="So?", conversation=made.id)
        listed = [item.type async for item in client.conversations.items.list(made.id, order="asc")]
        assert listed == ["message", "function_call", "function_call_output", "message", "message"]
        running = await client.responses.create(input="And?", conversation=made.id, background=True)
        with pytest.raises(openai.ConflictError):
            await client.conversations.items.create(made.id, items=answered)
        with pytest.raises(openai.BadRequestError):
            await client.conversations.items.create(made.id, items=[])
        await client.responses.cancel(running.id)
    told = [(message.role, len(message.blocks)) for message in model.calls[0].messages]
    assert told == [("user", 1), ("assistant", 1), ("tool", 1), ("user", 1)]


@pytest.mark.both_databases
async def test_a_conversation_that_came_as_items_has_a_title(harness: AppHarness) -> None:
    """The first words, as that of every chat (rule 10.15). Its owner's own title stays."""
    server = await harness.start_server(worker=False)
    items: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is **Oslo**?"}]
    async with open_openai(server) as client:
        begun = await client.conversations.create(items=items)
        added, named = await client.conversations.create(), await client.conversations.create()
        await server.client.update_chat(named.id.replace("conv_", "chat_"), title="Mine")
        for made in (added, named):
            await client.conversations.items.create(made.id, items=items)
            await client.conversations.items.create(made.id, items=[{"role": "user", "content": "Later."}])
        titles = {chat["id"][5:]: chat["title"] for chat in (await server.client.list_chats())["items"]}
        assert [titles[made.id[5:]] for made in (begun, added, named)] == ["Where is Oslo?", "Where is Oslo?", "Mine"]


async def test_a_conversation_shows_all_of_its_items(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    async with open_openai(server) as client:
        made = await client.conversations.create()
        for start in range(0, 450, 150):
            batch: Any = [{"role": "user", "content": str(at)} for at in range(start, start + 150)]
            added = await client.conversations.items.create(made.id, items=batch)
            assert (len(added.data), added.has_more) == (150, False)
        items = [item async for item in client.conversations.items.list(made.id, order="asc", limit=100)]
        shown: list[Any] = items
        assert [item.content[0].text for item in shown] == [str(at) for at in range(450)]
        first: Any = await client.conversations.items.retrieve(items[0].id or "", conversation_id=made.id)
        assert first.content[0].text == "0"


async def test_input_tokens_are_what_the_model_counted_and_an_estimate_of_the_rest(harness: AppHarness) -> None:
    told = [*say("Hello.")[:-1], parts.finish(usage=Usage(input_tokens=900, output_tokens=100))]
    server = await harness.start_server(ScriptedModel([told]))
    async with open_openai(server) as client:
        short = (await client.responses.input_tokens.count(input="Hi")).input_tokens
        long = (await client.responses.input_tokens.count(input="Hi " * 400)).input_tokens
        assert 0 < short < 30
        assert 250 < long - short < 350
        instructed = await client.responses.input_tokens.count(input="Hi", instructions="Be brief. " * 40)
        assert 80 < instructed.input_tokens - short < 120
        made = await client.responses.create(input="Hi")
        chained = await client.responses.input_tokens.count(input="Hi", previous_response_id=made.id)
        assert chained.input_tokens == 1000 + short
        conversation = await client.conversations.create(items=[{"role": "user", "content": "Hi " * 400}])
        joined = await client.responses.input_tokens.count(input="Hi", conversation=conversation.id)
        assert joined.input_tokens == pytest.approx(long + short, abs=2)
    assert len((await server.client.list_chats())["items"]) == 2


async def test_a_response_that_is_not_to_be_stored_is_gone_when_it_was_delivered(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two.")]))
    async with open_openai(server) as client:
        assert (await client.responses.create(input="Hi", store=False)).output_text == "One."
        events = [event async for event in await client.responses.create(input="Hi", store=False, stream=True)]
        assert events[-1].type == "response.completed"

    async def is_gone() -> bool:
        return not (await server.client.list_chats())["items"]

    await poll_until(is_gone)


@pytest.mark.parametrize(
    "note",
    [
        {"response": {"tools": 1}},
        {"response": {"tools": [1]}},
        {"response": {"tools": [{"type": "function"}]}},
        {"response": {"metadata": [], "model": {}}},
        {"response": 1, "inputs": 10**30, "settings": [], "continues": {}},
        {"inputs": -1},
        {"inputs": "all"},
    ],
)
@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_a_stored_request_is_read_whatever_it_holds(harness: AppHarness, note: dict[str, Any]) -> None:
    """One that was noted before there was a column for it may have been written by a user."""
    server = await harness.start_server(ScriptedModel([say("Hello."), say("Again.")]))
    owner_id = await server.app.store.ensure_user("local")
    new = NewChat(owner_id=owner_id, blocks=[Text("Hi")], request=note)
    created = await server.app.store.execute(new_id("chat"), Create(with_message=True), new)
    response_id = str(ResponseName(created.chat_id, created.seq))
    async with open_openai(server) as client:
        await wait_for_status(client, response_id, "completed")
        assert len((await client.responses.input_items.list(response_id)).data) == 1
        following = await client.responses.create(input="And?", previous_response_id=response_id)
        assert following.output_text == "Again."
