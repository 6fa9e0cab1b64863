"""The tree of messages: branches that stay, paths that are paged, summaries, and a deletion that leaves nothing.

What stands beside the conversation, titles and the like, is here too.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import OWNER, Driver, dump, settle_in
from tests.support.engine import begin_write, get_database
from tests.support.tables import chats, drafts, events, file_chunks, file_uses, files, messages, tool_runs, turns

from indelible.api.records import RunRecord, StepRecord
from indelible.content import Finish, Message, Text, TextDelta, encode
from indelible.errors import Invalid, NotAllowed, NotFound
from indelible.files.bytes import DatabaseBytes
from indelible.files.store import FileStore
from indelible.machine import State
from indelible.machine import commands as c
from indelible.recording.storage import RecordStore
from indelible.store.commands.change import CONTINUE, NOTICES
from indelible.store.payloads import ChatPatch
from indelible.store.store import Store

NOW = datetime(2026, 11, 15, tzinfo=UTC)


@pytest.fixture
async def store(engine: AsyncEngine) -> Store:
    await settle_in(engine)
    return Store(get_database(engine))


@pytest.fixture
async def chat(store: Store, engine: AsyncEngine) -> Driver:
    """Two questions, two replies."""
    chat = await Driver(store, engine).create("first")
    await reply(chat, "one")
    await chat.do(c.Send(), "second")
    await reply(chat, "two")
    return chat


async def reply(chat: Driver, text: str) -> None:
    await chat.do(c.Acquire(worker_id="live"))
    await chat.start()
    await chat.end(c.FinishTurn, pending=[TextDelta("1", text), Finish()])


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
    await chat.do(c.SwitchBranch(message_id=head))
    await chat.check()
    assert await chat.said() == old
    assert (await chat.list_events())[-1][:2] == ("head", head)


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
    await chat.do(c.SwitchBranch(message_id=old_id))
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
    await chat.do(c.SwitchBranch(message_id=kept.id))
    assert (await chat.said())[-2:] == [("user", "third"), ("assistant", "thr")]


async def test_only_a_users_message_is_edited(chat: Driver, engine: AsyncEngine) -> None:
    wrong = await find(chat, "two")
    before = await dump(engine)
    with pytest.raises(Invalid):
        await chat.do(c.Edit(message_id=wrong))
    assert await dump(engine) == before


async def test_a_turn_is_tied_to_the_message_that_it_answers(chat: Driver) -> None:
    await chat.do(c.Regenerate(message_id=await find(chat, "one")))
    answered = [row.message_id for row in await chat.rows(turns, turns.c.number)]
    first, second = answered[:2]
    assert answered == [first, second, first]
    assert await find(chat, "first") == first


async def test_deleting_a_chat_removes_every_row_of_it_and_nothing_else(
    chat: Driver, store: Store, engine: AsyncEngine
) -> None:
    before = await dump(engine)
    doomed = await Driver(store, engine).create()
    await doomed.work("live", TextDelta("1", "It is"))
    await doomed.do(c.Send(), "and then?")
    async with begin_write(engine) as connection:
        await connection.execute(
            insert(tool_runs).values(
                chat_id=doomed.id, turn_id=doomed.turn_id, step=1, call_index=0, attempt_id=doomed.attempt_id,
                call_id="c1", name="look", arguments=b"{}", state="started", idempotency_key="key_1", started_at=NOW,
            )
        )  # fmt: skip
        await connection.execute(
            insert(files).values(
                id="file_1", owner_id=OWNER, state="ready", name="a.txt", media_type="text/plain", size_bytes=1,
                sha256=bytes(32), place="database", preview="none", created_at=NOW,
            )
        )  # fmt: skip
        await connection.execute(insert(file_chunks).values(file_id="file_1", variant="content", n=0, content=b"x"))
        await connection.execute(insert(file_uses).values(chat_id=doomed.id, file_id="file_1"))
        await connection.execute(insert(drafts).values(user_id=OWNER, chat_id=doomed.id, content=b"[]", updated_at=NOW))
    begun: dict[str, Any] = {"status": "in_progress", "started_at": NOW}
    run = RunRecord(id="run_1", chat_id=doomed.id, turn_id=None, kind="turn", worker_id="live", **begun)
    await RecordStore(store.database).write([run, StepRecord(chat_id=run.chat_id, run_id=run.id, step=1, **begun)])
    assert (await doomed.do(c.Delete())).status is None
    assert await FileStore(store.database, [DatabaseBytes(store.database)]).sweep() == 1
    assert await dump(engine) == before
    assert await doomed.state() is State.NONE
    with pytest.raises(NotFound):
        await doomed.path()


async def test_of_a_long_path_as_many_messages_are_read_as_are_wanted(chat: Driver, engine: AsyncEngine) -> None:
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
    view = await chat.store.view(chat.id, limit=400)
    assert ([message.id for message in view.messages], view.has_more) == (ids[-400:], True)


# --- summaries ---


def summarise(text: str = "They spoke of numbers.") -> Message:
    return Message(role="user", blocks=[Text(text)], visibility="model")


async def test_a_compaction_leaves_a_summary_for_the_model_and_a_notice_for_people(chat: Driver) -> None:
    said = await chat.said()
    await chat.do(c.Compact())
    await chat.do(c.Acquire(worker_id="live"))
    seq = (await chat.row()).seq
    await chat.end(c.FinishTurn, attempt_id=None, summary=summarise())
    await chat.check()
    notice = NOTICES["compacted"] + "They spoke of numbers."  # people can read it
    assert await chat.said() == [*said, ("user", "They spoke of numbers."), ("notice", notice)]
    assert [message.visibility for message in (await chat.path())[-2:]] == ["model", "people"]
    assert [kind for kind, _, _ in (await chat.list_events())[seq:]] == ["message", "message", "status"]
    assert await chat.state() is State.IDLE


async def test_a_compaction_that_found_nothing_to_sum_up_leaves_the_notice_alone(chat: Driver) -> None:
    said = await chat.said()
    await chat.do(c.Compact())
    await chat.do(c.Acquire(worker_id="live"))
    await chat.start()
    await chat.end(c.FinishTurn, attempt_id=None)
    await chat.check()
    assert await chat.said() == [*said, ("notice", NOTICES["compacted"])]


async def test_compacting_after_a_reply_that_was_cut_does_not_ask_to_go_on_with_it(chat: Driver) -> None:
    """Going on is not what the turn is for; and the reply can be continued when it is over."""
    await chat.do(c.Send(), "third")
    await chat.work("live", TextDelta("1", "thr"))
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption)
    await chat.do(c.Compact())
    await chat.do(c.Acquire(worker_id="live"))
    assert [message.text for message in await chat.path() if message.visibility == "model"] == []


async def stop_a_reply(chat: Driver) -> str:
    """A third question, whose reply is cut; the id of what was said of it."""
    await chat.do(c.Send(), "third")
    await chat.work("live", TextDelta("1", "thr"))
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption)
    return await find(chat, "thr")


async def compact(chat: Driver) -> None:
    await chat.do(c.Compact())
    await chat.do(c.Acquire(worker_id="live"))
    await chat.end(c.FinishTurn, attempt_id=None, summary=summarise())


@pytest.mark.parametrize("again", [c.Continue(), c.Retry()], ids=["continue", "retry"])
async def test_a_reply_that_was_cut_is_continued_after_a_compaction(chat: Driver, again: c.Command) -> None:
    cut_id = await stop_a_reply(chat)
    await compact(chat)
    await chat.do(again)
    assert (await chat.said())[-1] == ("user", CONTINUE)
    await reply(chat, "ee")
    await chat.check()
    assert (await chat.path())[-1].continues == cut_id


@pytest.mark.parametrize("again", [c.Continue(), c.Retry()], ids=["continue", "retry"])
async def test_a_reply_that_is_whole_is_whole_after_a_compaction(
    chat: Driver, engine: AsyncEngine, again: c.Command
) -> None:
    await compact(chat)
    before = await dump(engine)
    with pytest.raises(NotAllowed, match="the last reply is complete"):
        await chat.do(again)
    assert await dump(engine) == before


async def test_a_model_is_asked_once_to_continue_a_reply_whatever_happens_before_it_does(chat: Driver) -> None:
    cut_id = await stop_a_reply(chat)
    await chat.do(c.Continue())
    await chat.do(c.Acquire(worker_id="live"))
    await chat.do(c.Interrupt())
    await chat.end(c.FinishInterruption, attempt_id=None)
    await compact(chat)
    await chat.do(c.Continue())
    assert [text for _, text in await chat.said()].count(CONTINUE) == 1
    await reply(chat, "ee")
    assert (await chat.path())[-1].continues == cut_id


async def test_a_summary_on_the_way_is_kept_once_and_the_turn_goes_on(chat: Driver) -> None:
    await chat.do(c.Send(), "third")
    await chat.do(c.Acquire(worker_id="live"))
    turn_id = chat.turn_id
    first = await chat.do(chat.name(c.KeepSummary), summary=summarise())
    await chat.do(chat.name(c.KeepSummary), summary=summarise())  # its answer was lost
    await chat.check()
    notice = NOTICES["compacted"] + "They spoke of numbers."
    assert [message.text for message in first.messages] == [notice, "They spoke of numbers."]
    path = await chat.path()
    assert [(message.role, message.visibility) for message in path[-2:]] == [("notice", "people"), ("user", "model")]
    assert (chat.turn_id, await chat.state()) == (turn_id, State.RUNNING)
    await chat.do(chat.name(c.KeepSummary), summary=summarise("And of rain."))
    await chat.start()
    await chat.end(c.FinishTurn, pending=[TextDelta("1", "three"), Finish()])
    hidden = [message.text for message in await chat.path() if message.role != "notice"]
    assert hidden[-3:] == ["They spoke of numbers.", "And of rain.", "three"]


async def test_a_summary_is_seen_by_the_model_alone_whatever_it_says_of_itself(chat: Driver) -> None:
    await chat.do(c.Send(), "third")
    await chat.do(c.Acquire(worker_id="live"))
    await chat.do(chat.name(c.KeepSummary), summary=Message(role="user", blocks=[Text("They spoke.")]))
    assert (await chat.path())[-1].visibility == "model"


async def test_a_summary_is_nobodys_to_edit_and_no_message_to_answer(chat: Driver, engine: AsyncEngine) -> None:
    await chat.do(c.Send(), "third")
    await chat.do(c.Acquire(worker_id="live"))
    await chat.do(chat.name(c.KeepSummary), summary=summarise())
    hidden = (await chat.path())[-1].id or ""
    before = await dump(engine)
    for command in (c.Edit(message_id=hidden), c.Regenerate(message_id=hidden)):
        with pytest.raises(NotFound):
            await chat.do(command)
    assert await dump(engine) == before
    await chat.end(c.Fail, attempt_id=None)
    await chat.do(c.Retry())
    answered = [row.message_id for row in await chat.rows(turns, turns.c.number)]
    assert answered[-1] == answered[-2] == await find(chat, "third")


async def test_a_branch_that_forks_off_before_the_summary_knows_nothing_of_it(chat: Driver) -> None:
    await chat.do(c.Compact())
    await chat.do(c.Acquire(worker_id="live"))
    await chat.end(c.FinishTurn, attempt_id=None, summary=summarise())
    await chat.do(c.Edit(message_id=await find(chat, "second")), "second, better")
    assert [message.visibility for message in await chat.path()] == ["both"] * 3


# --- what stands beside ---


async def test_a_description_changes_what_it_names_and_leaves_the_rest(chat: Driver) -> None:
    whole = ChatPatch(
        title="Rain", labels=["a"], pinned=True, model="big", system_prompt="Be kind.", parameters={"k": 1}
    )
    await chat.do(c.UpdateChat(), payload=whole)
    await chat.do(c.UpdateChat(), payload=ChatPatch(title="Snow"))
    await chat.check()
    row = await chat.row()
    assert (row.title, row.pinned, row.model) == ("Snow", True, "big")
    assert (row.labels, row.system_prompt, row.parameters) == (b'["a"]', b'"Be kind."', b'{"k":1}')
    gone = ChatPatch(title=None, labels=None, model=None, system_prompt=None, parameters=None)
    await chat.do(c.UpdateChat(), payload=gone)
    row = await chat.row()
    assert (row.title, row.labels, row.model, row.system_prompt, row.parameters) == (None,) * 5
    assert row.pinned is True


async def test_an_update_is_announced_without_what_is_between_the_chat_and_its_model(chat: Driver) -> None:
    seq = (await chat.row()).seq
    told = ChatPatch(title="Rain", pinned=False, system_prompt="Secret.", parameters={"k": 1})
    await chat.do(c.UpdateChat(), payload=told)
    assert (await chat.list_events())[seq:] == [("chat", None, {"title": "Rain", "pinned": False})]
    assert not any(b"Secret" in (row.payload or b"") for row in await chat.rows(events))


@pytest.mark.parametrize("mode", ["off", "errors", "all", None])
async def test_the_debug_mode_of_a_chat_is_set_and_announced_like_its_title(chat: Driver, mode: Any) -> None:
    await chat.do(c.UpdateChat(), payload=ChatPatch(debug="all"))
    seq = (await chat.row()).seq
    await chat.do(c.UpdateChat(), payload=ChatPatch(debug=mode))
    await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
    assert (await chat.list_events())[seq:] == [("chat", None, {"debug": mode}), ("chat", None, {"title": "Rain"})]
    assert (await chat.row()).debug == mode
    assert (await chat.store.view(chat.id)).debug == mode
    assert (await chat.store.work(chat.id)).debug == mode
    assert [line.debug for line in await chat.store.list_chats(OWNER)] == [mode]


@pytest.mark.parametrize("mode", ["", "ALL", "everything", "\0", "\ud800", 1, True, ["all"], {}])
async def test_another_word_for_what_is_recorded_is_refused_and_changes_nothing(
    chat: Driver, engine: AsyncEngine, mode: Any
) -> None:
    before = await dump(engine)
    with pytest.raises(Invalid, match="one of off, errors, all"):
        await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain", debug=mode))
    assert await dump(engine) == before


async def test_a_title_that_a_worker_thought_of_replaces_none(chat: Driver, engine: AsyncEngine) -> None:
    thought = c.UpdateChat(only_untitled=True)
    assert (await chat.do(thought, payload=ChatPatch(title="Numbers"))).effective
    before = await dump(engine)
    assert not (await chat.do(thought, payload=ChatPatch(title="Something else"))).effective
    assert await dump(engine) == before
    await chat.do(c.UpdateChat(), payload=ChatPatch(title=None))
    await chat.do(thought, payload=ChatPatch(title="Numbers again"))
    assert (await chat.row()).title == "Numbers again"


@pytest.mark.parametrize("title", ["nul \0", "half \ud83d", "😀" * 1000])
async def test_no_title_is_refused_by_a_database(chat: Driver, title: str) -> None:
    await chat.do(c.UpdateChat(), payload=ChatPatch(title=title, labels=[title[:100]]))
    await chat.check()
    assert ((await chat.row()).title or "")[:3] == title[:3]
