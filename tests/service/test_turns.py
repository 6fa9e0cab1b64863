"""Conversations that other programs bring along: a name leads to one chat, and the model gets the given history."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.app_harness import AppHarness
from tests.support.running_server import say, say_half

from indelible.content import Message, Text, ToolCall, ToolResult
from indelible.errors import NotAllowed, TooLarge
from indelible.ids import new_id
from indelible.service.chats import LocalService
from indelible.service.turns import Given, TurnService, TurnSettings
from indelible.testing import ScriptedModel


@pytest.fixture
async def harness(engine: AsyncEngine) -> AsyncIterator[AppHarness]:
    async with AppHarness(engine).opened() as opened:
        yield opened


def open_conversations(harness: AppHarness, user: str = "ada") -> TurnService:
    return TurnService(LocalService(harness.app.service._dependencies, user=user))


async def test_a_name_leads_each_user_to_one_chat_of_their_own(harness: AppHarness) -> None:
    adas, bobs = open_conversations(harness), open_conversations(harness, "bob")
    chat_id = await adas.find_chat_id("my talk")
    assert await adas.find_chat_id("my talk") == chat_id != await bobs.find_chat_id("my talk")
    assert await adas.find_chat_id(chat_id) == chat_id
    assert not await adas.exists(chat_id)
    await adas.create(chat_id, Given(), TurnSettings())
    assert await adas.exists(chat_id)
    assert not await bobs.exists(chat_id)
    with pytest.raises(NotAllowed):
        await adas.create(chat_id, Given(), TurnSettings())


@pytest.mark.both_databases
async def test_the_model_gets_the_given_history_and_the_given_results(harness: AppHarness) -> None:
    model = ScriptedModel([say("Rain.")])
    await harness.start_worker(model)
    conversations = open_conversations(harness)
    given = Given(
        history=[Message(role="user", blocks=[Text("Hi")]), Message(role="assistant", blocks=[Text("Hello.")])],
        blocks=[Text("Is it raining?")],
        progress=[
            Message(role="assistant", blocks=[ToolCall(id="call_1", name="look", arguments="{}")]),
            Message(role="tool", blocks=[ToolResult(call_id="call_1", name="look", output="rain")]),
        ],
    )
    start = await conversations.create(new_id("chat"), given, TurnSettings(system="Be brief."), request={"a": 1})
    facts = await conversations.turn_facts(start.chat_id, start.seq)
    assert (facts.asked_at, facts.request, facts.outcome) == (start.at, {"a": 1}, None)
    await harness.wait_until(await harness.app.user("ada").chat(start.chat_id), lambda view: view.status == "idle")
    roles = [message.role for message in model.calls[0].messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool"]
    path = await conversations.list_path(start.chat_id)
    assert [message.role for message in path] == ["user", "assistant", "user", "assistant", "tool", "assistant"]


async def test_a_running_turn_is_found_from_its_start_and_a_second_one_is_refused(harness: AppHarness) -> None:
    conversations = open_conversations(harness)
    start = await conversations.create(new_id("chat"), Given(blocks=[Text("Hi")]), TurnSettings())
    chat = await harness.app.user("ada").chat(start.chat_id)
    await harness.start_worker(ScriptedModel([say_half("Well")]))
    await harness.wait_for_text(chat, "Well")
    running = await conversations.find_running(start.chat_id)
    assert running is not None
    assert (running.seq, running.turn_id) == (start.seq, start.turn_id)
    with pytest.raises(NotAllowed, match="Another response"):
        await conversations.send(start.chat_id, [Text("And?")])
    assert await chat.queue() == []
    await chat.interrupt()
    assert await conversations.find_running(start.chat_id) is None


async def test_a_history_that_is_too_large_changes_nothing(harness: AppHarness) -> None:
    conversations = open_conversations(harness)
    chat_id = new_id("chat")
    with pytest.raises(TooLarge):
        await conversations.create(
            chat_id, Given(history=[Message(role="user", blocks=[Text("x" * 300_000)])]), TurnSettings()
        )
    assert not await conversations.exists(chat_id)
