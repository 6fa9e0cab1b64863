"""Which turn answers a message, and where it began and was resumed, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, settle_in
from tests.support.engine import get_database

from indelible.content import Finish, TextDelta, ToolCall, ToolResult
from indelible.machine import commands as c
from indelible.store.payloads import ToolResultsInput
from indelible.store.store import Store


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


async def test_the_last_turn_that_answers_a_message_is_found_and_none_of_another_message(
    store: Store, engine: AsyncEngine
) -> None:
    chat, other = await Driver(store, engine).create("first"), await Driver(store, engine).create("other")
    first_id = await chat.last_id("user")
    begun = await chat.row()
    answering = await store.answering(chat.id, first_id)
    assert answering is not None
    assert answering.starts == [begun.seq]
    await chat.work("live", TextDelta("1", "It is."), Finish())
    await chat.end(c.FinishTurn)
    reply_id = await chat.last_id("assistant")
    assert await store.answering(chat.id, first_id) == answering, "its end is no beginning"
    regenerated = await store.execute(chat.id, c.Regenerate(message_id=first_id))
    again = await store.answering(chat.id, first_id)
    assert again is not None
    assert (again.turn_id, again.starts) == (regenerated.turn_id, [regenerated.seq])
    assert again.turn_id != answering.turn_id
    assert await store.answering(chat.id, reply_id) is None
    assert await store.answering(chat.id, await other.last_id("user")) is None
    assert await store.answering("chat_none", first_id) is None


async def test_a_turn_that_waited_begins_again_with_every_result_and_with_nothing_else(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await Driver(store, engine).create("first")
    message_id = await chat.last_id("user")
    starts = [(await chat.row()).seq]
    for number in (1, 2):
        call = ToolCall(id=f"c{number}", name="look", arguments="{}")
        await chat.work("live", call, Finish("tool_calls"))
        await chat.end(c.AwaitAction)
        seen = ToolResultsInput(results=[ToolResult(call_id=call.id, name="look", output="seen")])
        resumed = await store.execute(chat.id, c.ToolResults(call_ids=(call.id,)), seen)
        starts.append(resumed.seq)
    await store.execute(chat.id, c.Interrupt())
    answering = await store.answering(chat.id, message_id)
    assert answering is not None
    assert answering.starts == starts
