"""A new chat from a message on, on both databases: a copy that owes the old one nothing (P10)."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, dump, settle_in
from tests.support.engine import begin_read, get_database
from tests.support.tables import attempts, chats, drafts, events, messages, queue, turns

from indelible.content import Finish, Message, Text, TextDelta, ToolCall, ToolResult, ToolSpec, Usage
from indelible.errors import Invalid, NotFound
from indelible.ids import new_id
from indelible.machine import State, Status
from indelible.machine import commands as c
from indelible.store.commands.change import CONTINUE
from indelible.store.payloads import ChatPatch
from indelible.store.store import Store

USED = Usage(input_tokens=7, output_tokens=5)
LOOK, ASK = ToolCall(id="c1", name="look", arguments="{}"), ToolCall(id="c2", name="ask", arguments="{}")
SUMMARY = Message(role="user", blocks=[Text("They spoke of rain.")], visibility="model")
COPIED = ("role", "blocks", "visibility", "partial", "reason", "usage", "cost_nanousd", "provider", "model", "timings")


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """A question, a reply that was cut and went on, and a second question that is being answered."""
    chat = await Driver(store, engine).create("first")
    await chat.work("live", TextDelta("1", "It "))
    await chat.end(c.CommitStep, failed=True)
    await chat.start()
    await chat.do(c.Send(), "second")
    await chat.end(c.FinishTurn, pending=[TextDelta("1", "is."), Finish(usage=USED)], cost_nanousd=12)
    await chat.start()
    await chat.say(TextDelta("1", "And"))
    return chat


async def fork(chat: Driver, engine: AsyncEngine, message_id: str, **fields: Any) -> Driver:
    """The copy, driven as a chat of its own. Nothing else is changed by making it."""
    before = await dump(engine)
    copy = Driver(chat.store, engine)
    outcome = await chat.store.fork(chat.id, message_id, **{"new_chat_id": copy.id, "owner_id": OWNER, **fields})
    assert set(before) < set(await dump(engine))
    row = await copy.row()
    assert (outcome.chat_id, outcome.effective, outcome.status) == (copy.id, True, Status.IDLE)
    assert (outcome.seq, outcome.epoch, outcome.turn_id) == (row.seq, row.epoch, None)
    await copy.check()
    return copy


async def find(chat: Driver, text: str) -> str:
    (found,) = [message.id for message in await chat.path() if message.text == text]
    assert found is not None
    return found


async def load_path(chat: Driver) -> list[Any]:
    rows = {row.id: row for row in await chat.rows(messages)}
    return [rows[message.id] for message in await chat.path()]


async def test_the_copy_is_the_path_to_the_message_word_by_word(chat: Driver, engine: AsyncEngine) -> None:
    copy = await fork(chat, engine, await find(chat, "is."))
    old, new = (await load_path(chat))[:4], await load_path(copy)
    assert [[getattr(row, name) for name in COPIED] for row in new] == [
        [getattr(row, name) for name in COPIED] for row in old
    ]
    assert [message.text for message in await copy.path()] == ["first", "It ", CONTINUE, "is."]
    assert [row.created_at for row in new] == [row.created_at for row in old]
    assert new[-1].cost_nanousd == 12
    assert await copy.state() is State.IDLE


async def test_nothing_in_the_copy_points_to_the_old_chat(chat: Driver, engine: AsyncEngine) -> None:
    copy = await fork(chat, engine, await find(chat, "is."))
    old, new = await load_path(chat), await load_path(copy)
    assert not {row.id for row in old} & {row.id for row in new}
    assert {(row.turn_id, row.attempt_id, row.response_id) for row in new} == {(None, None, None)}
    assert [row.parent_id for row in new] == [None, *(row.id for row in new[:-1])]
    assert [row.continues_id for row in new] == [None, None, None, new[1].id], "what continues what is copied too"


async def test_what_was_not_conversation_stays_behind(chat: Driver, engine: AsyncEngine) -> None:
    await chat.do(c.Send(), "third")
    copy = await fork(chat, engine, await find(chat, "second"))
    for table in (turns, attempts, queue, drafts):
        assert not await copy.rows(table)
    assert [row.kind for row in await copy.rows(events)] == ["message"] * 5
    row = await copy.row()
    assert (row.holder, row.epoch, row.error, row.retry, row.archived, row.pinned) == (
        None,
        0,
        None,
        None,
        False,
        False,
    )


async def test_what_stands_beside_the_conversation_comes_along(chat: Driver, engine: AsyncEngine) -> None:
    beside = ChatPatch(title="Rain", labels=["a"], pinned=True, model="big", system_prompt="Hm", parameters={"k": 1})
    await chat.do(c.UpdateChat(), payload=beside)
    await chat.do(c.UpdateChat(), payload=ChatPatch(debug="off", tools=[ToolSpec(name="ask_user")]))
    copy = await fork(chat, engine, await find(chat, "first"))
    old, new = await chat.row(), await copy.row()
    names = ("title", "labels", "model", "system_prompt", "parameters", "tools", "debug")
    assert [getattr(new, name) for name in names] == [getattr(old, name) for name in names]
    assert (new.title, new.debug) == ("Rain", "off")
    assert new.tools is not None


async def test_the_new_chat_may_be_somebody_elses(chat: Driver, engine: AsyncEngine, store: Store) -> None:
    grace = await store.ensure_user("grace")
    copy = await fork(chat, engine, await find(chat, "first"), owner_id=grace)
    assert (await copy.row()).owner_id == grace
    assert [summary.id for summary in await store.list_chats(grace)] == [copy.id]


async def test_the_copy_is_a_chat_like_any_other(chat: Driver, engine: AsyncEngine) -> None:
    copy = await fork(chat, engine, await find(chat, "is."))
    await copy.do(c.Send(), "And in Oslo?")
    await copy.work("live", TextDelta("1", "There too."), Finish())
    await copy.end(c.FinishTurn)
    await copy.do(c.Edit(message_id=await find(copy, "first")), "first, better")
    await copy.check()
    assert await copy.said() == [("user", "first, better")]
    assert (await chat.said())[0] == ("user", "first")


async def test_each_of_the_two_can_be_deleted_without_the_other(chat: Driver, engine: AsyncEngine) -> None:
    copies = [await fork(chat, engine, await find(chat, "is.")) for _ in range(2)]
    said = await copies[0].said()
    await copies[1].do(c.Delete())
    await chat.do(c.Delete())
    await copies[0].check()
    assert await copies[0].said() == said
    async with begin_read(engine) as connection:
        assert list((await connection.execute(select(chats.c.id))).scalars()) == [copies[0].id]


async def test_a_partial_reply_at_the_end_of_the_copy_can_be_continued(chat: Driver, engine: AsyncEngine) -> None:
    copy = await fork(chat, engine, await find(chat, "It "))
    await copy.do(c.Continue())
    await copy.work("live", TextDelta("1", "is not."), Finish())
    await copy.end(c.FinishTurn)
    await copy.check()
    partial, _, reply = (await copy.path())[-3:]
    assert (partial.partial, reply.text, reply.continues) == (True, "is not.", partial.id)


async def test_another_branch_can_be_copied_without_going_there(chat: Driver, engine: AsyncEngine) -> None:
    old = await find(chat, "is.")
    await chat.do(c.Edit(message_id=await find(chat, "first")), "first, better")
    copy = await fork(chat, engine, old)
    assert [text for role, text in await copy.said() if role == "assistant"] == ["It ", "is."]
    assert await chat.said() == [("user", "first, better")]


async def test_calls_that_are_open_at_the_end_of_the_copy_are_answered(chat: Driver, engine: AsyncEngine) -> None:
    await chat.say(LOOK, ASK, Finish("tool_calls"))
    await chat.end(c.AwaitAction)
    copy = await fork(chat, engine, await chat.last_id("assistant"))
    answers = [block for block in (await copy.path())[-1].blocks if isinstance(block, ToolResult)]
    assert [(answer.call_id, answer.name, answer.is_error) for answer in answers] == [
        ("c1", "look", True),
        ("c2", "ask", True),
    ]
    assert (await chat.state(), (await chat.path())[-1].role) == (State.REQUIRES_ACTION, "assistant"), (
        "the old chat still waits"
    )
    await copy.do(c.Send(), "Never mind")
    assert [role for role, _ in await copy.said()][-3:] == ["assistant", "tool", "user"], "answered once"


async def test_results_that_follow_the_message_come_along(chat: Driver, engine: AsyncEngine) -> None:
    await chat.say(LOOK, Finish("tool_calls"))
    await chat.end(c.CommitStep, pending=[ToolResult(call_id="c1", name="look", output="seen")])
    reply_id = await chat.last_id("assistant")
    whole = await fork(chat, engine, await chat.last_id("tool"))
    assert (await whole.said())[-1] == ("tool", "seen")
    named = await fork(chat, engine, reply_id)
    assert await named.said() == await whole.said()


async def test_a_summary_goes_along_and_the_model_still_begins_with_it(chat: Driver, engine: AsyncEngine) -> None:
    await chat.do(chat.name(c.KeepSummary), summary=SUMMARY)
    await chat.end(c.FinishTurn, pending=[Finish()])
    copy = await fork(chat, engine, await chat.last_id("assistant"))
    assert [message.text for message in await copy.path() if message.visibility == "model"] == [
        CONTINUE,
        "They spoke of rain.",
    ]


async def test_a_copy_of_a_long_path_is_whole(chat: Driver, engine: AsyncEngine) -> None:
    """Longer than what is fetched at a time."""
    await chat.end(c.FinishTurn, pending=[Finish()])
    for number in range(60):
        await chat.do(c.Send(), f"question {number}")
        await chat.do(c.Acquire(worker_id="live"))
        await chat.end(c.FinishTurn, attempt_id=None)
    copy = await fork(chat, engine, await chat.last_id("user"))
    assert await copy.said() == await chat.said()


async def test_what_is_not_there_can_not_be_copied(chat: Driver, engine: AsyncEngine, store: Store) -> None:
    other = await Driver(store, engine).create("elsewhere")
    hidden = [message.id for message in await chat.path() if message.visibility == "model"]
    first = await find(chat, "first")
    cases: list[tuple[str, str, type[Exception]]] = [
        ("chat_nowhere", first, NotFound),
        (chat.id, "message_nowhere", NotFound),
        (chat.id, await find(other, "elsewhere"), NotFound),
        (chat.id, str(hidden[0]), Invalid),
    ]
    before = await dump(engine)
    for chat_id, message_id, error in cases:
        with pytest.raises(error):
            await store.fork(chat_id, message_id, new_chat_id=new_id("chat"), owner_id=OWNER)
    assert await dump(engine) == before
