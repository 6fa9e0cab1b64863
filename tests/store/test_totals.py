"""What a chat has used and cost is the sum over its messages, on both databases (rule 10.7)."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.support.engine import begin_read, get_database

from indelible.content import Finish, TextDelta, Usage
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.store.store import Store
from indelible.store.usage import Totals
from indelible.testing.invariants import find_faults, load_chat

FIRST, SECOND = Usage(input_tokens=10, output_tokens=3), Usage(input_tokens=20, output_tokens=5, reasoning_tokens=2)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


async def reply(chat: Driver, usage: Usage | None, cost_nanousd: int | None = None) -> None:
    await chat.work("live", TextDelta("1", "Yes."))
    await chat.end(c.FinishTurn, pending=[Finish(usage=usage)], cost_nanousd=cost_nanousd)


async def load_totals(store: Store, chat_id: str) -> Totals:
    stored = await load_chat(store.database, chat_id)
    assert stored is not None
    assert find_faults(stored) == []
    totals = (await store.view(chat_id)).totals
    assert Totals.read(vars(stored.chat)) == totals
    return totals


async def test_a_chat_adds_up_the_replies_of_every_branch_and_a_fork_its_copies(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await Driver(store, engine).create("one")
    assert await load_totals(store, chat.id) == Totals(None, None)
    await reply(chat, FIRST, 100)
    first = await chat.last_id("assistant")
    await chat.do(c.Regenerate(message_id=first))
    await reply(chat, SECOND)

    assert await load_totals(store, chat.id) == Totals(FIRST + SECOND, 100)
    fork = new_id("chat")
    await store.fork(chat.id, first, new_chat_id=fork, owner_id=OWNER)
    assert await load_totals(store, fork) == Totals(FIRST, 100)


async def test_totals_that_do_not_add_up_are_a_fault(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create("one")
    await reply(chat, FIRST, 100)
    async with begin_read(engine) as connection:
        assert (await connection.execute(text("SELECT cost_nanousd FROM chats"))).scalar_one() == 100
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE chats SET cost_nanousd = 99"))

    stored = await load_chat(store.database, chat.id)

    assert stored is not None
    (fault,) = find_faults(stored)
    assert "its messages add up to" in fault


async def test_what_a_worker_adds_late_counts_once(store: Store, engine: AsyncEngine) -> None:
    """The reply was stopped while its worker seemed dead; the worker knows what it used (rule 1.8)."""
    chat = await (await Driver(store, engine).create()).work("live")
    await chat.bury()
    await chat.do(c.Interrupt())
    assert await load_totals(store, chat.id) == Totals(None, None)

    for _ in range(2):
        await chat.end(c.CommitStep, usage=FIRST, cost_nanousd=100)

    assert await load_totals(store, chat.id) == Totals(FIRST, 100)
