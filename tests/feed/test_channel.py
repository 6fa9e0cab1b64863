"""A watched chat: rows are taken as they are committed, and what does not connect is read, once for all readers."""

from __future__ import annotations

import asyncio

from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.feed_harness import FeedHarness

from indelible.feed.cursor import START
from indelible.machine.commands import UpdateChat
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


async def test_rows_that_come_while_the_watch_reads_are_told_after_what_it_reads(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        harness.store.gate.clear()
        harness.store.calls.clear()
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
        await chat.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await asyncio.gather(*(seen.wait_for("chat") for seen in readers))

    assert harness.store.calls == ["changes"]
