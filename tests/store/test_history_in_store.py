"""The tree of messages: branches that stay, paths that are paged, and a deletion that leaves nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, dump, settle_in

from indelible.content import Finish, Text, TextDelta, encode
from indelible.errors import Invalid, NotFound
from indelible.machine import State
from indelible.machine import commands as c
from indelible.store.engine import begin_write
from indelible.store.sql import SqlStore
from indelible.store.tables import chats, drafts, files, messages, tool_runs, turns

NOW = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.fixture
async def store(engine: AsyncEngine) -> SqlStore:
    await settle_in(engine)
    return SqlStore(engine)


@pytest.fixture
async def chat(store: SqlStore, engine: AsyncEngine) -> Driver:
    """Two questions, two replies."""
    chat = await Driver(store, engine).create("first")
    await reply(chat, "one")
    await chat.do(c.Send(), "second")
    await reply(chat, "two")
    return chat


async def reply(chat: Driver, text: str) -> None:
    await chat.do(c.Acquire(worker_id="live"))
    await chat.start()
    await chat.end(c.FinishTurn, rest=[TextDelta("1", text), Finish()])


async def find(chat: Driver, text: str) -> str:
    (found,) = [message.id for message in await chat.path() if message.text == text]
    assert found is not None
    return found


async def test_an_edit_forks_and_the_old_branch_can_be_gone_back_to(chat: Driver) -> None:
    old, head = await chat.said(), (await chat.row()).head_id
    await chat.do(c.Edit(message_id=await find(chat, "second")), "second, better")
    await reply(chat, "two, better")
    assert await chat.said() == [
        ("user", "first"), ("assistant", "one"), ("user", "second, better"), ("assistant", "two, better"),
    ]  # fmt: skip
    await chat.do(c.SwitchHead(message_id=head))
    await chat.check()
    assert await chat.said() == old
    assert (await chat.told())[-1][:2] == ("head", head)


async def test_an_edit_of_the_first_message_begins_a_new_root(chat: Driver) -> None:
    await chat.do(c.Edit(message_id=await find(chat, "first")), "first, better")
    await chat.check()
    assert await chat.said() == [("user", "first, better")]


async def test_a_regenerated_reply_stands_beside_the_old_one(chat: Driver) -> None:
    old, old_id = await chat.said(), await find(chat, "two")
    await chat.do(c.Regenerate(message_id=old_id))
    await reply(chat, "two again")
    assert await chat.said() == [*old[:3], ("assistant", "two again")]
    parents = {row.id: row.parent_id for row in await chat.rows(messages)}
    assert parents[old_id] == parents[await find(chat, "two again")]
    await chat.do(c.SwitchHead(message_id=old_id))
    assert await chat.said() == old


async def test_running_work_is_kept_on_the_branch_that_it_was_on(chat: Driver) -> None:
    await chat.do(c.Send(), "third")
    await chat.work("live", TextDelta("1", "thr"))
    await chat.do(c.Edit(message_id=await find(chat, "second")), "second, better")
    await chat.check()
    assert await chat.said() == [("user", "first"), ("assistant", "one"), ("user", "second, better")]
    (kept,) = [row for row in await chat.rows(messages) if row.attempt_id == chat.attempt_id]
    assert (kept.partial, kept.reason, kept.blocks) == (True, "edited", encode([Text("thr")]))
    await reply(chat, "two, better")
    await chat.do(c.SwitchHead(message_id=kept.id))
    assert (await chat.said())[-2:] == [("user", "third"), ("assistant", "thr")]


@pytest.mark.parametrize("kind", [c.Edit, c.Regenerate])
async def test_only_a_users_message_is_edited_and_only_a_reply_regenerated(
    chat: Driver, engine: AsyncEngine, kind: type[c.Edit | c.Regenerate]
) -> None:
    wrong = await find(chat, "two" if kind is c.Edit else "second")
    before = await dump(engine)
    with pytest.raises(Invalid):
        await chat.do(kind(message_id=wrong), "x")
    assert await dump(engine) == before


async def test_a_turn_is_tied_to_the_message_that_it_answers(chat: Driver) -> None:
    await chat.do(c.Regenerate(message_id=await find(chat, "one")))
    answered = [row.message_id for row in await chat.rows(turns, turns.c.number)]
    first, second = answered[:2]
    assert answered == [first, second, first]
    assert await find(chat, "first") == first


async def test_deleting_a_chat_removes_every_row_of_it_and_nothing_else(
    chat: Driver, store: SqlStore, engine: AsyncEngine
) -> None:
    before = await dump(engine)
    doomed = await Driver(store, engine).create()
    await doomed.work("live", TextDelta("1", "It is"))
    await doomed.do(c.Send(), "and then?")
    async with begin_write(engine) as connection:
        await connection.execute(
            insert(tool_runs).values(
                turn_id=doomed.turn_id, step=1, call_index=0, attempt_id=doomed.attempt_id, call_id="c1", name="look",
                arguments=b"{}", state="started", idempotency_key="key_1", started_at=NOW,
            )
        )  # fmt: skip
        await connection.execute(
            insert(files).values(
                id="file_1", owner_id=OWNER, chat_id=doomed.id, media_type="text/plain", size_bytes=1, sha256=bytes(32),
                content=b"x", created_at=NOW,
            )
        )  # fmt: skip
        await connection.execute(insert(drafts).values(user_id=OWNER, chat_id=doomed.id, content=b"[]", updated_at=NOW))
    assert (await doomed.do(c.Delete())).status is None
    assert await dump(engine) == before
    assert await doomed.state() is State.NONE
    with pytest.raises(NotFound):
        await doomed.path()


async def test_a_long_path_is_read_whole_and_in_pages(chat: Driver, engine: AsyncEngine) -> None:
    """Longer than what is fetched at a time."""
    ids = [f"message_{number:05}" for number in range(2500)]
    rows = [
        {"chat_id": chat.id, "id": id_, "parent_id": parent_id, "role": "user", "blocks": b"[]", "created_at": NOW}
        for id_, parent_id in zip(ids, [None, *ids], strict=False)
    ]
    async with begin_write(engine) as connection:
        await connection.execute(insert(messages), rows)
        await connection.execute(update(chats).where(chats.c.id == chat.id).values(head_id=ids[-1]))
    assert [message.id for message in await chat.path()] == ids
    pages: list[str | None] = []
    before: str | None = None
    while page := await chat.store.path(chat.id, before=before, limit=400):
        pages = [*(message.id for message in page), *pages]
        before = page[0].id
    assert pages == ids


async def test_a_path_that_does_not_exist_is_not_found(chat: Driver, store: SqlStore) -> None:
    with pytest.raises(NotFound):
        await store.path("chat_nowhere")
    with pytest.raises(NotFound):
        await store.path(chat.id, before="message_nowhere")


async def test_a_page_of_nothing_is_empty(store: SqlStore, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    assert await store.path(chat.id, limit=0) == []
