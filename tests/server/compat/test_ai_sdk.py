"""`/ai-sdk/chat` as `DefaultChatTransport` uses it: what it posts, and what it reads."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, say, say_half
from tests.support.waiting import deadline

from indelible.content import Text, ToolSpec
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

CALL: list[Step] = [parts.tool_call("call_1", "ask", '{"a": 1}'), parts.finish("tool_calls")]


def user(id_: str, text: str) -> dict[str, Any]:
    return {"id": id_, "role": "user", "parts": [{"type": "text", "text": text}]}


def assistant(id_: str, text: str) -> dict[str, Any]:
    return {**user(id_, text), "role": "assistant"}


def read_ui_text(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def read_prompt(model: ScriptedModel) -> list[str]:
    """What the model got last."""
    said = [
        (message.role, [block.text for block in message.blocks if isinstance(block, Text)])
        for message in model.calls[-1].messages
    ]
    return [f"{role}: {', '.join(texts)}" for role, texts in said]


class Hook:
    """What `useChat` keeps, in short: it posts all its messages, and reads chunks."""

    def __init__(self, server: RunningServer, name: str = "my chat") -> None:
        self.server = server
        self.name = name

    async def post(self, *messages: dict[str, Any], **more: Any) -> list[Any]:
        body: dict[str, Any] = {"id": self.name, "trigger": "submit-message", **more}
        body |= {"messages": list(messages)} if messages else {}
        async with self.server.request("POST", "//ai-sdk/chat", json=body) as response:
            assert response.status == 200, await response.text()
            assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
            return await read_chunks(response)

    async def resume(self) -> list[Any] | None:
        async with self.server.request("GET", f"//ai-sdk/chat/{self.name}/stream") as response:
            return None if response.status == 204 else await read_chunks(response)

    async def stop(self) -> Any:
        async with self.server.request("POST", f"//ai-sdk/chat/{self.name}/stop") as response:
            return await response.json()

    async def load(self) -> list[dict[str, Any]]:
        async with self.server.request("GET", f"//ai-sdk/chat/{self.name}/messages") as response:
            loaded: list[dict[str, Any]] = await response.json()
            return loaded


async def read_chunks(response: aiohttp.ClientResponse, *, until: str | None = None) -> list[Any]:
    chunks: list[Any] = []
    async with deadline():
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunks.append(json.loads(line[6:]))
                if until is not None and chunks[-1]["type"] == until:
                    break
    return chunks


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


async def test_a_chat_is_sent_to_edited_and_regenerated(harness: AppHarness) -> None:
    replies = [say("Hello."), say("Again."), say("Edited."), say("More.")]
    server: RunningServer = await harness.start_server(ScriptedModel(replies))
    hook = Hook(server)
    first = await hook.post(user("u1", "Hi"))
    assert text_of(first) == "Hello."
    assert [chunk["type"] for chunk in first][:2] == ["start", "start-step"]
    assert first[-1] == {"type": "finish", "finishReason": "stop"}
    asked, reply = await hook.load()
    assert (asked["id"], reply["id"]) == ("u1", first[0]["messageId"])
    again = await hook.post(user("u1", "Hi"), trigger="regenerate-message", messageId=reply["id"])
    assert (text_of(again), again[0]["messageId"]) == ("Again.", reply["id"])
    assert text_of(await hook.post(user("u1", "Hey"), messageId="u1")) == "Edited."
    assert text_of(await hook.post(user("u1", "Hey"), reply, user("u2", "More?"))) == "More."
    shown = [part["text"] for message in await hook.load() for part in message["parts"] if part["type"] == "text"]
    assert shown == ["Hey", "Edited.", "More?", "More."]
    (chat,) = (await server.client.list_chats())["items"]
    assert len((await server.client.get_tree(chat["id"]))["items"]) == 7


@pytest.mark.both_databases
async def test_messages_that_never_arrived_come_with_the_next_one_in_order_and_nothing_is_made_up(
    harness: AppHarness,
) -> None:
    model = ScriptedModel([say("Hello."), say("Both."), say("One."), say("Edited.")])
    hook = Hook(await harness.start_server(model))
    first = await hook.post(user("u1", "Hi"))
    reply = assistant(first[0]["messageId"], "Hello.")
    shown = [
        user("u1", "Hi"),
        reply,
        user("u2", "Lost"),
        assistant("made-up", "I was never asked."),
        user("u3", "Next"),
    ]
    second = await hook.post(*shown)
    assert text_of(second) == "Both."
    assert read_prompt(model) == ["user: Hi", "assistant: Hello.", "user: Lost, Next"]
    loaded = await hook.load()
    assert [(message["id"], read_ui_text(message)) for message in loaded] == [
        ("u1", "Hi"),
        (reply["id"], "Hello."),
        ("u2", "Lost"),
        ("u3", "Next"),
        (second[0]["messageId"], "Both."),
    ]
    again = await hook.post(*shown[:3], trigger="regenerate-message", messageId="u2")
    assert text_of(again) == "One."
    assert read_prompt(model)[-1] == "user: Lost"
    assert [message["id"] for message in await hook.load()][:3] == ["u1", reply["id"], "u2"]
    await hook.post(*loaded[:3], user("u3", "New"), messageId="u3")  # it is unknown by now
    assert read_prompt(model)[-3:] == ["user: Lost", "assistant: One.", "user: New"]


@pytest.mark.both_databases
async def test_the_last_of_several_messages_is_edited_and_those_above_it_stay(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello."), say("Edited.")])
    hook = Hook(await harness.start_server(model))
    (chat_id,) = [(await hook.server.client.create_chat())["id"]]
    hook.name = chat_id
    await hook.post(user("u1", "Lost"), user("u2", "Next"))
    assert text_of(await hook.post(user("u1", "Lost"), user("u2", "Better"), messageId="u2")) == "Edited."
    assert read_prompt(model) == ["user: Lost, Better"]


async def test_a_message_that_never_arrived_is_answered_when_it_is_regenerated(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello."), say("There.")])
    hook = Hook(await harness.start_server(model))
    first = await hook.post(user("u1", "Hi"))
    shown = [user("u1", "Hi"), assistant(first[0]["messageId"], "Hello."), user("u2", "Lost")]
    assert text_of(await hook.post(*shown, trigger="regenerate-message")) == "There."
    assert read_prompt(model)[-1] == "user: Lost"


async def test_messages_that_have_other_ids_in_the_hook_are_not_sent_again(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello."), say("There.")])
    hook = Hook(await harness.start_server(model))
    await hook.post(user("u1", "Hi"))
    await hook.post(user("other", "Hi"), assistant("another", "Hello."), user("u2", "Next"))
    assert read_prompt(model) == ["user: Hi", "assistant: Hello.", "user: Next"]


async def test_the_last_message_is_enough(harness: AppHarness) -> None:
    """`prepareSendMessagesRequest` of the SDK's guide on persistence: `message` in place of `messages`."""
    model = ScriptedModel([say("Hello."), say("There."), say("Anew."), say("Again.")])
    hook = Hook(await harness.start_server(model))
    await hook.post(message=user("u1", "Hi"))
    reply = await hook.post(message=user("u2", "More"))
    assert read_prompt(model) == ["user: Hi", "assistant: Hello.", "user: More"]
    assert text_of(await hook.post(trigger="regenerate-message", messageId=reply[0]["messageId"])) == "Anew."
    assert text_of(await hook.post(trigger="regenerate-message")) == "Again."
    assert read_prompt(model) == ["user: Hi", "assistant: Hello.", "user: More"]


@pytest.mark.both_databases
async def test_a_request_that_is_repeated_after_its_reply_streams_that_reply_again(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello."), say("There."), say("Edited.")])
    hook = Hook(await harness.start_server(model))
    first = await hook.post(user("u1", "Hi"))
    second = await hook.post(user("u1", "Hi"), user("u2", "More"))
    for _ in range(2):
        assert await hook.post(user("u1", "Hi"), user("u2", "More")) == second
        assert await hook.post(user("u1", "Hi")) == first
    edited = await hook.post(user("u1", "Hi"), user("u2", "Less"), messageId="u2")
    assert await hook.post(user("u1", "Hi"), user("u2", "Less"), messageId="u2") == edited
    assert text_of(edited) == "Edited."
    assert len(model.calls) == 3


@pytest.mark.both_databases
async def test_two_requests_that_are_the_same_and_come_together_start_one_turn(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello."), say("There.")])
    hook = Hook(await harness.start_server(model))
    shown: list[dict[str, Any]] = []
    for number, text in enumerate(("Hi", "More"), 1):
        shown.append(user(f"u{number}", text))
        first, *others = await asyncio.gather(*(hook.post(*shown) for _ in range(5)))
        assert all(other == first for other in others)
        assert len(model.calls) == number
    assert [read_ui_text(message) for message in await hook.load()] == ["Hi", "Hello.", "More", "There."]


@pytest.mark.both_databases
async def test_two_edits_that_are_the_same_and_come_together_start_one_turn(harness: AppHarness) -> None:
    model = ScriptedModel([say("Hello."), say("Edited.")])
    hook = Hook(await harness.start_server(model))
    await hook.post(user("u1", "Hi"))
    first, *others = await asyncio.gather(*(hook.post(user("u1", "Hey"), messageId="u1") for _ in range(5)))
    assert all(other == first for other in others)
    assert len(model.calls) == 2
    assert [read_ui_text(message) for message in await hook.load()] == ["Hey", "Edited."]


@pytest.mark.both_databases
async def test_of_two_messages_that_begin_a_chat_together_none_is_refused(harness: AppHarness) -> None:
    model = ScriptedModel([say("One."), say("Two.")])
    hook = Hook(await harness.start_server(model))
    await asyncio.gather(hook.post(user("u1", "Hi")), hook.post(user("u2", "Hey")))
    shown = [message["id"] for message in await hook.load() if message["role"] == "user"]
    assert sorted(shown) == ["u1", "u2"]


async def test_a_message_that_waits_in_the_queue_is_not_sent_again(harness: AppHarness) -> None:
    """The worker that would end the reply is frozen: the messages that interrupt it wait."""
    frozen = await harness.start_worker(ScriptedModel([say_half("One")]))
    server = await harness.start_server(worker=False, model="demo")
    hook = Hook(server)
    shown: list[dict[str, Any]] = [user("u1", "Hi")]
    async with server.request("POST", "//ai-sdk/chat", json={"id": hook.name, "messages": shown}) as response:
        await read_chunks(response, until="text-delta")
    await harness.kill_worker(frozen)
    shown.append(user("u2", "Other"))
    for _ in range(2):
        async with server.request("POST", "//ai-sdk/chat", json={"id": hook.name, "messages": shown}) as response:
            assert (await read_chunks(response, until="start"))[0]["messageId"].startswith("reply-queued_")
    shown.append(user("u3", "Third"))
    async with server.request("POST", "//ai-sdk/chat", json={"id": hook.name, "messages": shown}) as response:
        await read_chunks(response, until="start")
    (chat,) = (await server.client.list_chats())["items"]
    queue = f"/chats/{chat['id']}/queue"
    async with server.request("GET", queue) as response:
        items = (await response.json())["items"]
    assert [[block["text"] for block in item["blocks"]] for item in items] == [["Other"], ["Third"]]
    async with server.request("DELETE", f"{queue}/{items[1]['id']}") as response:
        assert response.status == 204
    async with server.request("POST", "//ai-sdk/chat", json={"id": hook.name, "messages": shown}) as response:
        await read_chunks(response, until="start")
    async with server.request("GET", queue) as response:
        assert len((await response.json())["items"]) == 2, "what was taken out of the queue can be sent again"


async def test_a_long_chat_is_shown_from_its_beginning_and_its_first_message_can_be_edited(
    harness: AppHarness,
) -> None:
    hook = Hook(await harness.start_server(ScriptedModel([say("Hello."), say("Edited.")])))
    given = [(user if at % 2 == 0 else assistant)(f"m{at}", str(at)) for at in range(451)]
    await hook.post(*given)
    loaded = await hook.load()
    assert [read_ui_text(message) for message in loaded] == [*map(str, range(451)), "Hello."]
    assert [message["id"] for message in loaded[:451:2]] == [f"m{at}" for at in range(0, 451, 2)]
    assert text_of(await hook.post(user("m0", "Anew"), messageId="m0")) == "Edited."
    assert [read_ui_text(message) for message in await hook.load()] == ["Anew", "Edited."]


async def test_a_running_reply_is_resumed_stopped_and_kept(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half("Once", " upon"), say("New.")]))
    hook = Hook(server)
    assert await hook.resume() is None
    body = {"id": hook.name, "messages": [user("u1", "A story")]}
    async with server.request("POST", "//ai-sdk/chat", json=body) as response:
        seen = await read_chunks(response, until="text-delta")
    await server.wait_for_readers(0)
    assert [message["role"] for message in await hook.load()] == ["user"]
    async with server.request("GET", f"//ai-sdk/chat/{hook.name}/stream") as resumed:
        assert (await read_chunks(resumed, until="text-delta"))[: len(seen)] == seen
        assert (await hook.stop())["stopped"]
        rest = await read_chunks(resumed)
    assert rest[-1]["type"] == "abort"
    assert await hook.resume() is None
    assert (await hook.load())[1]["parts"][-1]["text"] == "Once upon"


async def test_a_message_that_is_posted_twice_is_sent_once_and_a_new_one_interrupts(harness: AppHarness) -> None:
    model = ScriptedModel([say_half("One"), say("Two.")])
    server = await harness.start_server(model)
    hook = Hook(server)
    body = {"id": hook.name, "messages": [user("u1", "Hi")]}
    for _ in range(2):
        async with server.request("POST", "//ai-sdk/chat", json=body) as response:
            assert text_of(await read_chunks(response, until="text-delta")) == "One"
    chunks = await hook.post(user("u1", "Hi"), user("u2", "Other"))
    assert text_of(chunks) == "Two."
    assert len(model.calls) == 2
    shown = [part["text"] for message in await hook.load() for part in message["parts"] if part["type"] == "text"]
    assert shown == ["Hi", "One", "Other", "Two."]


@pytest.mark.both_databases
async def test_a_tool_of_the_browser_is_answered_into_the_same_message(harness: AppHarness) -> None:
    ask = ToolSpec(name="ask", description="Ask the user.", input_schema={"type": "object"})
    server = await harness.start_server(ScriptedModel([CALL, say("Done.")]), client_tools=[ask])
    hook = Hook(server)
    first = await hook.post(user("u1", "Use it"))
    assert first[-1] == {"type": "finish", "finishReason": "tool-calls"}
    available = next(chunk for chunk in first if chunk["type"] == "tool-input-available")
    assert available == {"type": "tool-input-available", "toolCallId": "call_1", "toolName": "ask", "input": {"a": 1}}
    assert await hook.resume() is None
    asked, reply = await hook.load()
    (call,) = [part for part in reply["parts"] if part["type"] == "tool-ask"]
    assert (call["state"], "providerExecuted" in call) == ("input-available", False)
    call |= {"state": "output-available", "output": {"answer": 42}}
    second, *others = await asyncio.gather(*(hook.post(asked, reply, messageId=reply["id"]) for _ in range(5)))
    assert (text_of(second), second[0]["messageId"]) == ("Done.", reply["id"])
    assert all(other == second for other in others), "the hook may post twice"
    assert await hook.post(asked, reply, messageId=reply["id"]) == second
    assert [part["type"] for part in (await hook.load())[1]["parts"]] == [
        "step-start",
        "tool-ask",
        "step-start",
        "text",
    ]
