"""What a worker does with a hint: it reads the hinted chat in one statement, fairly, and polls for the rest (R10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.statements import counted
from tests.support.app_harness import AppHarness, WatchedStore, make_settings
from tests.support.engine import get_database, open_engine
from tests.support.waiting import DEADLINE_S, Watched
from tests.worker.test_worker import Echo

from indelible.app.app import App
from indelible.app.compose import publish_outcome
from indelible.content import Part, TextDelta
from indelible.ids import new_id
from indelible.machine.commands import Release
from indelible.store.payloads import Leftover
from indelible.store.store import Store
from indelible.testing import ScriptedModel, parts

NO_POLL: dict[str, Any] = {"poll_interval_s": 600, "heartbeat_interval_s": 600, "lease_timeout_s": 3600}
"""Nothing but hints, and no heartbeat after the first."""

FENCE = "chat_that_never_was"


class Noting(WatchedStore):
    """The real store of one worker, on an engine of its own. It notes how the worker searches for work."""

    def __init__(self, engine: AsyncEngine, harness: AppHarness) -> None:
        super().__init__(
            Store(
                get_database(engine),
                lease_timeout_s=3600,
                on_committed=lambda outcome: publish_outcome(harness.notifier, harness.feed, outcome),
            )
        )
        self.engine = engine
        self.searched: list[str] = []
        self.is_clean = asyncio.Event()
        self._harness = harness
        self._probed: set[str] = set()
        self._watched = Watched()

    async def probe(self, worker_id: str, chat_ids: Sequence[str], **more: Any) -> Any:
        self.searched.append("probe")
        try:
            return await self._store.probe(worker_id, chat_ids, **more)
        finally:
            self._probed.update(chat_ids)
            self._watched.changed()

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
        self._harness.notifier.notify([FENCE])
        await self.wait_until_probed(FENCE)
        self._probed.clear()
        self.searched.clear()

    async def wait_until_probed(self, chat_id: str) -> None:
        await self._watched.wait_until(lambda: chat_id in self._probed)


@pytest.fixture
async def store(engine: AsyncEngine, harness: AppHarness) -> AsyncIterator[Noting]:
    own = await open_engine(engine.url.render_as_string(hide_password=False))
    yield Noting(own, harness)
    for running in harness.workers:
        await harness.stop_worker(running)
    await own.dispose()


async def test_a_hint_is_one_statement_however_many_chats_the_worker_holds(harness: AppHarness, store: Noting) -> None:
    await harness.start_worker(Echo(), store=store, settings=make_settings(**NO_POLL))
    busy = [await harness.app.create_chat(f"hang {number}") for number in range(3)]
    for number, chat in enumerate(busy):
        await harness.wait_for_text(chat, f"hang {number}")
    idle = await harness.app.create_chat()
    await store.settle()
    with counted(get_database(store.engine)) as sent:
        harness.notifier.notify([idle.id])
        await store.wait_until_probed(idle.id)

    assert store.searched == ["probe"]
    assert len(sent) == 1
    await asyncio.gather(*(chat.interrupt() for chat in busy))


async def test_a_new_message_is_found_by_one_statement_and_answered(harness: AppHarness, store: Noting) -> None:
    await harness.start_worker(Echo(), store=store, settings=make_settings(**NO_POLL))
    busy = await harness.app.create_chat("hang")
    await harness.wait_for_text(busy, "hang")
    chat = await harness.app.create_chat()
    await store.settle()
    with counted(get_database(store.engine)) as sent:
        assert (await chat.send("Hello")).text == "Hello"

    assert store.searched[:2] == ["probe", "acquire these"]
    judging = next(place for place, statement in enumerate(sent) if "LEFT JOIN workers" in statement)
    locks = sum("FOR NO KEY UPDATE" in statement for statement in sent[:judging])
    assert judging - locks == 1, "one statement finds the chat, the next one judges it"
    await busy.interrupt()


async def test_a_stop_reaches_the_worker_by_a_hint_alone(harness: AppHarness, store: Noting) -> None:
    await harness.start_worker(Echo(), store=store, settings=make_settings(**NO_POLL))
    chat, other = await harness.app.create_chat("hang 1"), await harness.app.create_chat("hang 2")
    await harness.wait_for_text(chat, "hang 1")
    await harness.wait_for_text(other, "hang 2")
    await store.settle()
    assert (await chat.interrupt()).stopped
    assert store.searched[0] == "probe"
    assert await other.status() == "running"
    await other.interrupt()


async def test_a_hint_about_many_chats_is_a_poll(harness: AppHarness, store: Noting) -> None:
    await harness.start_worker(Echo(), store=store, settings=make_settings(**NO_POLL))
    await store.settle()
    harness.notifier.notify(f"chat_x{number}" for number in range(200))
    chat = await harness.app.create_chat()
    assert (await chat.send("Hello")).text == "Hello"
    assert store.searched[0] == "acquire"


async def test_workers_that_receive_the_same_hints_answer_every_chat_once(harness: AppHarness) -> None:
    models = [Echo(), Echo(), Echo()]
    for model in models:
        await harness.start_worker(model, settings=make_settings(**NO_POLL))
    chats = [await harness.app.create_chat() for _ in range(12)]
    replies = await asyncio.gather(*(chat.send(f"{number}")._read_all() for number, chat in enumerate(chats)))
    assert [reply.text for reply in replies] == [f"{number}" for number in range(12)]
    assert sorted((asked for model in models for asked in model.asked), key=int) == [f"{at}" for at in range(12)]


async def test_a_hinted_chat_does_not_pass_one_that_waits_longer(harness: AppHarness, store: Noting) -> None:
    """The hint of the older one was lost. The worker is full when the younger one is hinted."""
    await harness.start_worker(Echo(), store=store, settings=make_settings(worker_max_chats=1, **NO_POLL))
    first = await harness.app.create_chat("hang 1")
    await harness.wait_for_text(first, "hang 1")
    silent = App(
        Store(get_database(harness.engine)),
        harness.feed,
        clock=harness.clock,
        owner_id=await harness.store.ensure_user("local"),
    )
    older = await harness.app.chat((await silent.create_chat("hang 2")).id)
    younger = await harness.app.create_chat("hang 3")
    await store.wait_until_probed(younger.id)
    await first.interrupt()
    await harness.wait_for_text(older, "hang 2")
    assert await younger.status() == "pending"
    await older.interrupt()
    await harness.wait_for_text(younger, "hang 3")
    await younger.interrupt()


class Locked(Noting):
    """The first time that the worker wants a hinted chat, somebody has locked it."""

    async def acquire(self, worker_id: str, **more: Any) -> Any:
        if more["chat_ids"] is not None and "acquire these" not in self.searched:
            self.searched.append("acquire these")
            return []
        return await super().acquire(worker_id, **more)


async def test_a_hinted_chat_that_was_locked_is_looked_for_again_at_once(harness: AppHarness, store: Noting) -> None:
    locked = Locked(store.engine, harness)
    await harness.start_worker(Echo(), store=locked, settings=make_settings(**NO_POLL))
    chat = await harness.app.create_chat()
    await locked.settle()
    assert (await chat.send("Hello")).text == "Hello"
    assert locked.searched[:3] == ["probe", "acquire these", "acquire"]


async def test_a_chat_that_comes_back_while_its_last_reply_is_still_ending_here_is_acquired_then(
    harness: AppHarness, store: Noting
) -> None:
    began, left, may_leave = [asyncio.Event() for _ in range(3)]

    async def hang() -> AsyncIterator[Part]:
        try:
            began.set()
            yield TextDelta("1", "Once")
            await asyncio.get_running_loop().create_future()
        finally:
            left.set()
            await may_leave.wait()

    model = ScriptedModel([lambda call: hang(), [TextDelta("1", " upon"), parts.finish()]])
    await harness.start_worker(model, store=store, settings=make_settings(tool_grace_s=DEADLINE_S, **NO_POLL))
    chat = await harness.app.create_chat("A story")
    await harness.wait_for_text(chat, "Once")
    await store.settle()
    holder, other = (await harness.load(chat)).chat.holder, new_id("worker")
    await harness.store.retire(holder)  # as if it had been frozen for long
    (taken,) = await harness.store.acquire(other, limit=1, chat_ids=[chat.id])
    await left.wait()
    await harness.store.beat(holder)
    await store.settle()
    await harness.store.execute(chat.id, Release(epoch=taken.epoch), Leftover())
    await store.wait_until_probed(chat.id)
    await store.settle()
    assert await chat.status() == "pending"
    may_leave.set()
    await harness.wait_for_end(chat)
    assert store.searched[:2] == ["probe", "acquire these"]


async def test_a_hint_does_not_give_a_user_more_than_the_limit(harness: AppHarness, store: Noting) -> None:
    await harness.start_worker(Echo(), store=store, settings=make_settings(user_max_chats=1, **NO_POLL))
    first = await harness.app.create_chat("hang 1")
    await harness.wait_for_text(first, "hang 1")
    second = await harness.app.create_chat("hang 2")
    third = await harness.app.user("bob").create_chat("hang 3")
    await harness.wait_for_text(third, "hang 3")
    await store.settle()
    assert await second.status() == "pending"
    await first.interrupt()
    await harness.wait_for_text(second, "hang 2")
    await asyncio.gather(second.interrupt(), third.interrupt())


async def test_the_end_of_a_turn_makes_room_for_its_user_though_another_worker_runs_the_rest(
    harness: AppHarness,
) -> None:
    await harness.start_worker(Echo(), settings=make_settings(user_max_chats=2, worker_max_chats=1, **NO_POLL))
    first = await harness.app.create_chat("hang 1")
    await harness.wait_for_text(first, "hang 1")
    await harness.start_worker(Echo(), settings=make_settings(user_max_chats=2, **NO_POLL))
    second = await harness.app.create_chat("hang 2")
    await harness.wait_for_text(second, "hang 2")
    third = await harness.app.create_chat("hang 3")
    fourth = await harness.app.create_chat("hang 4")
    assert [await chat.status() for chat in (third, fourth)] == ["pending", "pending"]
    await second.interrupt()
    await harness.wait_for_text(third, "hang 3")
    assert await fourth.status() == "pending"
    await asyncio.gather(first.interrupt(), third.interrupt())
    await harness.wait_for_text(fourth, "hang 4")
    await fourth.interrupt()
