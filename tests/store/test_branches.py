"""Where branches lead and what the tree of a chat shows, on both databases (rule 10.2, 10.3)."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.support.engine import get_database
from tests.support.tables import messages

from indelible.content import Finish, TextDelta, ToolCall, ToolResult
from indelible.errors import NotFound
from indelible.ids import new_id
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.commands.change import CONTINUE
from indelible.store.store import Store

LOOK, ASK = ToolCall(id="c1", name="look", arguments="{}"), ToolCall(id="c2", name="ask", arguments="{}")
SEEN = ToolResult(call_id="c1", name="look", output="seen")
ERROR = {"kind": "auth", "message": "The key is wrong."}


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    chat = await Driver(store, engine).create("one")
    await reply(chat, "first")
    return chat


async def reply(chat: Driver, text: str) -> None:
    await chat.work("live", TextDelta("1", text))
    await chat.end(c.FinishTurn, pending=[Finish()])


async def switch(chat: Driver, message_id: str, *, exact: bool = False) -> list[tuple[str, str]]:
    """The path afterwards."""
    await chat.do(c.SwitchBranch(message_id=message_id, exact=exact))
    await chat.check()
    return await chat.said()


async def test_a_branch_leads_to_the_newest_of_all_its_ends(chat: Driver) -> None:
    question, answer = await chat.last_id("user"), await chat.last_id("assistant")
    await chat.do(c.Send(), "two")
    await reply(chat, "second")
    await chat.do(c.Regenerate(message_id=answer))
    await reply(chat, "again")
    assert await switch(chat, answer) == [
        ("user", "one"),
        ("assistant", "first"),
        ("user", "two"),
        ("assistant", "second"),
    ]
    assert await switch(chat, question) == [("user", "one"), ("assistant", "again")]
    assert await switch(chat, answer, exact=True) == [("user", "one"), ("assistant", "first")]
    with pytest.raises(NotFound):
        await switch(chat, "message_x")


async def test_an_instruction_that_nobody_followed_is_no_place_to_be(chat: Driver) -> None:
    await chat.do(c.Send(), "two")
    await chat.work("live", TextDelta("1", "sec"))
    await chat.bury()
    await chat.do(c.Acquire(worker_id="live"))
    partial = await chat.last_id("assistant")
    assert (await chat.said())[-1] == ("user", CONTINUE)
    await chat.do(c.Edit(message_id=await chat.last_id("user")), "zwei")
    await reply(chat, "zweitens")
    assert (await switch(chat, partial))[-1] == ("assistant", "sec")
    hidden = [row.id for row in await chat.rows(messages) if row.visibility == "model"]
    with pytest.raises(NotFound):
        await switch(chat, hidden[0])


async def test_results_of_tools_and_of_a_client_come_along(chat: Driver, engine: AsyncEngine) -> None:
    await chat.do(c.Send(), "two")
    await chat.work("live", LOOK, ASK)
    await chat.end(c.AwaitAction, pending=[SEEN, Finish("tool_calls")])
    call = await chat.last_id("assistant")
    given = [ToolResult(call_id="c2", name="ask", output="yes")]
    await chat.do(c.ToolResults(call_ids=("c2",)), results=given)
    await reply(chat, "done")
    assert (await switch(chat, call, exact=True))[2:] == [
        ("user", "two"),
        ("assistant", ""),
        ("tool", "seen"),
        ("tool", "yes"),
    ]
    assert (await switch(chat, await chat.last_id("user"), exact=True))[-1] == ("user", "two")
    copy = Driver(chat.store, engine)
    await chat.store.fork(chat.id, call, new_chat_id=copy.id, owner_id=OWNER)
    assert (await copy.said())[-2:] == [("tool", "seen"), ("tool", "yes")]


async def test_the_error_of_a_branch_is_kept_and_restored(chat: Driver) -> None:
    answer = await chat.last_id("assistant")
    await chat.do(c.Send(), "two")
    await chat.work()
    await chat.end(c.Fail, error=ERROR, notice="The key is wrong.")
    failed = await chat.store.view(chat.id)
    assert (failed.status, failed.error) == ("error", ERROR)
    await switch(chat, answer, exact=True)
    assert ((await chat.store.view(chat.id)).error, await chat.state()) == (None, State.IDLE)
    await chat.do(c.Send(), "zwei")
    await reply(chat, "good")
    await switch(chat, failed.messages[-1].id or "")
    back = await chat.store.view(chat.id)
    assert (back.status, back.error, await chat.state()) == ("error", ERROR, State.ERROR)
    assert (await chat.list_events())[-2:] == [("error", None, ERROR), ("status", None, {"status": "error"})]


async def test_a_turn_that_crashed_too_often_has_its_error_on_its_branch_too(chat: Driver) -> None:
    answer = await chat.last_id("assistant")
    await chat.do(c.Send(), "two")
    await chat.do(c.Acquire(worker_id="dead"))
    for number in range(3):
        await chat.bury()
        await chat.do(c.Acquire(worker_id=f"w{number}"))
    error = (await chat.store.view(chat.id)).error
    assert error["kind"] == "crashed"
    await switch(chat, answer, exact=True)
    await switch(chat, answer)
    assert (await chat.store.view(chat.id)).error == error


async def test_a_chat_with_a_queue_keeps_its_error_on_every_branch(chat: Driver) -> None:
    answer = await chat.last_id("assistant")
    await chat.do(c.Send(), "two")
    await chat.work()
    await chat.do(c.Send(), "three")
    await chat.end(c.Fail, error=ERROR)
    await switch(chat, answer, exact=True)
    assert (await chat.state(), (await chat.store.view(chat.id)).error) == (State.ERROR_QUEUED, ERROR)


async def test_the_tree_has_every_branch_in_the_order_of_creation(chat: Driver, engine: AsyncEngine) -> None:
    await chat.do(c.Edit(message_id=await chat.last_id("user")), "eins\n\n" + "und " * 100)
    await chat.work("live", TextDelta("1", "er"))
    await chat.end(c.CommitStep, failed=True)
    await chat.start()
    await chat.say(TextDelta("1", "stens"))
    await chat.end(c.FinishTurn, pending=[Finish()])
    tree = await chat.store.tree(chat.id)
    shown = [row.id for row in await chat.rows(messages, messages.c.id) if row.visibility != "model"]
    assert [item.id for item in tree.items] == shown
    assert [item.parent_id for item in tree.items] == [None, shown[0], None, shown[2], shown[3]]
    assert [item.text for item in tree.items if item.role == "assistant"] == ["first", "er", "stens"]
    assert tree.items[2].text == f"eins {'und ' * 18}un…"
    assert tree.head == shown[-1]
    empty = await Driver(chat.store, engine).create(None)
    assert ((await chat.store.tree(empty.id)).items, (await chat.store.tree(empty.id)).head) == ([], None)
    with pytest.raises(NotFound):
        await chat.store.tree(new_id("chat"))


async def test_a_message_of_before_that_has_no_model_is_answered_by_the_chats(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await Driver(store, engine).create("one")
    await reply(chat, "first")
    async with engine.begin() as connection:
        await connection.execute(messages.update().values(model=None))
    await chat.do(c.UpdateChat(), model="big")
    await chat.do(c.Regenerate(message_id=await chat.last_id("user")))
    assert (await store.work(chat.id)).model == "big"
