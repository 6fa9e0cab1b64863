"""Forgetting the provider's names for replies: the holder may, nobody else, and nobody notices (rule 4.4)."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, dump, settle_in
from tests.support.engine import get_database

from indelible.content import Finish, TextDelta
from indelible.errors import LeaseLost
from indelible.machine import commands as c
from indelible.store.store import Store


async def make_chained(engine: AsyncEngine) -> Driver:
    """A chat with two stored replies, and a third turn under way."""
    chat = await Driver(Store(get_database(engine)), engine).create()
    for number in (1, 2):
        await chat.work("live", TextDelta("t", "Hi"), Finish("stop"))
        await chat.end(c.FinishTurn, response_id=f"resp_{number}")
        await chat.do(c.Send(), "And?")
    return await chat.work("live")


async def test_no_reply_of_the_chat_has_a_name_any_more(engine: AsyncEngine) -> None:
    await settle_in(engine)
    chat, other = await make_chained(engine), await make_chained(engine)
    assert [message.response_id for message in await chat.path() if message.role == "assistant"] == ["resp_1", "resp_2"]
    told = await chat.list_events()

    await chat.store.forget_responses(chat.id, epoch=(await chat.row()).epoch)

    assert [message.response_id for message in await chat.path() if message.role == "assistant"] == [None, None]
    assert await chat.list_events() == told
    assert any(message.response_id for message in await other.path())


async def test_whoever_lost_the_chat_changes_nothing(engine: AsyncEngine) -> None:
    await settle_in(engine)
    chat = await make_chained(engine)
    before = await dump(engine)

    for epoch in ((await chat.row()).epoch - 1, (await chat.row()).epoch + 1):
        with pytest.raises(LeaseLost):
            await chat.store.forget_responses(chat.id, epoch=epoch)
    with pytest.raises(LeaseLost):
        await chat.store.forget_responses("chat_gone", epoch=1)

    assert await dump(engine) == before
