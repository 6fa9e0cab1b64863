"""What a user typed is safe, once: idempotency keys and limits on both databases (rule 3.3, 3.5, P9)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.responses import respond
from tests.support.engine import begin_read, begin_write, get_database, transact
from tests.support.stored import load_path
from tests.support.tables import chats, events, idempotency_keys, messages, queue, users

from indelible.content import Text
from indelible.errors import Invalid, NotAllowed, NotFound, TooLarge, TooMany
from indelible.machine.commands import Create, Delete, Interrupt, Retry, Send
from indelible.store.outcome import IdempotencyKey, Outcome, RequestRepeated, StoredResponse, forget_expired
from indelible.store.payloads import ChatPatch, NewChat, StoreLimits, UserInput
from indelible.store.store import Store

NOW = datetime(2026, 11, 15, tzinfo=UTC)
SEND = IdempotencyKey(user_id="user_1", key="k1", route="POST /messages", body_hash=b"1")
HELLO = UserInput(blocks=[Text("hello")], author_id="user_1")


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id="user_1", name="ada", created_at=NOW))
    store = Store(get_database(engine), limits=StoreLimits(queued=2, message_bytes=1000))
    await store.execute("chat_1", Create(with_message=True), NewChat(owner_id="user_1", blocks=[Text("hi")]))
    return store


def answer(outcome: Outcome) -> StoredResponse:
    return StoredResponse(202, f'{{"queued":"{outcome.queued_id}"}}'.encode())


ONCE = SEND._replace(respond=answer)


async def count(engine: AsyncEngine, table: object) -> int:
    async with begin_read(engine) as connection:
        return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())  # type: ignore[arg-type]


async def test_the_same_request_again_gets_the_same_answer_and_sends_nothing(store: Store, engine: AsyncEngine) -> None:
    assert await store.find_response(SEND) is None
    first = await store.execute("chat_1", Send(), HELLO, key=ONCE)
    with pytest.raises(RequestRepeated) as repeated:
        await store.execute("chat_1", Send(), HELLO, key=ONCE)
    assert answer(first) == repeated.value.response == await store.find_response(SEND)
    assert await count(engine, queue) == 1


async def test_many_at_once_send_once_and_all_get_the_one_answer(store: Store, engine: AsyncEngine) -> None:
    send = partial(store.execute, "chat_1", Send(), HELLO)
    answers = await asyncio.gather(*(respond(send, ONCE) for _ in range(8)))
    assert len(set(answers)) == 1
    assert await count(engine, queue) == 1


@pytest.mark.parametrize("other", [SEND._replace(body_hash=b"2"), SEND._replace(route="POST /other")])
async def test_the_same_key_for_something_else_is_refused(
    store: Store, engine: AsyncEngine, other: IdempotencyKey
) -> None:
    await store.execute("chat_1", Send(), HELLO, key=ONCE)
    with pytest.raises(Invalid, match="used for another request"):
        await store.execute("chat_1", Send(), HELLO, key=other._replace(respond=answer))
    assert await count(engine, queue) == 1


async def test_a_refused_command_leaves_no_key_behind(store: Store, engine: AsyncEngine) -> None:
    with pytest.raises(NotAllowed):
        await store.execute("chat_1", Retry(), key=ONCE)
    assert await count(engine, idempotency_keys) == 0


async def test_the_answer_goes_with_the_chat_that_it_tells_of(store: Store, engine: AsyncEngine) -> None:
    """P10: an answer may quote the chat, so nothing of it is left when the chat is deleted."""
    await store.execute("chat_2", Create(), NewChat(owner_id="user_1"))
    other = SEND._replace(key="k2")._replace(respond=answer)
    await store.execute("chat_1", Send(), HELLO, key=ONCE)
    await store.execute("chat_2", Send(), HELLO, key=other)
    await store.execute("chat_1", Delete())
    async with begin_read(engine) as connection:
        assert (await connection.execute(select(idempotency_keys.c.key))).scalars().all() == ["k2"]
    with pytest.raises(NotFound):
        await store.execute("chat_1", Send(), HELLO, key=ONCE)


async def test_a_chat_that_is_made_or_deleted_for_a_request_is_so_once(store: Store, engine: AsyncEngine) -> None:
    make, drop = (SEND._replace(key=key)._replace(respond=answer) for key in ("make", "drop"))
    words = NewChat(owner_id="user_1", blocks=[Text("hi")])
    for _ in range(2):
        await respond(partial(store.execute, "chat_2", Create(with_message=True), words), make)
    assert len(await load_path(store, "chat_2")) == 1
    answers = [await respond(partial(store.execute, "chat_2", Delete()), drop) for _ in range(2)]
    assert len(set(answers)) == 1, "the answer to a deletion has no chat left to go with"
    with pytest.raises(NotFound):
        await load_path(store, "chat_2")


async def test_an_answer_is_kept_also_if_there_was_nothing_to_do(store: Store, engine: AsyncEngine) -> None:
    nothing = StoredResponse(200, b"nothing")
    stop = partial(store.execute, "chat_1", Interrupt(turn_id="turn of yesterday"))
    for _ in range(2):
        assert await respond(stop, SEND._replace(respond=lambda outcome: nothing)) == nothing
    assert await count(engine, idempotency_keys) == 1


async def test_keys_are_kept_for_a_day(store: Store, engine: AsyncEngine) -> None:
    await store.execute("chat_1", Send(), HELLO, key=ONCE)
    for hours, left in ((23, 1), (25, 0)):
        await transact(engine, forget_expired, datetime.now(UTC) + timedelta(hours=hours))
        assert await count(engine, idempotency_keys) == left


async def test_a_full_queue_and_a_message_that_is_too_large_are_refused_and_change_nothing(
    store: Store, engine: AsyncEngine
) -> None:
    for _ in range(2):
        await store.execute("chat_1", Send(), HELLO)
    before = [await count(engine, table) for table in (queue, messages, events)]
    with pytest.raises(TooMany, match=r"The queue is full \(2 messages\)"):
        await store.execute("chat_1", Send(), HELLO)
    with pytest.raises(TooLarge, match="limit 1,000"):
        await store.execute("chat_1", Send(), UserInput(blocks=[Text("x" * 2000)], author_id="user_1"))
    assert [await count(engine, table) for table in (queue, messages, events)] == before


async def test_a_message_without_an_author_is_the_owners(store: Store, engine: AsyncEngine) -> None:
    await store.execute("chat_1", Send(), UserInput(blocks=[Text("hello")]))
    async with begin_read(engine) as connection:
        assert (await connection.execute(select(queue.c.author_id))).scalar_one() == "user_1"


async def test_a_command_on_a_chat_of_another_user_is_not_found_and_changes_nothing(
    store: Store, engine: AsyncEngine
) -> None:
    before = [await count(engine, table) for table in (queue, messages, events, idempotency_keys)]
    with pytest.raises(NotFound, match="Chat not found"):
        await store.execute("chat_1", Send(), HELLO, user_id="user_2")
    with pytest.raises(NotFound, match="Chat not found"):
        await store.execute("chat_1", Send(), HELLO, user_id="user_2", key=ONCE)
    assert [await count(engine, table) for table in (queue, messages, events, idempotency_keys)] == before
    await store.execute("chat_1", Send(), HELLO, user_id="user_1")
    assert await count(engine, queue) == before[0] + 1


async def test_an_update_is_one_transaction_with_one_answer(store: Store, engine: AsyncEngine) -> None:
    await store.execute("chat_2", Create(), NewChat(owner_id="user_1"))
    patch = ChatPatch(title="Rain", pinned=True)
    with pytest.raises(NotAllowed, match="Cannot archive"):
        await store.update("chat_1", patch, archived=True)
    assert (await store.view("chat_1")).title is None
    with pytest.raises(NotFound):
        await store.update("chat_2", patch, user_id="user_2")
    done = await store.update("chat_2", patch, archived=True, user_id="user_1")
    assert done.summary is not None
    told = (done.summary.title, done.summary.pinned, done.summary.archived, done.summary.version)
    assert told == ("Rain", True, True, done.seq)
    assert (await store.update("chat_2", ChatPatch())).summary == done.summary


async def test_an_update_that_is_repeated_changes_nothing(store: Store) -> None:
    await store.execute("chat_2", Create(), NewChat(owner_id="user_1"))

    update = partial(store.update, "chat_2", ChatPatch(title="Rain"), archived=True)
    once = SEND._replace(respond=lambda outcome: StoredResponse(200, str(outcome.summary).encode()))
    first = await respond(update, once)
    await store.update("chat_2", ChatPatch(title="Sun"), archived=False)
    assert await respond(update, once) == first
    view = await store.view("chat_2")
    assert (view.title, view.archived) == ("Sun", False)


async def test_a_copy_that_is_asked_for_often_is_one(store: Store, engine: AsyncEngine) -> None:
    (message,) = await load_path(store, "chat_1")
    fork = partial(store.fork, "chat_1", message.id or "", owner_id="user_1", user_id="user_1")
    once = SEND._replace(respond=lambda outcome: StoredResponse(201, outcome.chat_id.encode()))
    answers = await asyncio.gather(
        *(respond(partial(fork, new_chat_id=f"copy_{number}"), once) for number in range(12))
    )
    assert len(set(answers)) == 1
    assert await count(engine, chats) == 2
    with pytest.raises(NotFound):
        await store.fork("chat_1", message.id or "", new_chat_id="copy", owner_id="user_2", user_id="user_2")
    await store.execute(answers[0].body.decode(), Delete())
    assert await count(engine, idempotency_keys) == 0


async def test_a_deletion_that_is_refused_keeps_what_is_beside_the_chat(store: Store) -> None:
    forgotten: list[str] = []

    async def forget(chat_id: str) -> None:
        forgotten.append(chat_id)

    store.before_delete = forget
    await store.execute("chat_1", Send(), HELLO, key=ONCE)
    with pytest.raises(Invalid, match="used for another request"):
        await store.execute("chat_1", Delete(), key=SEND._replace(route="DELETE /")._replace(respond=answer))
    with pytest.raises(NotFound):
        await store.execute("chat_1", Delete(), user_id="user_2", key=SEND._replace(key="k2")._replace(respond=answer))
    assert forgotten == []
