"""Hundreds of users at once beside a running reply: nobody fails, and journal and heartbeat go on meanwhile.

That urgent work waits for no other work is tested in test_postgres.py and test_sqlite.py, one database call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, settle_in

from indelible.clock import SystemClock
from indelible.content import TextDelta
from indelible.machine import commands as c
from indelible.store.journal.writer import Journal
from indelible.store.store import Store

CHATS = 20
SENDS_PER_CHAT = 15

Commits = list[str]
"""What was committed, in order."""


@pytest.fixture
def commits() -> Commits:
    return []


@pytest.fixture
async def store(database: str, engine: AsyncEngine, commits: Commits) -> AsyncIterator[Store]:
    async with Store.open(database, on_committed=lambda outcome: commits.append("send")) as store:
        await settle_in(engine)
        yield store


async def repeat(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await work()


async def test_a_crowd_of_users_fails_nobody_and_starves_neither_journal_nor_heartbeat(
    store: Store, engine: AsyncEngine, commits: Commits
) -> None:
    speaking = await (await Driver(store, engine).create()).work()
    chats = [await Driver(store, engine).create() for _ in range(CHATS)]
    commits.clear()
    journal = Journal(store, clock=SystemClock(), on_committed=lambda rows: commits.append("flush"), interval_s=0)
    writer = journal.open(speaking.id, speaking.attempt_id, speaking.epoch, n=1)

    async def speak() -> None:
        writer.publish(TextDelta("1", "word "))
        await journal.drain(writer)

    async def beat() -> None:
        await store.beat("live")
        commits.append("beat")

    async with asyncio.TaskGroup() as tasks:
        others = [tasks.create_task(work) for work in (journal.run(), repeat(speak), repeat(beat))]
        await asyncio.gather(*(chat.do(c.Send(), "Hello") for _ in range(SENDS_PER_CHAT) for chat in chats))
        for other in others:
            other.cancel()
    assert commits.count("send") == CHATS * SENDS_PER_CHAT
    assert commits.count("flush") > 0 < commits.count("beat")
    assert {len(await chat.queued()) for chat in chats} == {SENDS_PER_CHAT}
