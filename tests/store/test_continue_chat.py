"""Going on with a chat or with a copy of it, on both databases: the copy, the settings and the turn are one write."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, dump, settle_in
from tests.store.responses import respond
from tests.support.engine import get_database

from indelible.content import File, Finish, Text, TextDelta, ToolCall, ToolResult
from indelible.errors import Invalid, NotAllowed, NotFound, TooLarge
from indelible.ids import new_id
from indelible.machine import State, Status
from indelible.machine import commands as c
from indelible.store.outcome import ForkPoint, IdempotencyKey, StoredResponse
from indelible.store.payloads import ChatPatch, ToolResultsInput, UserInput
from indelible.store.store import Store

BRIEF = ChatPatch(system_prompt="Be brief.")
AND = UserInput(blocks=[Text("And?")])
LOOK = ToolCall(id="c1", name="look", arguments="{}")
SEEN = ToolResultsInput(results=[ToolResult(call_id="c1", name="look", output="seen")])


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """A question and its reply."""
    chat = await Driver(store, engine).create("first")
    await chat.work("live", TextDelta("1", "It is."), Finish())
    await chat.end(c.FinishTurn)
    return chat


@pytest.mark.parametrize("is_copy", [False, True])
async def test_a_chat_is_continued_with_its_settings_or_not_at_all(
    store: Store, engine: AsyncEngine, chat: Driver, is_copy: bool
) -> None:
    fork = ForkPoint(await chat.last_id("assistant"), new_id("chat")) if is_copy else None
    missing = UserInput(blocks=[File(media_type="image/png", file_id="file_01")])
    long = UserInput(blocks=[Text("x" * 300_000)])
    before = await dump(engine)
    refused: list[tuple[type[Exception], UserInput, dict[str, Any]]] = [
        (NotFound, missing, {}),
        (TooLarge, long, {}),
        (NotFound, AND, {"user_id": "user_2"}),
        (Invalid, AND, {"patch": ChatPatch(debug="always")}),  # type: ignore[arg-type]
        (NotFound, AND, {"fork": ForkPoint("msg_none", new_id("chat"))}),
        (NotAllowed, AND, {"results": SEEN}),
    ]
    for error, message, more in refused:
        with pytest.raises(error):
            await store.continue_chat(chat.id, message, **{"patch": BRIEF, "fork": fork, "user_id": OWNER, **more})
        assert await dump(engine) == before
    done = await store.continue_chat(chat.id, AND, patch=BRIEF, fork=fork, user_id=OWNER)
    assert (done.chat_id, done.status) == (fork.new_chat_id if fork else chat.id, Status.RUNNING)
    work = await store.work(done.chat_id)
    assert (work.system_prompt, [message.text for message in work.messages]) == (
        "Be brief.",
        ["first", "It is.", "And?"],
    )
    assert await chat.state() == (State.IDLE if fork else State.RUNNING)
    running = await dump(engine)
    with pytest.raises(NotAllowed, match="Cannot send while the chat is running"):
        await store.continue_chat(done.chat_id, AND, patch=ChatPatch(system_prompt=None), user_id=OWNER)
    assert await dump(engine) == running


async def test_a_continuation_in_a_copy_that_is_asked_for_often_is_one(
    store: Store, engine: AsyncEngine, chat: Driver
) -> None:
    message_id = await chat.last_id("assistant")
    once = IdempotencyKey(OWNER, "k", "POST /", b"1", lambda outcome: StoredResponse(200, outcome.chat_id.encode()))
    before = await chat.row()
    going_on = partial(store.continue_chat, chat.id, AND, patch=BRIEF, user_id=OWNER)
    answers = await asyncio.gather(
        *(respond(partial(going_on, fork=ForkPoint(message_id, new_id("chat"))), once) for _ in range(8))
    )
    assert len(set(answers)) == 1
    assert await chat.row() == before
    assert len(await store.list_chats(OWNER)) == 2


async def test_results_and_a_message_beside_them_resume_a_turn_together(
    store: Store, engine: AsyncEngine, chat: Driver
) -> None:
    await chat.do(c.Send(), "second")
    await chat.work("live", LOOK, Finish("tool_calls"))
    await chat.end(c.AwaitAction)
    done = await store.continue_chat(chat.id, AND, results=SEEN, patch=BRIEF, user_id=OWNER)
    assert (await chat.state(), await chat.queued()) == (State.RUNNING_QUEUED, ["And?"])
    assert (done.seq, done.queued_id) == ((await chat.row()).seq, None)
    assert (await chat.said())[-1] == ("tool", "seen")
    await chat.check()
