"""`/v1/chat/completions` and `/v1/models` as the official SDK uses them, unmodified."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam
from tests.server.compat.compat_clients import open_openai
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, say, say_half
from tests.support.waiting import deadline, poll_until

from indelible.content import ToolResult, Usage
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

ASK: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "ask", "description": "Ask.", "parameters": {"type": "object"}},
}
CALL: list[Step] = [parts.tool_call("call_1", "ask", '{"a": 1}'), parts.finish("tool_calls")]


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def test_messages_are_taken_as_given_and_the_chat_is_kept_out_of_the_list(harness: AppHarness) -> None:
    model = ScriptedModel([say("Two.")])
    server: RunningServer = await harness.start_server(model)
    messages: Any = [{"role": "system", "content": "Count."}, user("One?"), {"role": "assistant", "content": "One."}]
    async with open_openai(server) as client:
        made = await client.chat.completions.create(model="scripted", messages=[*messages, user("Two?")])
        assert (made.choices[0].message.content, made.choices[0].finish_reason) == ("Two.", "stop")
        assert [listed.id async for listed in client.models.list()] == ["scripted", "demo"]
        assert (await client.models.retrieve("scripted")).id == "scripted"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
    texts = [(message.role, message.blocks[0].text) for message in model.calls[0].messages]
    assert texts == [("system", "Count."), ("user", "One?"), ("assistant", "One."), ("user", "Two?")]
    assert (await server.client.list_chats())["items"] == []
    assert len((await server.client.list_chats(archived=True))["items"]) == 1


async def test_a_model_may_be_named_without_its_provider_if_only_one_has_the_name(harness: AppHarness) -> None:
    models = {
        name: ScriptedModel([say(name)] * 2) for name in ("openai:small", "openai:twice", "groq:twice", "ollama:own@x")
    }
    server = await harness.start_server(ScriptedModel([say("default")]), models=models)
    async with open_openai(server) as client:
        for given, meant in [("small", "openai:small"), ("openai:small", "openai:small"), ("own", "ollama:own@x")]:
            made = await client.chat.completions.create(model=given, messages=[user("Hi")])
            assert (made.choices[0].message.content, made.model) == (meant, meant)
        response = await client.responses.create(model="groq:twice", input="Hi")
        assert (response.output_text, response.model) == ("groq:twice", "groq:twice")
        with pytest.raises(openai.NotFoundError, match="Unknown model 'twice'"):
            await client.responses.create(model="twice", input="Hi")


async def test_a_stream_has_its_usage_and_an_end(harness: AppHarness) -> None:
    said = [*say("Hello.")[:-1], parts.finish(usage=Usage(input_tokens=3, output_tokens=1))]
    server = await harness.start_server(ScriptedModel([said]))
    async with open_openai(server) as client:
        stream = await client.chat.completions.create(
            model="scripted", messages=[user("Hi")], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello."
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 4


async def test_a_named_chat_goes_on_with_its_own_history(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello Ada."), CALL, say("Done.")])
    server = await harness.start_server(model)
    async with open_openai(server, default_headers={"X-Indelible-Chat": "my talk"}) as client:
        first = await client.chat.completions.with_raw_response.create(model="scripted", messages=[user("I am Ada.")])
        second = await client.chat.completions.create(model="scripted", messages=[user("Use it.")], tools=[ASK])
        (call,) = second.choices[0].message.tool_calls or []
        assert (second.choices[0].finish_reason, call.id) == ("tool_calls", "call_1")
        asked: Any = second.choices[0].message.model_dump(exclude_none=True)
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "42"}
        third = await client.chat.completions.create(
            model="scripted", messages=[user("Use it."), asked, result], tools=[ASK]
        )
        assert third.choices[0].message.content == "Done."
    (chat,) = (await server.client.list_chats())["items"]
    assert first.headers["x-indelible-chat"] == chat["id"]
    roles = [message["role"] for message in (await server.client.get_chat(chat["id"]))["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant"]


async def test_a_long_result_is_cut_to_what_its_model_can_take(harness: AppHarness) -> None:
    model = ScriptedModel([CALL, say("Done.")], context_limit=100_000)
    server = await harness.start_server(model)
    async with open_openai(server, default_headers={"X-Indelible-Chat": "my talk"}) as client:
        first = await client.chat.completions.create(model="scripted", messages=[user("Use it.")], tools=[ASK])
        asked: Any = first.choices[0].message.model_dump(exclude_none=True)
        result: Any = {"role": "tool", "tool_call_id": "call_1", "content": "x" * 200_000}
        await client.chat.completions.create(model="scripted", messages=[user("Use it."), asked, result], tools=[ASK])
    given = [block for entry in model.calls[1].messages for block in entry.blocks if isinstance(block, ToolResult)]
    assert [100_000 - 3 <= len(result.output) <= 100_000 for result in given] == [True]


async def test_tools_without_a_chat_are_brought_along_with_their_results(harness: AppHarness) -> None:
    model = ScriptedModel([CALL, say("Done.")])
    server = await harness.start_server(model)
    async with open_openai(server) as client:
        first = await client.chat.completions.create(model="scripted", messages=[user("Use it.")], tools=[ASK])
        asked: Any = first.choices[0].message.model_dump(exclude_none=True)
        result: Any = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
        second = await client.chat.completions.create(
            model="scripted", messages=[user("Use it."), asked, result], tools=[ASK]
        )
        assert second.choices[0].message.content == "Done."
    assert [message.role for message in model.calls[1].messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(("setting", "status"), [("finish", "running"), ("stop", "idle")])
async def test_what_a_disconnect_does_is_a_setting(harness: AppHarness, setting: str, status: str) -> None:
    server = await harness.start_server(ScriptedModel([say_half("Well")]), completions_on_disconnect=setting)
    async with open_openai(server) as client, deadline():
        stream = await client.chat.completions.create(model="scripted", messages=[user("Hi")], stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await server.wait_for_readers(0)
    (chat,) = (await server.client.list_chats())["items"]

    async def is_so() -> bool:
        return bool((await server.client.get_chat(chat["id"]))["status"] == status)

    await poll_until(is_so)
    await server.client.interrupt(chat["id"], wait_s=60)
    messages = (await server.client.get_chat(chat["id"]))["messages"]
    assert messages[1]["blocks"] == [{"type": "text", "text": "Well"}]


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_a_reply_that_fails_is_an_error_with_its_reason(harness: AppHarness) -> None:
    failures = [RuntimeError("boom"), RuntimeError("boom")]
    server = await harness.start_server(ScriptedModel(failures))
    async with open_openai(server) as client:
        with pytest.raises(openai.APIStatusError) as failed:
            await client.chat.completions.create(model="scripted", messages=[user("Hi")])
        assert failed.value.status_code >= 500
        stream = await client.chat.completions.create(model="scripted", messages=[user("Hi")], stream=True)
        with pytest.raises(openai.APIError, match="unknown error"):
            [chunk async for chunk in stream]
