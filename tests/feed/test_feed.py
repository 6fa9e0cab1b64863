"""Who is woken when: by hints, by polling when every hint is lost, and at the end of a chat or of the process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.feed.process import Process, Talk, poll, wait_until
from tests.store.driver import settle_in

from indelible.content import Finish
from indelible.errors import NotFound
from indelible.feed.cursor import START
from indelible.machine.commands import Delete, FinishTurn, Send, UpdateChat
from indelible.store.payloads import ChatPatch
from indelible.store.sql_store import SqlStore


async def begin(process: Process) -> Talk:
    talk = await (await process.talk()).hold()
    await talk.start()
    return talk


async def test_with_every_hint_lost_a_reader_is_a_poll_late_and_misses_nothing(
    engine: AsyncEngine, process: Process
) -> None:
    """The reader's process hears nothing from the writer's: neither hints nor rows."""
    talk = await (await process.talk()).hold()
    async with Process(engine).running() as elsewhere, elsewhere.read(talk, START) as seen:
        await seen.everything()
        await talk.start()
        await talk.speak("It is ")
        assert "attempt" not in seen.kinds
        await poll(elsewhere)
        await wait_until(lambda: seen.text == "It is ")
        await talk.speak("raining", Finish("stop"))
        await talk.close(FinishTurn)
        await poll(elsewhere)
        told = await seen.everything()

    assert [event.kind for event in told] == ["message", "status", "attempt", "part", "part", "message", "status"]
    assert seen.text == "It is raining"


async def test_a_poll_is_one_query_however_many_read(process: Process) -> None:
    talks = [await process.talk() for _ in range(5)]
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(process.read(talk)) for talk in talks * 2]
        await asyncio.gather(*(seen.everything() for seen in readers))
        await poll(process)
        process.store.asked.clear()
        await poll(process)
        assert process.store.asked == ["positions"]
    process.store.asked.clear()
    await poll(process)
    assert process.store.asked == []  # nobody reads any more


async def test_a_hint_wakes_a_reader_at_once(process: Process) -> None:
    talk = await process.talk()
    async with process.read(talk) as seen:
        await seen.everything()
        await talk.do(Send(), "And Bergen?")
        told = await seen.until("queue")

    (queued,) = told[-1].data["queue"]
    assert queued["blocks"] == [{"type": "text", "text": "And Bergen?"}]
    assert told[-1].data["ids"] == [queued["id"]]


async def test_hints_that_were_missed_before_the_feed_ran_are_made_up_for(engine: AsyncEngine) -> None:
    await settle_in(engine)
    process = Process(engine)
    talk = await process.talk()
    async with process.read(talk) as seen:
        await seen.everything()
        await talk.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        async with process.running():
            told = await seen.until("chat")

    assert told[-1].data == {"title": "Rain"}


@pytest.mark.parametrize("what", ["positions", "changes"])
async def test_a_database_that_fails_for_a_while_delays_readers_and_ends_none(process: Process, what: str) -> None:
    talk = await (await process.talk()).hold()
    await talk.start()
    async with process.read(talk) as seen:
        await seen.everything()
        process.store.failures = {what: 3}
        talk.store = SqlStore(process.engine)  # whose hints are lost, so that polling has to find it
        await talk.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        while process.store.failures[what] > 0:
            await poll(process)
        await poll(process)
        await seen.until("chat")
        await talk.speak("Back.")
        await wait_until(lambda: seen.text == "Back.")

    assert seen.kinds == ["snapshot", "chat", "part"]
    assert process.store.failures == {what: 0}


async def test_a_hint_that_the_database_fails_to_answer_is_made_up_for_by_the_next_poll(process: Process) -> None:
    talk = await process.talk()
    async with process.read(talk) as seen:
        await seen.everything()
        process.store.failures = {"changes": 1}
        await talk.do(UpdateChat(), payload=ChatPatch(title="Rain"))
        await wait_until(lambda: process.store.failures == {"changes": 0})
        await poll(process)
        await seen.until("chat")


async def test_an_unknown_chat_is_not_found(process: Process) -> None:
    with pytest.raises(NotFound):
        async with process.feed.open("chat_that_never_was"):
            pytest.fail("it was opened")
    with pytest.raises(NotFound):
        await process.feed.snapshot("chat_that_never_was")
    assert process.counted.readers == 0


async def test_the_feed_of_a_chat_that_is_deleted_ends(process: Process) -> None:
    talk = await process.talk()
    async with process.read(talk) as seen:
        await seen.everything()
        await talk.do(Delete())
        await wait_until(lambda: seen.is_over)

    assert (seen.events[-1].kind, seen.events[-1].data) == ("end", {"reason": "deleted"})


async def test_a_chat_that_is_deleted_before_its_snapshot_was_read_ends_too(process: Process) -> None:
    talk = await process.talk()
    async with process.feed.open(talk.id) as reader:
        await talk.do(Delete())
        end = await anext(reader)

    assert (end.kind, end.cursor, end.data) == ("end", None, {"reason": "deleted"})


async def test_closing_tells_every_reader_and_whoever_still_comes(process: Process) -> None:
    talk = await (await process.talk()).hold()
    await talk.start()
    async with process.read(talk) as seen:
        await seen.everything()
        await talk.speak("It is ")
        await seen.until("part")
        process.feed.close()
        await wait_until(lambda: seen.is_over)
    async with process.read(talk) as late:
        await wait_until(lambda: late.is_over)

    assert (seen.events[-1].kind, seen.events[-1].data) == ("end", {"reason": "shutdown"})
    assert seen.events[-1].cursor == seen.events[-2].cursor
    assert late.kinds == ["end"]


async def test_pending_is_seen_in_a_snapshot_and_is_never_an_event(process: Process) -> None:
    talk = await process.talk()
    async with process.read(talk) as seen:
        await seen.everything()
        await talk.hold()
        await talk.start()
        await seen.everything()
        held = await process.feed.snapshot(talk.id)

    assert seen.events[0].data["status"] == "pending"
    assert seen.kinds == ["snapshot", "attempt"]
    assert held.status == "running"


async def test_readers_are_counted_and_gaps_stay_at_zero(process: Process) -> None:
    talk = await process.talk()
    async with process.read(talk) as one, process.read(talk, START) as other:
        await one.everything()
        await other.everything()
        assert process.counted.readers == 2
    assert (process.counted.readers, process.counted.resyncs, process.counted.gaps) == (0, 0, 0)


async def test_a_row_reaches_exactly_the_readers_of_its_chat(process: Process) -> None:
    one, other, unread = [await begin(process) for _ in range(3)]
    async with process.read(one) as first, process.read(other) as second:
        await first.everything()
        await second.everything()
        process.store.asked.clear()
        async with asyncio.TaskGroup() as tasks:
            for talk, said in ((one, "one"), (other, "other"), (unread, "to nobody")):
                tasks.create_task(talk.speak(said))
        await wait_until(lambda: (first.text, second.text) == ("one", "other"))

    assert process.store.asked == []


async def test_rows_of_a_chat_that_nobody_reads_any_more_go_nowhere(process: Process) -> None:
    talk = await begin(process)
    async with process.read(talk) as seen:
        await seen.everything()
        await talk.speak("read, ")
        await wait_until(lambda: seen.text == "read, ")
    await talk.speak("not read")

    assert seen.text == "read, "
    assert (seen.reader.held_bytes, process.counted.readers) == (0, 0)
