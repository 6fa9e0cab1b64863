"""Commands are told to the readers of their process at the commit, and what does not follow is read.

That what is told is what would be read, to the byte, is checked in lives of chance (tests/store/test_life.py).
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.feed.feed_harness import FeedHarness
from tests.support.waiting import deadline

from indelible.api.events import FeedEvent, Position
from indelible.content import Finish
from indelible.errors import NotAllowed
from indelible.feed.events import Cursors
from indelible.machine import commands as c
from indelible.service.guests import show_event
from indelible.store.outcome import Outcome
from indelible.store.payloads import ChatPatch

pytestmark = pytest.mark.both_databases


async def test_a_turn_is_told_without_a_query(harness: FeedHarness) -> None:
    chat = await harness.create_chat(None)
    async with harness.read(chat) as one, harness.read(chat) as other:
        await one.catch_up()
        await other.catch_up()
        harness.store.calls.clear()
        await chat.do(c.Send(), "Is it raining?")
        await chat.acquire()
        await chat.start()
        await chat.write("Yes", Finish("stop"))
        await chat.close(c.FinishTurn)
        for seen in (one, other):
            await seen.wait_for("status", 2)

    assert one.kinds == ["snapshot", "message", "status", "attempt", "part", "message", "status"]
    assert one.events[1:] == other.events[1:]
    assert harness.store.calls == []


async def test_parts_that_were_not_flushed_are_told_before_the_message_that_holds_them(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.store.calls.clear()
        await chat.write("It is ")
        await chat.close(c.FinishTurn, Finish("stop"))
        await seen.wait_for("status")

    assert seen.kinds == ["snapshot", "part", "part", "message", "status"]
    assert seen.events[3].data["last_n"] == 2
    assert harness.store.calls == []


async def test_an_end_whose_rows_are_not_here_is_read_and_comes_after_them(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.publishes_rows = False
        await chat.write("somebody else committed this")
        await chat.close(c.FinishTurn)
        await seen.wait_for("status")

    assert seen.kinds == ["snapshot", "part", "message", "status"]
    assert harness.store.calls.count("changes") == 1


async def test_a_command_after_one_of_another_process_is_read_with_it(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        elsewhere = FeedHarness(harness.engine)  # whose hints do not come
        await elsewhere.store.execute(chat.id, c.UpdateChat(), ChatPatch(title="Rain"))
        await chat.do(c.UpdateChat(), payload=ChatPatch(title="Snow"))
        await seen.wait_for("chat", 2)

    assert [event.data["title"] for event in seen.events[1:]] == ["Rain", "Snow"]
    assert harness.store.calls.count("changes") == 1


async def test_a_command_that_is_told_twice_or_late_is_passed_on_once(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        first = await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
        second = await chat.do(c.UpdateChat(), payload=ChatPatch(title="Snow"))
        harness.store.calls.clear()
        for outcome in (first, second, first):
            harness.feed.publish_outcome(outcome)
        await chat.do(c.UpdateChat(), payload=ChatPatch(title="Sun"))
        await seen.wait_for("chat", 3)

    assert [event.data["title"] for event in seen.events[1:]] == ["Rain", "Snow", "Sun"]
    assert harness.store.calls == []


async def test_nothing_is_told_of_a_command_that_was_refused(
    harness: FeedHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await harness.create_chat()
    told: list[Outcome] = []
    monkeypatch.setattr(harness.feed, "publish_outcome", told.append)
    with pytest.raises(NotAllowed):
        await chat.do(c.Continue())
    assert told == []


async def test_a_reader_that_follows_its_command_asks_only_if_something_came_since(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.feed.follow(chat.id, await write_cursor(harness, chat.id)) as reader:
        assert reader.get_nowait() is None
        assert "changes" not in harness.store.calls
    after = await write_cursor(harness, chat.id)
    await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
    async with harness.feed.follow(chat.id, after) as reader:
        assert (await anext(reader)).data == {"title": "Rain"}


async def test_a_reader_that_follows_a_command_of_long_ago_reads_what_came_since(harness: FeedHarness) -> None:
    """A request that is repeated with its key gets its first answer, however much has been told to others since."""
    chat = await harness.create_chat()
    after = await write_cursor(harness, chat.id)
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
        await seen.wait_for("chat")
    for _ in range(2):
        async with deadline("what came since"), harness.feed.follow(chat.id, after) as reader:
            assert (await anext(reader)).data == {"title": "Rain"}


async def test_a_reader_that_follows_its_command_while_another_one_joins_misses_nothing(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    after = await write_cursor(harness, chat.id)
    await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
    joining = harness.feed._join(chat.id)  # it has no snapshot yet
    async with joining, deadline("what came since"), harness.feed.follow(chat.id, after) as reader:
        assert (await anext(reader)).data == {"title": "Rain"}


async def test_a_reader_gets_what_its_command_brought_beyond_its_own_answer(harness: FeedHarness) -> None:
    """A transaction may do more than what it answers, and the reader begins where the answer ends."""
    chat = await harness.create_chat()
    after = await write_cursor(harness, chat.id)
    harness.tells_commands = False
    title = await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
    harness.feed._unread.clear()
    harness.feed.publish_outcome(replace(title, seq=title.seq - 1))
    harness.store.calls.clear()
    async with harness.feed.follow(chat.id, after) as reader:
        assert (await anext(reader)).data == {"title": "Rain"}
    assert harness.store.calls == []


async def test_a_command_that_is_told_in_part_is_read(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.tells_commands = False
        first = await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
        second = await chat.do(c.UpdateChat(), payload=ChatPatch(title="Snow"))
        harness.feed.publish_outcome(replace(second, additions=first.additions))
        await seen.wait_for("chat", 2)

    assert [event.data["title"] for event in seen.events[1:]] == ["Rain", "Snow"]


async def test_a_guest_is_told_what_a_guest_may_see(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.feed.open(chat.id, show=show_event) as reader:
        events: list[FeedEvent] = [await anext(reader)]
        await chat.do(c.UpdateChat(), payload=ChatPatch(labels=["mine"]))
        await chat.do(c.UpdateChat(), payload=ChatPatch(title="Rain"))
        events.append(await anext(reader))

    assert events[1].data == {"title": "Rain"}


async def write_cursor(harness: FeedHarness, chat_id: str) -> str:
    here: Position = (await harness.store.positions([chat_id]))[chat_id]
    return Cursors(chat_id).write(here)
