"""Messages as people see them: pages, branches, and nothing of what only a model may see."""

from __future__ import annotations

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver, read_text, settle_in
from tests.support.engine import get_database
from tests.support.stored import load_path

from indelible.api.events import BEGINNING, ShownMessage
from indelible.content import Finish, Message, Text, TextDelta, Usage, decode_blocks
from indelible.errors import NotFound
from indelible.machine import commands as c
from indelible.store.store import Store


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    return await Driver(store, engine).create("Question 1")


async def answer(chat: Driver, text: str) -> None:
    await chat.work("live", TextDelta("1", text))
    await chat.end(c.FinishTurn, pending=[Finish("stop")], usage=Usage(input_tokens=3, output_tokens=5))


async def converse(chat: Driver, turns: int) -> None:
    await answer(chat, "Answer 1")
    for number in range(2, turns + 1):
        await chat.do(c.Send(), f"Question {number}")
        await answer(chat, f"Answer {number}")


def read(items: list[ShownMessage]) -> list[str]:
    return [read_text(decode_blocks(message.blocks)) for message in items]


async def test_a_page_is_the_end_of_the_path_and_says_whether_there_is_more(chat: Driver, store: Store) -> None:
    await converse(chat, 3)

    page = await store.page(chat.id, limit=4)
    above = await store.page(chat.id, before=page.items[0].id, limit=4)

    assert read(page.items) == ["Question 2", "Answer 2", "Question 3", "Answer 3"]
    assert read(above.items) == ["Question 1", "Answer 1"]
    assert (page.has_more, above.has_more) == (True, False)
    assert page.items[0].parent_id == above.items[-1].id
    assert above.items[0].parent_id is None
    assert read((await store.page(chat.id, upto=above.items[-1].id)).items) == ["Question 1", "Answer 1"]


async def test_a_page_of_exactly_all_there_is_has_no_more(chat: Driver, store: Store) -> None:
    await converse(chat, 2)

    assert not (await store.page(chat.id, limit=4)).has_more
    assert (await store.page(chat.id, limit=3)).has_more


async def test_an_empty_chat_has_an_empty_page_and_what_is_not_there_is_not_found(
    chat: Driver, store: Store, engine: AsyncEngine
) -> None:
    empty = await Driver(store, engine).create(None)

    assert (await store.page(empty.id)).items == []
    with pytest.raises(NotFound):
        await store.page(chat.id, upto="message_x")
    with pytest.raises(NotFound):
        await store.page(chat.id, before="message_x")
    with pytest.raises(NotFound):
        await store.page("chat_that_never_was")


async def test_a_message_is_shown_with_all_that_people_may_know_of_it(chat: Driver, store: Store) -> None:
    await converse(chat, 1)

    (question, reply) = (await store.page(chat.id)).items

    assert (question.role, question.model, question.partial) == ("user", None, False)
    assert bytes(question.usage) == b"null"
    assert (reply.role, reply.model, reply.reason, reply.continues) == ("assistant", "demo-1", None, None)
    assert bytes(reply.usage) == b'{"input_tokens":3,"output_tokens":5}'
    assert reply.created_at >= question.created_at
    assert reply.siblings == [reply.id]


async def test_branches_are_siblings_of_each_other(chat: Driver, store: Store) -> None:
    await converse(chat, 1)
    (question, reply) = (await store.page(chat.id)).items
    await chat.do(c.Regenerate(message_id=reply.id))
    await answer(chat, "Another answer")
    regenerated_id = await chat.last_id("assistant")
    await chat.do(c.Edit(message_id=question.id), "Another question")

    (edited,) = (await store.page(chat.id)).items
    assert edited.siblings == [question.id, edited.id]
    (asked, other) = (await store.page(chat.id, upto=regenerated_id)).items
    assert other.siblings == [reply.id, other.id]
    assert asked.siblings == [question.id, edited.id]


async def test_a_page_above_a_message_of_another_branch_is_only_for_those_who_may_see_it(
    chat: Driver, store: Store
) -> None:
    await converse(chat, 2)
    left = (await store.page(chat.id)).items
    await chat.do(c.Edit(message_id=left[2].id), "Another question")
    edited_id = await chat.last_id("user")

    for message in left[2:]:
        assert (await store.page(chat.id, before=message.id)).items != []
        with pytest.raises(NotFound):
            await store.page(chat.id, before=message.id, only_active=True)
    above = await store.page(chat.id, before=edited_id, limit=1, only_active=True)
    assert (read(above.items), above.has_more) == (["Answer 1"], True)


async def test_what_only_a_model_sees_is_neither_shown_nor_named_nor_counted(chat: Driver, store: Store) -> None:
    await converse(chat, 1)
    await chat.do(c.Compact())
    await chat.do(c.Acquire(worker_id="live"))
    summary = Message(role="user", blocks=[Text("Summary.")], visibility="model")
    await chat.end(c.FinishTurn, attempt_id=None, summary=summary)
    await chat.do(c.Send(), "Question 2")

    page = await store.page(chat.id)

    assert "Summary." not in read(page.items)
    assert [message.parent_id for message in page.items] == [None, *(message.id for message in page.items[:-1])]
    assert read((await store.page(chat.id, limit=2)).items)[-1] == "Question 2"
    assert len((await store.page(chat.id, limit=3)).items) == 3


async def test_events_name_what_people_see_in_place_of_what_they_do_not(chat: Driver, store: Store) -> None:
    """A reply that was cut is carried on below an instruction to the model; the head goes back to what is above it."""
    await chat.work("live", TextDelta("1", "It is rai"))
    await chat.end(c.CommitStep, failed=True)
    await chat.start()
    await chat.say(TextDelta("1", "ning"))
    await chat.end(c.FinishTurn, pending=[Finish("stop")])
    (question, partial, rest) = (await store.page(chat.id)).items

    changes = await store.changes(chat.id, BEGINNING)

    assert set(changes.messages) == {question.id, partial.id, rest.id}
    assert (rest.parent_id, rest.continues) == (partial.id, partial.id)
    assert changes.messages[rest.id].parent_id == partial.id
    hidden = {message.id for message in await load_path(store, chat.id)} - set(changes.messages)
    assert len(hidden) == 1
