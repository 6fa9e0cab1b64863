"""Two commands that create the same chat at once, on both databases: a client may choose a chat's name."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, settle_in
from tests.support.engine import get_database

from indelible.content import Text
from indelible.errors import NotAllowed
from indelible.machine.commands import Create
from indelible.store.outcome import Outcome
from indelible.store.payloads import NewChat
from indelible.store.store import Store


async def test_of_many_who_create_a_chat_at_once_one_does_and_the_others_learn_that_it_exists(
    engine: AsyncEngine,
) -> None:
    await settle_in(engine)
    store = Store(get_database(engine))
    for name in ("chat_1", "chat_2", "chat_3"):
        new = NewChat(owner_id=OWNER, blocks=[Text("hi")], labels=["a=b"])
        creating = (store.execute(name, Create(with_message=True), new, user_id=OWNER) for _ in range(8))
        answers = await asyncio.gather(*creating, return_exceptions=True)
        assert sum(isinstance(answer, Outcome) for answer in answers) == 1
        assert sum(isinstance(answer, NotAllowed) for answer in answers) == 7
        assert len((await store.view(name)).messages) == 1
    with pytest.raises(NotAllowed, match="Cannot create while the chat is running"):
        await store.execute("chat_1", Create(with_message=False), NewChat(owner_id=OWNER))
