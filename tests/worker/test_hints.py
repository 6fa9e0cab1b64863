"""What a worker does with a hint: it reads the hinted chat in one statement, fairly, and polls for the rest (R10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.statements import counted
from tests.worker.test_worker import Echo
from tests.worker.workshop import PATIENCE_S, WatchedStore, Workshop, quick

from indelible.app.app import App
from indelible.notify import Changed
from indelible.store.database.engine import open_engine
from indelible.store.sql_store import SqlStore

NO_POLL: dict[str, Any] = {"poll_interval_s": 600, "heartbeat_interval_s": 600, "lease_timeout_s": 3600}
"""Nothing but hints, and no heartbeat after the first."""

FENCE = "chat_that_never_was"


class Noting(WatchedStore):
    """The real store of one worker, on an engine of its own. It notes how the worker searches for work."""

    def __init__(self, engine: AsyncEngine, workshop: Workshop) -> None:
        super().__init__(
            SqlStore(engine, lease_timeout_s=3600, on_committed=lambda id_: workshop.notifier.notify([id_]))
        )
        self.engine = engine
        self.searched: list[str] = []
        self.is_clean = asyncio.Event()
        self._workshop = workshop
        self._probed: set[str] = set()
        self._moved = asyncio.Event()

    async def probe(self, worker_id: str, chat_ids: Sequence[str], **more: Any) -> Any:
        self.searched.append("probe")
        try:
            return await self._store.probe(worker_id, chat_ids, **more)
        finally:
            self._probed.update(chat_ids)
            self._moved.set()

    async def held(self, worker_id: str) -> Any:
        self.searched.append("held")
        return await self._store.held(worker_id)

    async def acquire(self, worker_id: str, **more: Any) -> Any:
        self.searched.append("acquire" if more["chat_ids"] is None else "acquire these")
        return await self._store.acquire(worker_id, **more)

    async def clean_up(self, **more: Any) -> None:
        await self._store.clean_up(**more)
        self.is_clean.set()

    async def settle(self) -> None:
        """Wait until the worker has acted on every hint so far, and begin to note anew."""
        await self.is_clean.wait()
        self._workshop.notifier.notify([FENCE])
        await self.until_probed(FENCE)
        self._probed.clear()
        self.searched.clear()

    async def until_probed(self, chat_id: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while chat_id not in self._probed:
                self._moved.clear()
                await self._moved.wait()


@pytest.fixture
async def store(engine: AsyncEngine, workshop: Workshop) -> AsyncIterator[Noting]:
    own = await open_engine(engine.url.render_as_string(hide_password=False))
    yield Noting(own, workshop)
    for hired in workshop.hired:
        await workshop.dismiss(hired)
    await own.dispose()


async def test_a_hint_is_one_statement_however_many_chats_the_worker_holds(workshop: Workshop, store: Noting) -> None:
    await workshop.hire(Echo(), store=store, settings=quick(**NO_POLL))
    busy = [await workshop.app.create_chat(f"hang {number}") for number in range(3)]
    for number, chat in enumerate(busy):
        await workshop.until_said(chat, f"hang {number}")
    idle = await workshop.app.create_chat()
    await store.settle()
    with counted(store.engine) as sent:
        workshop.notifier.notify([idle.id])
        await store.until_probed(idle.id)

    assert store.searched == ["probe"]
    assert len(sent) == 1
    await asyncio.gather(*(chat.interrupt() for chat in busy))


async def test_a_new_message_is_found_by_one_statement_and_answered(workshop: Workshop, store: Noting) -> None:
    await workshop.hire(Echo(), store=store, settings=quick(**NO_POLL))
    busy = await workshop.app.create_chat("hang")
    await workshop.until_said(busy, "hang")
    chat = await workshop.app.create_chat()
    await store.settle()
    with counted(store.engine) as sent:
        assert (await chat.send("Hello")).text == "Hello"

    assert store.searched[:2] == ["probe", "acquire these"]
    locking = next(place for place, statement in enumerate(sent) if "chats.head_id" in statement)
    assert locking == 1, "one statement finds the chat, the next one locks it"
    await busy.interrupt()


async def test_a_stop_reaches_the_worker_by_a_hint_alone(workshop: Workshop, store: Noting) -> None:
    await workshop.hire(Echo(), store=store, settings=quick(**NO_POLL))
    chat, other = await workshop.app.create_chat("hang 1"), await workshop.app.create_chat("hang 2")
    await workshop.until_said(chat, "hang 1")
    await workshop.until_said(other, "hang 2")
    await store.settle()
    assert (await chat.interrupt()).stopped
    assert store.searched[0] == "probe"
    assert await other.status() == "running"
    await other.interrupt()


async def test_a_hint_about_many_chats_is_a_poll(workshop: Workshop, store: Noting) -> None:
    await workshop.hire(Echo(), store=store, settings=quick(**NO_POLL))
    await store.settle()
    workshop.notifier.publish(Changed(frozenset(f"chat_x{number}" for number in range(200))))
    chat = await workshop.app.create_chat()
    assert (await chat.send("Hello")).text == "Hello"
    assert store.searched[0] == "acquire"


async def test_workers_that_receive_the_same_hints_answer_every_chat_once(workshop: Workshop) -> None:
    models = [Echo(), Echo(), Echo()]
    for model in models:
        await workshop.hire(model, settings=quick(**NO_POLL))
    chats = [await workshop.app.create_chat() for _ in range(12)]
    replies = await asyncio.gather(*(chat.send(f"{number}")._read_all() for number, chat in enumerate(chats)))
    assert [reply.text for reply in replies] == [f"{number}" for number in range(12)]
    assert sorted((asked for model in models for asked in model.asked), key=int) == [f"{at}" for at in range(12)]


async def test_a_hinted_chat_does_not_pass_one_that_waits_longer(workshop: Workshop, store: Noting) -> None:
    """The hint of the older one was lost. The worker is full when the younger one is hinted."""
    await workshop.hire(Echo(), store=store, settings=quick(worker_max_chats=1, **NO_POLL))
    first = await workshop.app.create_chat("hang 1")
    await workshop.until_said(first, "hang 1")
    silent = App(
        SqlStore(workshop.engine),
        workshop.feed,
        clock=workshop.clock,
        owner_id=await workshop.store.ensure_user("local"),
    )
    older = await workshop.app.chat((await silent.create_chat("hang 2")).id)
    younger = await workshop.app.create_chat("hang 3")
    await store.until_probed(younger.id)
    await first.interrupt()
    await workshop.until_said(older, "hang 2")
    assert await younger.status() == "pending"
    await older.interrupt()
    await workshop.until_said(younger, "hang 3")
    await younger.interrupt()


async def test_a_hint_does_not_give_a_user_more_than_the_limit(workshop: Workshop, store: Noting) -> None:
    await workshop.hire(Echo(), store=store, settings=quick(user_max_chats=1, **NO_POLL))
    first = await workshop.app.create_chat("hang 1")
    await workshop.until_said(first, "hang 1")
    second = await workshop.app.create_chat("hang 2")
    other = App(workshop.store, workshop.feed, clock=workshop.clock, owner_id=await workshop.store.ensure_user("bob"))
    third = await other.create_chat("hang 3")
    await workshop.until_said(third, "hang 3")
    await store.settle()
    assert await second.status() == "pending"
    await first.interrupt()
    await workshop.until_said(second, "hang 2")
    await asyncio.gather(second.interrupt(), third.interrupt())
