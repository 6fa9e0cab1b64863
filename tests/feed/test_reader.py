"""Readers of every pace: nobody waits for a slow one, it costs a bounded memory, and it misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.process import PATIENCE_S, Process, Talk, poll, read_text, wait_until
from tests.store.driver import settle_in

from indelible.feed import Reader
from indelible.machine.commands import FinishTurn, UpdateChat
from indelible.machine.events import FeedEvent
from indelible.store.payloads import ChatPatch
from indelible.store.sql_store import SqlStore

BUFFER_BYTES = 8 * 1024
RESYNC_BYTES = 64 * 1024


@pytest.fixture
async def process(engine: AsyncEngine) -> AsyncIterator[Process]:
    await settle_in(engine)
    async with Process(engine, buffer_bytes=BUFFER_BYTES, resync_bytes=RESYNC_BYTES).running() as started:
        yield started


async def begin(process: Process) -> Talk:
    talk = await (await process.talk()).hold()
    await talk.start()
    return talk


async def take(reader: Reader, count: int = 1) -> list[FeedEvent]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(reader) for _ in range(count)]


async def go_live(reader: Reader, talk: Talk) -> None:
    """Take the snapshot, and then a part that is handed over as it comes."""
    await take(reader)
    next_event = asyncio.ensure_future(take(reader))
    await talk.speak("Live. ")
    assert read_text(await next_event) == "Live. "


async def test_a_slow_reader_beside_a_fast_one_holds_little_and_is_told_to_start_anew(process: Process) -> None:
    talk = await begin(process)
    words = [f"{number:03}" + "x" * 1000 for number in range(100)]
    async with process.feed.open(talk.id) as slow, process.read(talk) as fast:
        await go_live(slow, talk)
        for word in words:
            await talk.speak(word)
            assert slow.held_bytes <= BUFFER_BYTES
        await wait_until(lambda: fast.text.endswith("".join(words)))
        resync, snapshot = await take(slow, 2)
        next_event = asyncio.ensure_future(take(slow))
        await talk.speak("On.")
        assert read_text(await next_event) == "On."

    assert (resync.kind, resync.data) == ("resync", {"reason": "slow"})
    assert snapshot.kind == "snapshot"
    assert snapshot.data["live"]["blocks"] == [{"type": "text", "text": "Live. " + "".join(words)}]
    assert process.counted.resyncs == 1
    assert "resync" not in fast.kinds


async def test_whoever_comes_back_with_the_cursor_of_a_resync_misses_nothing(process: Process) -> None:
    talk = await begin(process)
    words = [f"{number:03}" + "x" * 1000 for number in range(100)]
    async with process.feed.open(talk.id) as slow:
        await go_live(slow, talk)
        for word in words:
            await talk.speak(word)
        (resync,) = await take(slow)
    async with process.read(talk, resync.cursor) as seen:
        await seen.everything()

    assert seen.text == "".join(words)


async def test_a_reader_that_is_somewhat_late_reads_the_store_and_needs_no_snapshot(process: Process) -> None:
    talk = await begin(process)
    words = [f"{number:03}" + "x" * 1000 for number in range(30)]
    async with process.feed.open(talk.id) as slow:
        await go_live(slow, talk)
        for word in words:
            await talk.speak(word)
        late = await take(slow, len(words))
        next_event = asyncio.ensure_future(take(slow))
        await talk.speak("On.")
        assert read_text(await next_event) == "On."

    assert read_text(late) == "".join(words)
    assert process.counted.resyncs == 0


async def test_a_reader_that_never_catches_up_is_told_to_start_anew(process: Process) -> None:
    talk = await begin(process)
    async with process.feed.open(talk.id) as slow:
        await go_live(slow, talk)
        told: list[FeedEvent] = []
        for number in range(200):
            for _ in range(5):
                await talk.speak(f"{number:03}" + "x" * 1000)
            told += await take(slow)
            if told[-1].kind == "resync":
                break

    assert [event.kind for event in told[:-1]] == ["part"] * (len(told) - 1)
    assert told[-1].kind == "resync"


async def test_a_reader_that_falls_far_behind_while_it_reads_starts_with_a_snapshot_all_the_same(
    process: Process,
) -> None:
    talk = await begin(process)
    async with process.feed.open(talk.id) as slow:
        await go_live(slow, talk)
        for _ in range(10):
            await talk.speak("x" * 1000)
        process.store.gate.clear()
        reading = asyncio.ensure_future(take(slow, 2))
        await wait_until(lambda: "changes" in process.store.asked)
        for _ in range(100):
            await talk.speak("x" * 1000)
        process.store.gate.set()
        resync, snapshot = await reading
        next_event = asyncio.ensure_future(take(slow))
        await talk.speak("On.")
        assert read_text(await next_event) == "On."

    assert (resync.kind, snapshot.kind) == ("resync", "snapshot")
    assert len(snapshot.data["live"]["blocks"][0]["text"]) == 110 * 1000 + len("Live. ")


async def test_a_reader_that_keeps_up_never_needs_the_store_even_if_something_always_waits(process: Process) -> None:
    talk = await begin(process)
    async with process.feed.open(talk.id) as reader:
        await go_live(reader, talk)
        process.store.asked.clear()
        await talk.speak("x" * 1000)
        for _ in range(30):
            await talk.speak("x" * 1000)
            await take(reader)

    assert process.store.asked == []


async def test_what_is_larger_than_the_buffer_still_reaches_a_reader_that_keeps_up(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as seen:
        await seen.everything()
        await talk.speak("y" * 10 * RESYNC_BYTES)
        await wait_until(lambda: len(seen.text) == 10 * RESYNC_BYTES)

    assert seen.kinds == ["snapshot", "part"]


async def test_a_reader_that_knows_more_than_its_watch_has_a_cursor_of_its_own(
    process: Process, engine: AsyncEngine
) -> None:
    """Another process changed the chat and nobody was told; who joins now has seen it, who was there has not."""
    talk = await begin(process)
    async with process.read(talk) as before:
        await before.everything()
        await SqlStore(engine).execute(talk.id, UpdateChat(), ChatPatch(title="Rain"))
        async with process.read(talk) as after:
            await after.everything()
            await talk.speak("Hello")
            unaware = (await before.until("part"))[-1]
            aware = (await after.until("part"))[-1]
    async with process.read(talk, unaware.cursor) as one, process.read(talk, aware.cursor) as other:
        await one.everything()
        await other.everything()

    assert aware.body is unaware.body
    assert one.kinds == ["chat"]
    assert other.kinds == []


async def test_what_is_at_hand_can_be_taken_without_waiting(process: Process) -> None:
    talk = await begin(process)
    async with process.feed.open(talk.id) as reader:
        assert reader.get_nowait() is None  # its snapshot has to be read first
        await go_live(reader, talk)
        assert reader.get_nowait() is None
        await talk.speak("a")
        await talk.speak("b")
        told = [reader.get_nowait(), reader.get_nowait(), reader.get_nowait()]
        process.feed.close()
        end = reader.get_nowait()
        after_the_end = reader.get_nowait()

    assert read_text([event for event in told if event is not None]) == "ab"
    assert told[2] is None
    assert end is not None
    assert end.kind == "end"
    assert after_the_end is None


async def test_taking_may_be_cancelled_at_any_time_without_losing_an_event(process: Process) -> None:
    talk = await begin(process)
    told: list[FeedEvent] = []
    async with process.feed.open(talk.id, "start") as reader:
        for turns_of_the_loop in range(40):
            waiting = asyncio.ensure_future(anext(reader))
            if turns_of_the_loop % 4 == 0:
                await talk.speak(f"{turns_of_the_loop},")
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                told.append(waiting.result())
        while read_text(told) != "".join(f"{number}," for number in range(0, 40, 4)):
            told += await take(reader)


async def test_a_reader_that_takes_nothing_for_30_seconds_is_ended(process: Process) -> None:
    talk = await begin(process)
    async with process.feed.open(talk.id) as stuck:
        await go_live(stuck, talk)
        await talk.speak("Nobody takes this.")
        await poll(process, 30)
        assert stuck.held_bytes > 0
        await poll(process, 2)
        assert stuck.held_bytes == 0
        (end,) = await take(stuck)
        with pytest.raises(StopAsyncIteration):
            await anext(stuck)

    assert (end.kind, end.data) == ("end", {"reason": "slow"})
    async with process.read(talk, end.cursor) as seen:
        await seen.everything()
    assert seen.text == "Nobody takes this."


async def test_a_reader_that_waits_or_now_and_then_takes_something_is_not_ended(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as waiting, process.feed.open(talk.id) as leisurely:
        await go_live(leisurely, talk)
        for _ in range(4):
            await talk.speak("a")
            await talk.speak("b")
        for _ in range(4):
            await poll(process, 20)
            await take(leisurely, 2)
        await poll(process, 60)  # nothing is left to take
        await talk.speak("Still here.")
        assert read_text(await take(leisurely)) == "Still here."
        await wait_until(lambda: waiting.text.endswith("Still here."))

    assert not waiting.is_over


async def test_a_reader_that_falls_behind_through_the_end_of_a_reply_reads_it_all(process: Process) -> None:
    talk = await begin(process)
    async with process.feed.open(talk.id) as slow:
        await go_live(slow, talk)
        for _ in range(20):
            await talk.speak("x" * 1000)
        await talk.close(FinishTurn)
        told = await take(slow, 22)

    assert [event.kind for event in told] == [*["part"] * 20, "message", "status"]
