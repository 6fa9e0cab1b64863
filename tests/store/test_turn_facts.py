"""What the compatible APIs are told about a turn, on both databases, and who else gets its request: nobody."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.store.statements import counted
from tests.support.engine import get_database

from indelible.content import Finish, Text, TextDelta, ToolCall, ToolResult, ToolSpec, encode
from indelible.errors import ChatNotFound, NotFound, TooLarge
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.store.outcome import ForkPoint
from indelible.store.payloads import ChatPatch, NewChat, ToolResultsInput, UserInput
from indelible.store.store import Store
from indelible.testing import ManualClock

FIRST: dict[str, Any] = {"response": {"instructions": "request-canary"}}
RESUMED: dict[str, Any] = {"response": {"metadata": {"number": "2"}}}
NEXT: dict[str, Any] = {"response": {"metadata": {"number": "3"}}}
LOOK = ToolSpec(name="look", description="", input_schema={})


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


async def begin(store: Store, engine: AsyncEngine) -> tuple[Driver, int]:
    """A chat whose first turn has a request, and where that turn began."""
    chat = Driver(store, engine)
    new = NewChat(owner_id=OWNER, blocks=[Text("Is it raining?")], model="m", tools=[LOOK], request=FIRST)
    return chat, (await chat.do(c.Create(with_message=True), payload=new)).seq


async def test_one_statement_reads_what_a_turn_answers_how_it_ended_and_its_chat(
    store: Store, engine: AsyncEngine
) -> None:
    chat, seq = await begin(store, engine)
    running = await store.turn_facts(chat.id, seq)
    assert (running.outcome, running.last_id, running.status, running.request) == (None, None, "pending", FIRST)
    assert (running.asked_id, running.model) == (await chat.last_id("user"), "m")
    assert (running.owner_id, running.client_tools, running.has_queue) == (OWNER, frozenset({"look"}), False)
    await chat.work("live", TextDelta("1", "It is."), Finish())
    await chat.do(c.Send(), "And tomorrow?")
    assert (await store.turn_facts(chat.id, seq)).has_queue
    await chat.end(c.FinishTurn)
    with counted(get_database(engine)) as statements:
        ended = await store.turn_facts(chat.id, seq)
    assert len(statements) == 1, statements
    assert (ended.outcome, ended.last_id) == ("complete", await chat.last_id("assistant"))
    assert (ended.turn_id, ended.asked_id, ended.asked_at) == (running.turn_id, running.asked_id, running.asked_at)
    assert ended.end_id == await chat.last_id("user"), "the queued message has begun a turn of its own"
    later = await store.turn_facts(chat.id, (await chat.row()).seq)
    assert (later.asked_id, later.request) == (ended.end_id, None)


async def test_a_turn_that_waited_has_a_request_for_each_time(store: Store, engine: AsyncEngine) -> None:
    chat, seq = await begin(store, engine)
    await chat.work("live", ToolCall(id="call_1", name="look", arguments="{}"), Finish("tool_calls"))
    await chat.end(c.AwaitAction)
    waiting = await store.turn_facts(chat.id, seq)
    assert (waiting.outcome, [call["id"] for call in waiting.awaited]) == ("waiting", ["call_1"])
    results = ToolResultsInput(results=[ToolResult(call_id="call_1", name="look", output="rain")], request=RESUMED)
    resumed = await store.continue_chat(chat.id, results=results, user_id=OWNER)
    assert (await store.turn_facts(chat.id, seq)).request == FIRST
    facts = await store.turn_facts(chat.id, resumed.seq)
    assert (facts.request, facts.outcome, facts.turn_id) == (RESUMED, None, waiting.turn_id)
    assert facts.asked_at == resumed.at


async def test_a_turn_with_many_events_is_read_to_its_end(store: Store, engine: AsyncEngine) -> None:
    chat, seq = await begin(store, engine)
    await chat.work("live", TextDelta("1", "It is."), Finish())
    await chat.end(c.FinishTurn)
    for number in range(3):
        for _ in range(90):
            await store.update(chat.id, ChatPatch(title=f"Title {number}"))
        done = await store.continue_chat(chat.id, UserInput(blocks=[Text("More?")], request=NEXT), user_id=OWNER)
        await chat.work("live", TextDelta("1", "More."), Finish())
        await chat.end(c.FinishTurn)
        assert (await store.turn_facts(chat.id, done.seq)).outcome == "complete"
    assert (await store.turn_facts(chat.id, seq)).outcome == "complete"
    assert await store.pack(ended_before=datetime(2099, 1, 1, tzinfo=UTC), clock=ManualClock()) > 0
    assert (await store.turn_facts(chat.id, seq)).request == FIRST, "a request stays as long as its chat"


async def test_a_request_is_in_no_copy_and_no_export_and_goes_with_its_chat(store: Store, engine: AsyncEngine) -> None:
    chat, seq = await begin(store, engine)
    await chat.work("live", TextDelta("1", "It is."), Finish())
    await chat.end(c.FinishTurn)
    copy = await store.fork(chat.id, await chat.last_id("assistant"), new_chat_id=new_id("chat"), owner_id=OWNER)
    assert (await store.turn_facts(copy.chat_id, copy.seq)).request is None
    going_on = UserInput(blocks=[Text("And?")], request=NEXT)
    fork = ForkPoint(await chat.last_id("assistant"), new_id("chat"))
    continued = await store.continue_chat(chat.id, going_on, fork=fork, user_id=OWNER)
    assert (await store.turn_facts(continued.chat_id, continued.seq)).request == NEXT
    file = await store.export_chat(chat.id)
    assert b"request-canary" not in encode(file)
    brought = await store.import_chat(file, owner_id=OWNER)
    assert (await store.turn_facts(brought.chat_id, brought.seq)).request is None
    await store.execute(chat.id, c.Delete())
    with pytest.raises(ChatNotFound):
        await store.turn_facts(chat.id, seq)


async def test_a_chat_without_messages_has_no_turn(store: Store, engine: AsyncEngine) -> None:
    empty = await store.execute(new_id("chat"), c.Create(), NewChat(owner_id=OWNER))
    for chat_id, seq in ((empty.chat_id, 1), (new_id("chat"), 1), ("chat\0", 1)):
        with pytest.raises(NotFound):
            await store.turn_facts(chat_id, seq)


async def test_a_request_that_is_too_large_is_refused(store: Store, engine: AsyncEngine) -> None:
    chat, _ = await begin(store, engine)
    before = await chat.row()
    with pytest.raises(TooLarge):
        await store.execute(chat.id, c.Send(), UserInput(blocks=[Text("Hi")], request={"text": "x" * 300_000}))
    assert await chat.row() == before
