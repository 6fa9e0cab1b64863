"""What a worker does for lists in the background: messages are indexed, and chats that nobody uses are archived."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.support.app_harness import make_settings
from tests.support.engine import get_database

from indelible.content import Text
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.store.database.errors import DatabaseUnreachable
from indelible.store.payloads import ChatPatch, NewChat
from indelible.store.queries.listing import ChatFilter
from indelible.store.store import Store
from indelible.testing import ManualClock
from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.upkeep import ARCHIVE_INTERVAL_S, ListUpkeep


class Parts:
    """What the upkeep uses of a worker's dependencies."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.clock = ManualClock()
        self.settings = make_settings(**settings)
        self.failed: list[str] = []

    async def survive(self, do: Callable[[], Awaitable[Any]], *, what: str) -> Any:
        try:
            return await do()
        except DatabaseUnreachable:
            self.failed.append(what)
            return None

    def make(self) -> ListUpkeep:
        return ListUpkeep(cast("WorkerDependencies", self), self.survive)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), lease_timeout_s=3600)


async def list_archived(store: Store) -> list[str]:
    return [chat.id for chat in await store.list_chats(OWNER, wanted=ChatFilter(archived=True))]


async def test_chats_that_nobody_uses_are_archived_after_their_days(store: Store, engine: AsyncEngine) -> None:
    idle, pinned = [await Driver(store, engine).create() for _ in range(2)]
    for chat in (idle, pinned):
        await chat.do(c.Interrupt())
    await pinned.do(c.UpdateChat(), payload=ChatPatch(pinned=True))
    parts = Parts(store, auto_archive_days=30)
    upkeep = parts.make()
    age_s = ((await store.summaries([idle.id]))[idle.id][1].updated_at - parts.clock.now()).total_seconds()
    await parts.clock.advance(max(0.0, age_s) + timedelta(days=29).total_seconds())
    await upkeep.run()
    assert await list_archived(store) == []
    await parts.clock.advance(timedelta(days=2).total_seconds())
    await upkeep.run()
    assert await list_archived(store) == [idle.id]
    assert [event.kind for event in await store.events(idle.id, after=0)][-1] == "chat"
    await idle.do(c.Unarchive())
    await upkeep.run()
    assert await list_archived(store) == [], "it is looked for once an hour"
    await parts.clock.advance(ARCHIVE_INTERVAL_S)
    await upkeep.run()
    assert await list_archived(store) == [idle.id]


async def test_without_the_setting_nothing_is_archived_and_messages_are_indexed(
    store: Store, engine: AsyncEngine
) -> None:
    chat = await Driver(store, engine).create()
    await chat.do(c.Interrupt())
    parts = Parts(store)
    await parts.clock.advance(timedelta(days=50_000).total_seconds())
    await parts.make().run()
    assert await list_archived(store) == []
    assert await store.index(limit=1) == 0


async def test_a_failure_is_repeated_by_the_next_round(
    store: Store, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Driver(store, engine).create()
    parts = Parts(store)
    upkeep = parts.make()

    async def fail(**_: Any) -> int:
        raise DatabaseUnreachable("It is away.")

    with monkeypatch.context() as patched:
        patched.setattr(store, "index", fail)
        await upkeep.run()
    assert parts.failed == ["indexing messages"]
    await upkeep.run()
    assert await store.index(limit=1) == 0


async def test_an_ephemeral_chat_that_nobody_deleted_is_archived_after_a_while(store: Store) -> None:
    new = NewChat(owner_id=OWNER, blocks=[Text("Hi")], ephemeral=True)
    chat_id = (await store.execute(new_id("chat"), c.Create(with_message=True), new)).chat_id
    parts = Parts(store)
    await parts.clock.advance(timedelta(days=365 * 50).total_seconds())
    await parts.make().run()
    assert await list_archived(store) == [], "its turn has not ended"
    await store.execute(chat_id, c.Interrupt())
    await parts.make().run()
    assert await list_archived(store) == [chat_id]
