"""A watched chat: rows are taken as they are committed, and what does not connect is read, once for all readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.feed_harness import FeedHarness, StreamedChat
from tests.support.waiting import Watched

from indelible.api.events import EndReason, Position
from indelible.content import TextDelta, encode
from indelible.feed.channel import Channel
from indelible.feed.events import START, TimelineStep
from indelible.machine.commands import UpdateChat
from indelible.store.journal.append import JournalRow
from indelible.store.payloads import ChatPatch
from indelible.store.queries.changes import MAX_EVENTS


async def test_while_rows_connect_there_is_no_query(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as one, harness.read(chat) as other:
        await one.catch_up()
        await other.catch_up()
        harness.store.calls.clear()

        for number in range(20):
            await chat.write(f"{number},")
        for seen in (one, other):
            await seen.wait_for_text("".join(f"{number}," for number in range(20)))

    assert harness.store.calls == []


async def test_all_readers_of_a_chat_get_the_same_object(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as one, harness.read(chat, START) as other:
        await one.catch_up()
        await other.catch_up()
        await chat.write("Hello")
        (told,) = (await one.wait_for("part"))[-1:]
        (same,) = (await other.wait_for("part"))[-1:]

    assert told.body is same.body
    assert told.cursor == same.cursor
    assert told.data["parts"] == [{"type": "text_delta", "id": "1", "delta": "Hello"}]
    assert told.parts is same.parts


async def test_rows_that_do_not_connect_are_read_from_the_store(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.publishes_rows = False
        await chat.write("somebody else ")
        await chat.write("committed this, ")
        harness.publishes_rows = True
        await chat.write("and we this.")
        await seen.wait_for_text("somebody else committed this, and we this.")


async def test_a_gap_of_one_row_is_read_from_the_store(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as one, harness.read(chat) as other:
        await one.catch_up()
        await other.catch_up()
        harness.publishes_rows = False
        await chat.write("somebody else committed this, ")
        harness.publishes_rows = True
        await chat.write("and we this.")
        for seen in (one, other):
            await seen.wait_for_text("somebody else committed this, and we this.")


async def test_the_same_row_twice_is_passed_on_once_and_costs_nothing(harness: FeedHarness) -> None:
    """A flush whose commit was lost is repeated, and its rows are published again."""
    chat = await harness.create_streaming()
    async with watching(harness, chat) as (channel, seen):
        first, second, third = [await commit(harness, chat, n) for n in (1, 2, 3)]
        harness.store.calls.clear()
        for row in (first, first, second, first, third, third, second):
            channel.receive(row)
        assert [step.after.n for step in seen.steps] == [1, 2, 3]
        assert channel.position is not None
        assert channel.position.n == 3
        assert harness.store.calls == []


async def test_a_row_of_an_attempt_that_was_not_announced_is_read(harness: FeedHarness) -> None:
    """Its number may be the next one by chance."""
    chat = await harness.create_streaming()
    async with watching(harness, chat) as (channel, seen):
        here = channel.position
        assert here is not None
        row = await commit(harness, chat, 1)
        harness.store.calls.clear()
        channel.receive(row._replace(attempt_id="attempt_later", n=here.n + 1))
        assert seen.steps == []
        await harness.store.wait_for_call("changes")


async def test_a_row_that_comes_before_the_channel_has_a_position_is_read(harness: FeedHarness) -> None:
    """It was committed after the snapshot was read that a joining reader begins with."""
    chat = await harness.create_streaming()
    async with watching(harness, chat, start=False) as (channel, seen):
        before = (await harness.store.positions([chat.id]))[chat.id]
        channel.catch_up(before)  # a poll
        channel.receive(await commit(harness, chat, 1))
        assert seen.steps == []
        channel.start(before)
        await seen.wait_until(lambda: [step.after.n for step in seen.steps] == [1], what="the row")


async def test_a_poll_makes_a_channel_read_only_what_it_lacks(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with watching(harness, chat) as (channel, seen):
        here = channel.position
        assert here is not None
        await chat.write("Rain")
        await seen.wait_until(lambda: len(seen.steps) == 1, what="the row")
        harness.store.calls.clear()
        for known in (here, replace(here, n=1), Position(here.seq, "attempt_before", 99), Position(here.seq - 1)):
            channel.catch_up(known)
        assert not channel._is_loading
        channel.catch_up(replace(here, n=2))
        await harness.store.wait_for_call("changes")


async def commit(harness: FeedHarness, chat: StreamedChat, n: int) -> JournalRow:
    """Row `n` of the attempt, as its worker has committed it and nobody knows yet."""
    row = JournalRow(chat.id, chat.attempt_id, chat.epoch, n, encode([TextDelta("1", f"{n},")]))
    assert (await harness.store.append([row])).written == {chat.attempt_id}
    return row


class SeenSteps(Watched):
    """A live reader: it keeps what the channel pushes to it, and asks nobody else."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[TimelineStep] = []

    def push(self, step: TimelineStep) -> None:
        self.steps.append(step)
        self.changed()

    def set_vacancy(self, turn_id: str, *, is_vacant: bool) -> None:
        raise AssertionError((turn_id, is_vacant))

    def end(self, reason: EndReason) -> None:
        raise AssertionError(reason)


@asynccontextmanager
async def watching(
    harness: FeedHarness, chat: StreamedChat, *, start: bool = True
) -> AsyncIterator[tuple[Channel, SeenSteps]]:
    """The chat's channel in the feed with one listener, at the chat's position unless the test starts it."""
    seen = SeenSteps()
    channel = harness.feed._open_channel(chat.id)
    channel.listeners.add(seen)
    if start:
        channel.start((await harness.store.positions([chat.id]))[chat.id])
    yield channel, seen
    channel.listeners.discard(seen)
    harness.feed._close_channel(chat.id, channel)


async def test_rows_that_come_while_the_watch_reads_are_sent_after_what_it_reads(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.store.gate.clear()
        harness.store.calls.clear()
        harness.tells_commands = False
        await chat.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await harness.store.wait_for_call("changes")
        await chat.write("It is ")
        await chat.write("raining")
        harness.store.gate.set()
        await seen.wait_for_text("It is raining")

    assert seen.kinds == ["snapshot", "chat", "part", "part"]
    assert harness.store.calls.count("changes") == 1


async def test_more_rows_than_are_kept_meanwhile_are_read(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.store.gate.clear()
        harness.store.calls.clear()
        harness.tells_commands = False
        await chat.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await harness.store.wait_for_call("changes")
        for number in range(100):
            await chat.write(f"{number},")
        harness.store.gate.set()
        await seen.wait_for_text("".join(f"{number}," for number in range(100)))

    assert seen.kinds == ["snapshot", "chat", *["part"] * 100]
    assert harness.store.calls.count("changes") == 2


async def test_a_watch_that_is_far_behind_reads_on_until_nothing_is_new(
    engine: AsyncEngine, harness: FeedHarness
) -> None:
    chat = await harness.create_chat()
    async with FeedHarness(engine).running() as elsewhere, elsewhere.read(chat) as seen:
        await seen.catch_up()
        for number in range(2 * MAX_EVENTS):
            await chat.do(UpdateChat(), payload=ChatPatch(title=f"Title {number}"))
        await elsewhere.poll()
        await seen.wait_for("chat", 2 * MAX_EVENTS)

    assert seen.kinds == ["snapshot", *["chat"] * 2 * MAX_EVENTS]


async def test_a_chat_that_many_read_is_read_once(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as one, harness.read(chat) as two, harness.read(chat) as three:
        readers = (one, two, three)
        await asyncio.gather(*(seen.catch_up() for seen in readers))
        harness.store.calls.clear()
        harness.tells_commands = False
        await chat.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await asyncio.gather(*(seen.wait_for("chat") for seen in readers))

    assert harness.store.calls == ["changes"]
