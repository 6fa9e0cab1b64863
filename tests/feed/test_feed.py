"""Who is woken when: by hints, by polling when every hint is lost, and at the end of a chat or of the harness."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.feed_harness import FeedHarness
from tests.store.driver import settle_in
from tests.support.engine import get_database

from indelible.content import Finish
from indelible.errors import NotFound
from indelible.feed.events import START
from indelible.machine.commands import Delete, FinishTurn, Send, UpdateChat
from indelible.store.payloads import ChatPatch
from indelible.store.store import Store


async def test_with_every_hint_lost_a_reader_is_a_poll_late_and_misses_nothing(
    engine: AsyncEngine, harness: FeedHarness
) -> None:
    """The reader's process receives nothing from the writer's: neither hints nor rows."""
    chat = await (await harness.create_chat()).acquire()
    async with FeedHarness(engine).running() as elsewhere, elsewhere.read(chat, START) as seen:
        await seen.catch_up()
        await chat.start()
        await chat.write("It is ")
        assert "attempt" not in seen.kinds
        await elsewhere.poll()
        await seen.wait_for_text("It is ")
        await chat.write("raining", Finish("stop"))
        await chat.close(FinishTurn)
        await elsewhere.poll()
        told = await seen.catch_up()

    assert [event.kind for event in told] == ["message", "status", "attempt", "part", "part", "message", "status"]
    assert seen.text == "It is raining"


async def test_a_poll_is_one_query_however_many_read(harness: FeedHarness) -> None:
    chats = [await harness.create_chat() for _ in range(5)]
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(harness.read(chat)) for chat in chats * 2]
        await asyncio.gather(*(seen.catch_up() for seen in readers))
        await harness.poll()
        harness.store.calls.clear()
        await harness.poll()
        assert harness.store.calls == ["positions"]
    harness.store.calls.clear()
    await harness.poll()
    assert harness.store.calls == []  # nobody reads any more


async def test_a_hint_wakes_a_reader_at_once(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await chat.do(Send(), "And Bergen?")
        told = await seen.wait_for("queue")

    (queued,) = told[-1].data["queue"]
    assert queued["blocks"] == [{"type": "text", "text": "And Bergen?"}]
    assert told[-1].data["ids"] == [queued["id"]]


async def test_hints_that_were_missed_before_the_feed_ran_are_made_up_for(engine: AsyncEngine) -> None:
    await settle_in(engine)
    harness = FeedHarness(engine)
    chat = await harness.create_chat()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await chat.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        async with harness.running():
            told = list(await seen.wait_for("chat"))

    assert told[-1].data == {"title": "Rain"}


@pytest.mark.parametrize("what", ["positions", "changes"])
@pytest.mark.may_log("loading new events of .* failed", "polling for new events failed")
async def test_a_database_that_fails_for_a_while_delays_readers_and_ends_none(harness: FeedHarness, what: str) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.store.failures = {what: 3}
        chat.store = Store(get_database(harness.engine))  # whose hints are lost, so that polling has to find it
        await chat.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        while harness.store.failures[what] > 0:
            await harness.poll()
        await harness.poll()
        await seen.wait_for("chat")
        await chat.write("Back.")
        await seen.wait_for_text("Back.")

    assert seen.kinds == ["snapshot", "chat", "part"]
    assert harness.store.failures == {what: 0}


@pytest.mark.may_log("loading new events of .* failed")
async def test_a_hint_that_the_database_fails_to_answer_is_made_up_for_by_the_next_poll(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.store.failures = {"changes": 1}
        harness.tells_commands = False
        await chat.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await harness.store.watched.wait_until(lambda: harness.store.failures == {"changes": 0})
        await harness.poll()
        await seen.wait_for("chat")


async def test_an_unknown_chat_is_not_found(harness: FeedHarness) -> None:
    with pytest.raises(NotFound):
        async with harness.feed.open("chat_that_never_was"):
            pytest.fail("it was opened")
    with pytest.raises(NotFound):
        await harness.feed.snapshot("chat_that_never_was")
    assert harness.metrics.readers == 0


async def test_the_feed_of_a_chat_that_is_deleted_ends(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await chat.do(Delete())
        await seen.wait_until_over()

    assert (seen.events[-1].kind, seen.events[-1].data) == ("end", {"reason": "deleted"})


async def test_a_chat_that_is_deleted_before_its_snapshot_was_received_ends_too(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.feed.open(chat.id) as reader:
        await chat.do(Delete())
        *_, end = [event async for event in reader]

    assert (end.kind, end.data) == ("end", {"reason": "deleted"})


async def test_closing_tells_every_reader_and_whoever_still_comes(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await chat.write("It is ")
        await seen.wait_for("part")
        harness.feed.close()
        await seen.wait_until_over()
    async with harness.read(chat) as late:
        await late.wait_until_over()

    assert (seen.events[-1].kind, seen.events[-1].data) == ("end", {"reason": "shutdown"})
    assert seen.events[-1].cursor == seen.events[-2].cursor
    assert late.kinds == ["end"]


async def test_pending_is_seen_in_a_snapshot_and_is_never_an_event(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await chat.acquire()
        await chat.start()
        await seen.catch_up()
        held = await harness.feed.snapshot(chat.id)

    assert seen.events[0].data["status"] == "pending"
    assert seen.kinds == ["snapshot", "attempt"]
    assert held.status == "running"


async def test_readers_are_counted_and_gaps_stay_at_zero(harness: FeedHarness) -> None:
    chat = await harness.create_chat()
    async with harness.read(chat) as one, harness.read(chat, START) as other:
        await one.catch_up()
        await other.catch_up()
        assert harness.metrics.readers == 2
    assert (harness.metrics.readers, harness.metrics.resyncs, harness.metrics.gaps) == (0, 0, 0)


async def test_a_row_reaches_exactly_the_readers_of_its_chat(harness: FeedHarness) -> None:
    one, other, unread = [await harness.create_streaming() for _ in range(3)]
    async with harness.read(one) as first, harness.read(other) as second:
        await first.catch_up()
        await second.catch_up()
        harness.store.calls.clear()
        async with asyncio.TaskGroup() as tasks:
            for chat, said in ((one, "one"), (other, "other"), (unread, "to nobody")):
                tasks.create_task(chat.write(said))
        await first.wait_for_text("one")
        await second.wait_for_text("other")

    assert harness.store.calls == []


async def test_rows_of_a_chat_that_nobody_reads_any_more_go_nowhere(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await chat.write("read, ")
        await seen.wait_for_text("read, ")
    await chat.write("not read")

    assert seen.text == "read, "
    assert (seen.reader.held_bytes, harness.metrics.readers) == (0, 0)
