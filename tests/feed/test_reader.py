"""Readers of every pace: nobody waits for a slow one, it costs a bounded memory, and it misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.feed_harness import FeedHarness, StreamedChat, read_text
from tests.store.driver import settle_in
from tests.support.engine import get_database
from tests.support.waiting import deadline

from indelible.api.events import FeedEvent
from indelible.feed import Reader
from indelible.machine.commands import FinishTurn, UpdateChat
from indelible.store.payloads import ChatPatch
from indelible.store.store import Store

BUFFER_BYTES = 8 * 1024
RESYNC_BYTES = 64 * 1024


@pytest.fixture
async def harness(engine: AsyncEngine) -> AsyncIterator[FeedHarness]:
    await settle_in(engine)
    async with FeedHarness(engine, buffer_bytes=BUFFER_BYTES, resync_bytes=RESYNC_BYTES).opened() as opened:
        yield opened


async def take(reader: Reader, count: int = 1) -> list[FeedEvent]:
    async with deadline():
        return [await anext(reader) for _ in range(count)]


async def go_live(reader: Reader, chat: StreamedChat) -> None:
    """Take the snapshot, and then a part that is handed over as it comes."""
    await take(reader)
    next_event = asyncio.ensure_future(take(reader))
    await chat.write("Live. ")
    assert read_text(await next_event) == "Live. "


async def test_a_slow_reader_beside_a_fast_one_holds_little_and_has_to_start_anew(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    words = [f"{number:03}" + "x" * 1000 for number in range(100)]
    async with harness.feed.open(chat.id) as slow, harness.read(chat) as fast:
        await fast.catch_up()
        await go_live(slow, chat)
        for word in words:
            await chat.write(word)
            assert slow.held_bytes <= BUFFER_BYTES
        await fast.wait_until(lambda: fast.text.endswith("".join(words)))
        resync, snapshot = await take(slow, 2)
        next_event = asyncio.ensure_future(take(slow))
        await chat.write("On.")
        assert read_text(await next_event) == "On."

    assert (resync.kind, resync.data) == ("resync", {"reason": "slow"})
    assert snapshot.kind == "snapshot"
    assert snapshot.data["live"]["blocks"] == [{"type": "text", "text": "Live. " + "".join(words)}]
    assert harness.metrics.resyncs == 1
    assert "resync" not in fast.kinds


async def test_whoever_comes_back_with_the_cursor_of_a_resync_misses_nothing(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    words = [f"{number:03}" + "x" * 1000 for number in range(100)]
    async with harness.feed.open(chat.id) as slow:
        await go_live(slow, chat)
        for word in words:
            await chat.write(word)
        (resync,) = await take(slow)
    async with harness.read(chat, resync.cursor) as seen:
        await seen.catch_up()

    assert seen.text == "".join(words)


async def test_a_reader_that_is_somewhat_late_reads_the_store_and_needs_no_snapshot(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    words = [f"{number:03}" + "x" * 1000 for number in range(30)]
    async with harness.feed.open(chat.id) as slow:
        await go_live(slow, chat)
        for word in words:
            await chat.write(word)
        late = await take(slow, len(words))
        next_event = asyncio.ensure_future(take(slow))
        await chat.write("On.")
        assert read_text(await next_event) == "On."

    assert read_text(late) == "".join(words)
    assert harness.metrics.resyncs == 0


async def test_a_reader_that_never_catches_up_has_to_start_anew(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.feed.open(chat.id) as slow:
        await go_live(slow, chat)
        told: list[FeedEvent] = []
        for number in range(200):
            for _ in range(5):
                await chat.write(f"{number:03}" + "x" * 1000)
            told += await take(slow)
            if told[-1].kind == "resync":
                break

    assert [event.kind for event in told[:-1]] == ["part"] * (len(told) - 1)
    assert told[-1].kind == "resync"


async def test_a_reader_that_falls_far_behind_while_it_reads_starts_with_a_snapshot_all_the_same(
    harness: FeedHarness,
) -> None:
    chat = await harness.create_streaming()
    async with harness.feed.open(chat.id) as slow:
        await go_live(slow, chat)
        for _ in range(10):
            await chat.write("x" * 1000)
        harness.store.gate.clear()
        reading = asyncio.ensure_future(take(slow, 2))
        await harness.store.wait_for_call("changes")
        for _ in range(100):
            await chat.write("x" * 1000)
        harness.store.gate.set()
        resync, snapshot = await reading
        next_event = asyncio.ensure_future(take(slow))
        await chat.write("On.")
        assert read_text(await next_event) == "On."

    assert (resync.kind, snapshot.kind) == ("resync", "snapshot")
    assert len(snapshot.data["live"]["blocks"][0]["text"]) == 110 * 1000 + len("Live. ")


async def test_a_reader_that_keeps_up_never_needs_the_store_even_if_something_always_waits(
    harness: FeedHarness,
) -> None:
    chat = await harness.create_streaming()
    async with harness.feed.open(chat.id) as reader:
        await go_live(reader, chat)
        harness.store.calls.clear()
        await chat.write("x" * 1000)
        for _ in range(30):
            await chat.write("x" * 1000)
            await take(reader)

    assert harness.store.calls == []


async def test_what_is_larger_than_the_buffer_still_reaches_a_reader_that_keeps_up(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as seen:
        await seen.catch_up()
        await chat.write("y" * 10 * RESYNC_BYTES)
        await seen.wait_until(lambda: len(seen.text) == 10 * RESYNC_BYTES)

    assert seen.kinds == ["snapshot", "part"]


async def test_a_reader_that_knows_more_than_its_watch_has_a_cursor_of_its_own(
    harness: FeedHarness, engine: AsyncEngine
) -> None:
    """Another process changed the chat and nobody was told; who joins now has seen it, who was there has not."""
    chat = await harness.create_streaming()
    async with harness.read(chat) as before:
        await before.catch_up()
        await Store(get_database(engine)).execute(chat.id, UpdateChat(), ChatPatch(title="Rain"))
        async with harness.read(chat) as after:
            await after.catch_up()
            await chat.write("Hello")
            unaware = (await before.wait_for("part"))[-1]
            aware = (await after.wait_for("part"))[-1]
    async with harness.read(chat, unaware.cursor) as one, harness.read(chat, aware.cursor) as other:
        await one.catch_up()
        await other.catch_up()

    assert aware.body is unaware.body
    assert one.kinds == ["chat"]
    assert other.kinds == []


async def test_what_is_at_hand_can_be_taken_without_waiting(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.feed.open(chat.id) as reader:
        await go_live(reader, chat)
        assert reader.get_nowait() is None
        await chat.write("a")
        await chat.write("b")
        told = [reader.get_nowait(), reader.get_nowait(), reader.get_nowait()]
        harness.feed.close()
        end = reader.get_nowait()
        after_the_end = reader.get_nowait()

    assert read_text([event for event in told if event is not None]) == "ab"
    assert told[2] is None
    assert end is not None
    assert end.kind == "end"
    assert after_the_end is None


async def test_taking_may_be_cancelled_at_any_time_without_losing_an_event(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    told: list[FeedEvent] = []
    async with harness.feed.open(chat.id, "start") as reader:
        for turns_of_the_loop in range(40):
            waiting = asyncio.ensure_future(anext(reader))
            if turns_of_the_loop % 4 == 0:
                await chat.write(f"{turns_of_the_loop},")
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                told.append(waiting.result())
        while read_text(told) != "".join(f"{number}," for number in range(0, 40, 4)):
            told += await take(reader)


async def test_a_reader_that_takes_nothing_for_30_seconds_is_ended(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.feed.open(chat.id) as stuck:
        await go_live(stuck, chat)
        await chat.write("Nobody takes this.")
        await harness.poll(30)
        assert stuck.held_bytes > 0
        await harness.poll(2)
        assert stuck.held_bytes == 0
        (end,) = await take(stuck)
        with pytest.raises(StopAsyncIteration):
            await anext(stuck)

    assert (end.kind, end.data) == ("end", {"reason": "slow"})
    async with harness.read(chat, end.cursor) as seen:
        await seen.catch_up()
    assert seen.text == "Nobody takes this."


async def test_a_reader_that_waits_or_now_and_then_takes_something_is_not_ended(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.read(chat) as waiting, harness.feed.open(chat.id) as leisurely:
        await go_live(leisurely, chat)
        for _ in range(4):
            await chat.write("a")
            await chat.write("b")
        for _ in range(4):
            await harness.poll(20)
            await take(leisurely, 2)
        await harness.poll(60)  # nothing is left to take
        await chat.write("Still here.")
        assert read_text(await take(leisurely)) == "Still here."
        await waiting.wait_until(lambda: waiting.text.endswith("Still here."))

    assert not waiting.is_over


async def test_a_reader_that_falls_behind_through_the_end_of_a_reply_reads_it_all(harness: FeedHarness) -> None:
    chat = await harness.create_streaming()
    async with harness.feed.open(chat.id) as slow:
        await go_live(slow, chat)
        for _ in range(20):
            await chat.write("x" * 1000)
        await chat.close(FinishTurn)
        told = await take(slow, 22)

    assert [event.kind for event in told] == [*["part"] * 20, "message", "status"]
