"""`/ai-sdk/chat` as `DefaultChatTransport` uses it: what it posts, and what it reads."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, say, say_half
from tests.support.waiting import deadline

from indelible.content import ToolSpec
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

CALL: list[Step] = [parts.tool_call("call_1", "ask", '{"a": 1}'), parts.finish("tool_calls")]


def user(id_: str, text: str) -> dict[str, Any]:
    return {"id": id_, "role": "user", "parts": [{"type": "text", "text": text}]}


class Hook:
    """What `useChat` keeps, in short: it posts all its messages, and reads chunks."""

    def __init__(self, server: RunningServer, name: str = "my chat") -> None:
        self.server = server
        self.name = name

    async def post(self, *messages: dict[str, Any], **more: Any) -> list[Any]:
        body = {"id": self.name, "messages": list(messages), "trigger": "submit-message", **more}
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
    second = await hook.post(asked, reply, messageId=reply["id"])
    assert (text_of(second), second[0]["messageId"]) == ("Done.", reply["id"])
    assert [part["type"] for part in (await hook.load())[1]["parts"]] == [
        "step-start",
        "tool-ask",
        "step-start",
        "text",
    ]
