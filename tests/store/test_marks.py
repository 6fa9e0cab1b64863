"""Read marks and drafts on both databases."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, settle_in
from tests.store.responses import respond
from tests.support.engine import get_database

from indelible.content import Finish
from indelible.errors import Invalid, NotFound
from indelible.machine import commands as c
from indelible.store.outcome import IdempotencyKey, Outcome, StoredResponse
from indelible.store.payloads import ChatPatch, NewChat
from indelible.store.store import Store

KEY = IdempotencyKey(OWNER, "key", "POST /read", b"1")


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine), lease_timeout_s=3600)


async def is_unread(store: Store, chat_id: str) -> bool:
    ((_, summary),) = (await store.summaries([chat_id])).values()
    assert (await store.extras(chat_id, OWNER)).unread == summary.unread
    return summary.unread


async def answer(chat: Driver) -> int:
    await chat.work()
    return (await chat.end(c.FinishTurn, pending=[Finish()])).seq


async def test_a_chat_is_unread_from_a_reply_until_it_is_read(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    assert not await is_unread(store, chat.id)
    seq = await answer(chat)
    assert await is_unread(store, chat.id)
    await store.mark_read(chat.id, OWNER, 1)
    assert await is_unread(store, chat.id), "not up to there"
    await store.mark_read(chat.id, OWNER, seq)
    assert not await is_unread(store, chat.id)
    await chat.do(c.Send(), "And?")
    await answer(chat)
    assert await is_unread(store, chat.id)
    await store.mark_read(chat.id, OWNER)
    assert not await is_unread(store, chat.id)


async def test_a_mark_only_moves_forward_and_never_beyond_the_last_event(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    await answer(chat)
    await store.mark_read(chat.id, OWNER, 2**62)
    await store.mark_read(chat.id, OWNER, 0)
    assert not await is_unread(store, chat.id)
    await chat.do(c.Send(), "And?")
    await answer(chat)
    assert await is_unread(store, chat.id), "the mark was not beyond the last event"


async def test_a_message_of_the_user_marks_what_was_before_it_as_read(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    await answer(chat)
    await chat.do(c.Send(), "And?")
    assert not await is_unread(store, chat.id)


async def test_a_new_chat_wakes_readers_though_it_has_no_event_yet(store: Store) -> None:
    made = await store.execute("chat_new", c.Create(), NewChat(owner_id=OWNER, title="Rain"))
    assert (made.seq, made.wakes_readers, made.wakes_workers) == (0, True, False)


async def test_a_mark_wakes_readers_once_and_writes_no_event(engine: AsyncEngine) -> None:
    await settle_in(engine)
    told: list[Outcome] = []
    store = Store(get_database(engine), on_committed=told.append)
    chat = await Driver(store, engine).create()
    seq = await answer(chat)
    told.clear()
    for _ in range(2):
        await store.mark_read(chat.id, OWNER)
    assert [(outcome.chat_id, outcome.wakes_readers, outcome.wakes_workers) for outcome in told] == [
        (chat.id, True, False)
    ]
    assert (await store.status(chat.id)).seq == seq


@pytest.mark.parametrize("chat_id", ["chat_nobody", "\0", "x" * 300])
async def test_a_chat_of_somebody_else_is_not_marked(store: Store, chat_id: str) -> None:
    await store.execute("hers", c.Create(), NewChat(owner_id=await store.ensure_user("grace")))
    for id_ in ("hers", chat_id):
        with pytest.raises(NotFound):
            await store.mark_read(id_, OWNER)


async def test_a_repeated_request_is_carried_out_once(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    nothing = StoredResponse(204, b"null")
    mark, save = (
        request._replace(respond=lambda outcome: nothing)
        for request in (KEY, KEY._replace(key="other", route="PUT /draft"))
    )
    for _ in range(2):
        assert await respond(partial(store.mark_read, chat.id, OWNER), mark) == nothing
        assert await respond(partial(store.save_draft, chat.id, OWNER, "Hi"), save) == nothing
    with pytest.raises(Invalid):
        await store.mark_read(chat.id, OWNER, key=mark._replace(body_hash=b"2"))


async def test_a_draft_is_its_users_alone_and_goes_with_its_chat(store: Store, engine: AsyncEngine) -> None:
    grace = await store.ensure_user("grace")
    chat = await Driver(store, engine).create()
    await store.save_draft(chat.id, OWNER, "What if \0 \U0001f327")
    await store.save_draft("new", OWNER, "Next")
    draft = await store.draft(chat.id, OWNER)
    assert draft.text == "What if \0 \U0001f327"
    assert draft.updated_at is not None
    assert (await store.extras(chat.id, OWNER)).draft == draft.text
    for id_ in (chat.id, "new"):
        none = await store.draft(id_, grace)
        assert (none.text, none.updated_at) == ("", None)
    await store.save_draft("new", OWNER, "Other")
    await chat.do(c.Interrupt())
    await chat.do(c.Delete())
    assert (await store.draft(chat.id, OWNER)).text == ""
    assert (await store.draft("new", OWNER)).text == "Other"


async def test_an_empty_text_deletes_a_draft(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    for id_ in (chat.id, "new"):
        await store.save_draft(id_, OWNER, "Hi")
        await store.save_draft(id_, OWNER, "")
        assert (await store.draft(id_, OWNER)).updated_at is None


async def test_labels_pin_and_instructions_are_read_by_the_owner_alone(store: Store, engine: AsyncEngine) -> None:
    chat = await Driver(store, engine).create()
    await chat.do(c.UpdateChat(), payload=ChatPatch(labels=["b", "a"], pinned=True, system_prompt="Be brief."))
    beside = await store.extras(chat.id, OWNER)
    assert (beside.labels, beside.pinned, beside.system, beside.draft) == (["b", "a"], True, "Be brief.", None)
    other = await store.extras(chat.id, "user_other")
    assert (other.labels, other.pinned, other.unread, other.system, other.draft) == ([], False, False, None, None)
    with pytest.raises(NotFound):
        await store.extras("chat_nobody", OWNER)
    assert await store.summaries(["chat_nobody"]) == {}


async def test_chats_that_nobody_uses_are_found_unless_pinned_unread_busy_or_archived(
    store: Store, engine: AsyncEngine
) -> None:
    idle, pinned, unread, busy, archived = [await Driver(store, engine).create() for _ in range(5)]
    await answer(unread)
    for chat in (idle, pinned, archived):
        await chat.do(c.Interrupt())
    await pinned.do(c.UpdateChat(), payload=ChatPatch(pinned=True))
    await archived.do(c.Archive())
    far = datetime(2099, 1, 1, tzinfo=UTC)
    assert await store.stale(updated_before=far, limit=10) == [idle.id]
    assert await store.stale(updated_before=datetime(2000, 1, 1, tzinfo=UTC), limit=10) == []
    await store.mark_read(unread.id, OWNER)
    assert len(await store.stale(updated_before=far, limit=1)) == 1
    assert set(await store.stale(updated_before=far, limit=10)) == {idle.id, unread.id}
    assert busy.id not in await store.stale(updated_before=far, limit=10)
