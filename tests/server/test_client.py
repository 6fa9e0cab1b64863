"""The client: every route, the library's own errors, and a network that does what it wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from tests.server.forwarder import Forwarder
from tests.support.app_harness import AppHarness, serve_app
from tests.support.json_client import JsonClient
from tests.support.running_server import (
    has_ended,
    has_text,
    read_text,
    read_until,
    say,
    say_half,
    text_of,
    wait_until_idle,
)

from indelible.api.events import FeedEvent
from indelible.client.http_transport import ServerFailed
from indelible.content import Part, ToolSpec
from indelible.errors import Invalid, NotAllowed, NotFound, TooLarge, TooMany
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

on_sqlite = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
HALF_SAID = say_half("Hello")


# --- every route ---


async def test_a_conversation_with_branches_is_held_over_http(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two."), say("Three.")]))
    client = server.client
    chat = await client.create_chat("First", system="Be brief.", title="Numbers", parameters={"temperature": 0})
    await wait_until_idle(client, chat["id"])
    [first, one] = await client.read_all_messages(chat["id"])

    edited = await client.edit(chat["id"], first["id"], "Second")
    await wait_until_idle(client, chat["id"])
    [second, two] = await client.read_all_messages(chat["id"])
    assert (second["id"], text_of(second), text_of(two)) == (edited["message"], "Second", "Two.")
    assert sorted(second["siblings"]) == sorted([first["id"], second["id"]])

    await client.regenerate(chat["id"], two["id"])
    await wait_until_idle(client, chat["id"])
    assert [text_of(message) for message in await client.read_all_messages(chat["id"])] == ["Second", "Three."]

    await client.switch_branch(chat["id"], one["id"])
    assert [text_of(message) for message in await client.read_all_messages(chat["id"])] == ["First", "One."]

    copy = await client.fork_chat(chat["id"], first["id"])
    assert [text_of(message) for message in await client.read_all_messages(copy["id"])] == ["First"]


async def test_a_chat_is_listed_found_changed_put_away_and_deleted(harness: AppHarness) -> None:
    client = (await harness.start_server(worker=False)).client
    titles = ["Rain in Oslo", "Rain in Bergen", "Sun"]
    ids = [(await client.create_chat(title=title))["id"] for title in titles]

    page = await client.list_chats(limit=2)
    rest = await client.list_chats(limit=2, cursor=page["next"])
    assert [chat["id"] for chat in page["items"] + rest["items"]] == ids[::-1]
    assert rest["next"] is None
    assert {chat["title"] for chat in (await client.list_chats(search="rain"))["items"]} == set(titles[:2])

    changed = await client.update_chat(ids[2], title=None, archived=True)
    assert (changed["title"], changed["archived"]) == (None, True)
    assert [chat["id"] for chat in (await client.list_chats(archived=True))["items"]] == [ids[2]]

    await client.delete_chat(ids[0])
    with pytest.raises(NotFound):
        await client.get_chat(ids[0])
    assert [chat["id"] for chat in (await client.list_chats())["items"]] == [ids[1]]
    assert await client.list_models() == [{"id": "scripted", "default": True}, {"id": "demo", "default": False}]


async def test_the_queue_is_read_changed_and_brought_forward(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([HALF_SAID, say("Three!"), say("Two!")]))
    client = server.client
    chat_id = (await client.create_chat("One"))["id"]
    await read_until(client, chat_id, has_text("Hello"))
    two, three, four = [(await client.send(chat_id, text))["queued"] for text in ("Two", "Three", "Four")]

    await client.edit_queued(chat_id, two, "Two, please")
    await client.reorder_queue(chat_id, [four, three, two])
    await client.delete_queued(chat_id, four)
    queue = await client.list_queue(chat_id)
    assert [(queued["id"], text_of(queued)) for queued in queue] == [(three, "Three"), (two, "Two, please")]

    await client.promote_queued(chat_id, three)
    await read_until(client, chat_id, lambda events: events[-1].data.get("status") == "idle", after="start")
    said = [text_of(message) for message in await client.read_all_messages(chat_id) if message["role"] != "notice"]
    assert said == ["One", "Hello", "Three", "Three!", "Two, please", "Two!"]


async def test_a_steer_joins_and_an_interrupting_message_comes_instead(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([HALF_SAID, say("Now.")]))
    client = server.client
    chat_id = (await client.create_chat("One"))["id"]
    await read_until(client, chat_id, has_text("Hello"))

    steered = await client.send(chat_id, "By the way", if_busy="steer")
    await client.delete_queued(chat_id, steered["queued"])
    sent = await client.send(chat_id, [{"type": "text", "text": "Two"}], if_busy="interrupt")

    await read_until(client, chat_id, has_text("Now."), after=sent["cursor"])
    messages = await client.read_all_messages(chat_id)
    assert [(message["role"], message["partial"]) for message in messages[:2]] == [("user", False), ("assistant", True)]
    assert text_of(messages[3]) == "Two"


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_a_reply_that_was_cut_or_failed_goes_on(harness: AppHarness) -> None:
    broken: list[Step] = [parts.text_delta("1", "Half "), RuntimeError("the model fell over")]
    server = await harness.start_server(ScriptedModel([HALF_SAID, say(" world."), broken, say("a reply.")]))
    client = server.client
    chat_id = (await client.create_chat("One"))["id"]
    await read_until(client, chat_id, has_text("Hello"))
    await client.interrupt(chat_id, wait_s=60)

    await client.continue_(chat_id)
    await wait_until_idle(client, chat_id)
    assert text_of((await client.read_all_messages(chat_id))[-1]) == " world."

    await client.send(chat_id, "Two")
    await wait_until_idle(client, chat_id)
    failed = await client.get_chat(chat_id)
    assert (failed["status"], failed["error"]["kind"]) == ("error", "unknown")

    await client.retry(chat_id, model="scripted")
    await wait_until_idle(client, chat_id)
    assert (await client.get_chat(chat_id))["error"] is None
    assert text_of((await client.read_all_messages(chat_id))[-1]) == "a reply."


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_a_message_to_a_chat_that_failed_with_others_waiting_waits_behind_them(harness: AppHarness) -> None:
    fail = asyncio.Event()

    async def fail_when_told(_call: Any) -> AsyncIterator[Part]:
        yield parts.text_delta("1", "Hello")
        await fail.wait()
        raise RuntimeError("the model fell over")

    server = await harness.start_server(ScriptedModel([fail_when_told, say_half("Two!")]))
    client = server.client
    chat = await client.create_chat("One")
    await read_until(client, chat["id"], has_text("Hello"))
    await client.send(chat["id"], "Two")
    fail.set()
    await read_until(client, chat["id"], lambda events: events[-1].data.get("status") == "error", after=chat["cursor"])

    sent = await client.send(chat["id"], "Three")

    await read_until(client, chat["id"], has_text("Two!"), after=sent["cursor"])
    assert [queued["id"] for queued in await client.list_queue(chat["id"])] == [sent["queued"]]


async def test_results_of_the_clients_own_tools_are_brought(harness: AppHarness) -> None:
    ask = ToolSpec(name="ask", description="Ask the user.", input_schema={"type": "object"})
    calls = [parts.tool_call("call_1", "ask", "{}"), parts.finish("tool_calls")]
    server = await harness.start_server(ScriptedModel([calls, say("Thanks.")]), client_tools=[ask])
    client = server.client
    chat_id = (await client.create_chat("One"))["id"]
    events = await read_until(client, chat_id, lambda events: events[-1].kind == "action", after="start")
    assert [call["id"] for call in events[-1].data["calls"]] == ["call_1"]

    with pytest.raises(Invalid):
        await client.submit_tool_results(chat_id, [{"tool_call_id": "call_2", "output": "?"}])
    await client.submit_tool_results(chat_id, [{"tool_call_id": "call_1", "output": {"answer": 42}}])

    await wait_until_idle(client, chat_id)
    [tool] = [message for message in await client.read_all_messages(chat_id) if message["role"] == "tool"]
    assert (tool["blocks"][0]["name"], tool["blocks"][0]["output"]) == ("ask", '{"answer":42}')


async def test_a_long_conversation_is_read_page_by_page(harness: AppHarness) -> None:
    client = (await harness.start_server(ScriptedModel([say(f"{number}!") for number in range(4)]))).client
    chat = await client.create_chat("0")
    for number in range(1, 4):
        await wait_until_idle(client, chat["id"])
        await client.send(chat["id"], str(number))
    await wait_until_idle(client, chat["id"])

    page = await client.list_messages(chat["id"], limit=3)
    above = await client.list_messages(chat["id"], before=page["next"], limit=5)

    said = [text_of(message) for message in above["items"] + page["items"]]
    assert said == ["0", "0!", "1", "1!", "2", "2!", "3", "3!"]
    assert above["next"] is None
    assert page["cursor"] == (await client.get_chat(chat["id"]))["cursor"]


# --- errors are the library's own ---


@on_sqlite
async def test_a_refusal_is_the_error_that_the_library_would_raise(harness: AppHarness) -> None:
    client = (await harness.start_server(worker=False, queue_max=1)).client
    chat_id = (await client.create_chat("One"))["id"]
    await client.send(chat_id, "Two")
    with pytest.raises(NotAllowed) as refused:
        await client.retry(chat_id)
    assert (refused.value.command, refused.value.state) == ("retry", "running")
    with pytest.raises(TooMany):
        await client.send(chat_id, "Three")
    with pytest.raises(TooLarge):
        await client.send(chat_id, "x" * 300_000)
    with pytest.raises(Invalid, match="The message is empty"):
        await client.send(chat_id, " ")
    with pytest.raises(NotFound):
        async for _ in client.stream_events("nobody"):
            pass


# --- the network ---


@on_sqlite
async def test_a_write_whose_answer_was_lost_happens_once(database: str) -> None:
    async with (
        serve_app(database, worker=False) as server,
        Forwarder([server.url]).listening() as network,
        JsonClient(network.url) as client,
    ):
        network.lose_answers(2)
        chat = await client.create_chat("One")
        network.lose_answers(2)
        sent = await client.send(chat["id"], "Two")
        network.lose_answers(2)
        await client.fork_chat(chat["id"], chat["message"])
        assert [queued["id"] for queued in await client.list_queue(chat["id"])] == [sent["queued"]]
        network.lose_answers(2)
        await client.delete_queued(chat["id"], sent["queued"])
        assert len((await client.list_chats())["items"]) == 2
        network.lose_answers(2)
        await client.delete_chat(chat["id"])
        assert len((await client.list_chats())["items"]) == 1


async def test_a_feed_that_is_cut_again_and_again_tells_everything_once(harness: AppHarness) -> None:
    words = [f"{number} " for number in range(40)]
    heard = asyncio.Event()

    async def speak(_call: Any) -> AsyncIterator[Part]:
        for word in words:
            heard.clear()
            yield parts.text_delta("1", word)
            await heard.wait()
        yield parts.finish()

    server = await harness.start_server(ScriptedModel([speak]))
    chat = await server.client.create_chat("Count")
    events: list[FeedEvent] = []
    reconnects = 0

    def note() -> None:
        nonlocal reconnects
        reconnects += 1

    async with (
        Forwarder([server.url]).listening() as network,
        JsonClient(network.url) as client,
        aclosing(client.stream_events(chat["id"], after="start", on_reconnect=note)) as feed,
    ):
        async for event in feed:
            events.append(event)
            heard.set()
            if len(events) % 7 == 0:
                await network.cut()
            if has_ended(events):
                break

    assert read_text(events) == "".join(words)
    assert len({event.cursor for event in events}) == len(events)
    assert reconnects == network.connections - 1 >= 5


async def test_a_feed_ends_when_its_chat_is_deleted(harness: AppHarness) -> None:
    client = (await harness.start_server(worker=False)).client
    chat_id = (await client.create_chat())["id"]
    kinds: list[str] = []
    async for event in client.stream_events(chat_id):
        kinds.append(event.kind)
        await client.delete_chat(chat_id)
    assert kinds == ["snapshot"]


@on_sqlite
async def test_a_server_that_cannot_be_reached_is_given_up_after_a_while(database: str) -> None:
    async with serve_app(database, worker=False) as server:
        url = server.url
    async with JsonClient(url, retry_for_s=0.05) as client:
        with pytest.raises(ServerFailed, match="The server is unreachable"):
            await client.list_chats()
        with pytest.raises(ServerFailed, match="The server is unreachable"):
            async for _ in client.stream_events("chat_1"):
                pass
