"""Ephemeral chats on both databases: those that nobody deleted are found after their one turn, and no others."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, settle_in
from tests.support.engine import get_database

from indelible.content import Text
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.store.payloads import ChatPatch, NewChat, UserInput
from indelible.store.store import Store

HOUR = timedelta(hours=1)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), lease_timeout_s=3600)


async def create(store: Store, *, ephemeral: bool = True) -> str:
    new = NewChat(owner_id=OWNER, blocks=[Text("Hi")], ephemeral=ephemeral)
    return (await store.execute(new_id("chat"), c.Create(with_message=True), new)).chat_id


async def test_an_ephemeral_chat_is_found_after_its_turn_unless_somebody_went_on_with_it(store: Store) -> None:
    left, stored, running, continued, pinned, archived, deleted = [
        await create(store, ephemeral=name != "stored") for name in ("1", "stored", "3", "4", "5", "6", "7")
    ]
    for chat_id in {left, stored, continued, pinned, archived, deleted} - {running}:
        await store.execute(chat_id, c.Interrupt())
    await store.execute(archived, c.Archive())
    await store.execute(continued, c.Send(), UserInput(blocks=[Text("And?")]))
    await store.execute(continued, c.Interrupt())
    await store.update(pinned, ChatPatch(pinned=True))
    await store.execute(deleted, c.Delete())
    updated_at = (await store.summaries([left]))[left][1].updated_at
    assert await store.find_ephemeral(updated_before=updated_at, limit=10) == []
    assert await store.find_ephemeral(updated_before=updated_at + HOUR, limit=10) == [left]
